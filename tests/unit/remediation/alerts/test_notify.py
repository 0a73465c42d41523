"""The action that tells somebody: it writes the news down before it says that it has."""

import pytest

from eagle_eye.errors import ConfigError, PluginError
from eagle_eye.ledger import AlertRecord
from eagle_eye.plugins import build, configure, load
from eagle_eye.types import IncidentState
from fakes.sample_values import a_plan, an_incident
from fakes.synthetic_job import SyntheticJob, incident
from remediation.actions.notify import Notify
from remediation.alerts.alert import SentAlert, encode
from remediation.alerts.alert_content import AlertSubject, alert_about
from remediation.alerts.receiver import Receiver, endpoints_of

NOTIFY = load("remediation.actions", "notify")


def notify(ledger, clock, **options):
    return build(NOTIFY, options, {"ledger": ledger, "clock": clock})


def test_the_news_is_on_disk_when_the_step_is_done(ledger, clock):
    steps = notify(ledger, clock, url="http://127.0.0.1:9/").run(a_plan(incident="i1", reason="a plan waits"))
    assert next(steps).state == "intended"
    assert ledger.alert("i1") is None
    assert [step.state for step in steps] == ["done"]
    assert ledger.alert("i1").news == "a plan waits"


def test_news_that_no_letter_has_said_yet_is_not_lost_to_the_next(ledger, clock):
    action = notify(ledger, clock, url="http://127.0.0.1:9/")
    for reason in ("its breaker is open", "undone: node-b takes part again", "undone: node-b takes part again"):
        list(action.run(a_plan(incident="i1", reason=reason)))
    assert ledger.alert("i1").news == "its breaker is open; undone: node-b takes part again", "a step that is done again says nothing twice"


def test_news_that_a_letter_has_said_is_not_said_again(ledger, clock):
    action = notify(ledger, clock, url="http://127.0.0.1:9/")
    list(action.run(a_plan(incident="i1", reason="its breaker is open")))
    alert = alert_about(AlertSubject(incident=an_incident(id="i1"), state=IncidentState.OPEN, opened=clock.now()), news="its breaker is open", link="", approval_link="", now=clock.now())
    ledger.save_alert(AlertRecord(id="i1", number=1, body=encode(SentAlert(alert=alert, receivers=()))), [], clock.now())
    list(action.run(a_plan(incident="i1", reason="undone")))
    assert ledger.alert("i1").news == "undone"


def test_without_receivers_nothing_is_written(ledger, clock):
    assert list(notify(ledger, clock).run(a_plan(incident="i1"))) == []
    assert ledger.alert("i1") is None


def test_a_url_alone_is_one_receiver_called_webhook(ledger, clock, monkeypatch):
    monkeypatch.setenv("EAGLE_EYE_WEBHOOK_SECRET", "of the operator")
    action = notify(ledger, clock, url="https://hooks.example/", receivers=[{"kind": "slack", "url": "https://slack.example/x"}])
    assert [endpoint.name for endpoint in endpoints_of(action.everybody)] == ["slack", "webhook"]


def test_receivers_are_tables_of_the_configuration(ledger, clock):
    table = {"kind": "alertmanager", "name": "am", "url": "http://am:9093", "labels": {"cluster": "a"}, "min_severity": "sev1"}
    [receiver] = notify(ledger, clock, receivers=[table]).everybody
    assert receiver == Receiver(kind="alertmanager", name="am", url="http://am:9093", labels={"cluster": "a"}, min_severity="sev1")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"kind": "fax", "url": "https://x.example/T0/secret"}, "fax"),
        ({"kind": "slack", "uri": "https://x.example/T0/secret"}, "uri"),
        ({"url": "https://x.example/T0/secret"}, "kind"),
        ({"kind": "slack", "url": "https://x.example/T0/secret", "every_s": 0}, "every_s"),
        ({"kind": "slack", "url": "https://x.example/T0/secret", "name": "my pager"}, "my pager"),
    ],
)
def test_a_wrong_table_is_named_without_its_secrets(table, named):
    with pytest.raises(PluginError, match=named) as refused:
        configure(NOTIFY, {"receivers": [table]})
    assert "T0/secret" not in str(refused.value)


def test_two_receivers_of_one_name_are_refused(ledger, clock):
    receivers = [{"kind": "slack", "url": "https://a.example/"}, {"kind": "slack", "url": "https://b.example/"}]
    with pytest.raises(ConfigError, match="called 'slack'"):
        endpoints_of(notify(ledger, clock, receivers=receivers).everybody)


def test_what_is_told_about_a_case_reaches_the_next_leader(make_world):
    """The news are of the ledger: whoever leads next still knows them."""
    world = make_world()
    world.ledger.save_incident(incident(SyntheticJob(clock=world.clock), "slow node"), "open")
    list(Notify(ledger=world.ledger, clock=world.clock, url="http://127.0.0.1:9/").run(a_plan(incident="i1", reason="gave up")))
    assert world.ledger.alert("i1").news == "gave up"
