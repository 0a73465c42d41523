"""Pages run as Streamlit runs them, without a browser: who is let in, and what is said where there is nothing to show."""

import sqlite3
from pathlib import Path

import msgspec
import pytest

from dashboard.login import Sessions
from dashboard.pages import available
from dashboard.sources import VARIABLE
from eagle_eye.access import Person, Role
from eagle_eye.access.tokens import add_person
from eagle_eye.checkpoint_safety import NodeSafety, SafeStep
from eagle_eye.clock import FakeClock
from eagle_eye.config import Config, ServerConfig
from eagle_eye.ledger import Ledger
from eagle_eye.types import Breaker, Culprit, Entity, Incident, IncidentState, Kind, Layout, RankPlacement, Severity
from fakes.dashboard_page import page, seek_components_once, shown

ENTRY = str(Path(__file__).parents[3] / "dashboard" / "entry" / "page.py")
NOW = 1_900_000_000.0
PAGES = [each.name for each in available()]


@pytest.fixture
def state(tmp_path, monkeypatch) -> Path:
    """A deployment without anything, and a process that has not opened another one."""
    import streamlit

    streamlit.cache_resource.clear()
    monkeypatch.setenv(VARIABLE, msgspec.json.encode(Config(state_dir=str(tmp_path), server=ServerConfig(http=""))).decode())
    yield tmp_path
    streamlit.cache_resource.clear()


@pytest.fixture
def ledger(state, ledger_path) -> Ledger:
    opened = Ledger.open(ledger_path)
    yield opened
    opened.close()


def fault(ledger: Ledger, job: str, cause: str, state: IncidentState = IncidentState.OPEN) -> None:
    culprit = Culprit(entity=Entity(kind=Kind.NODE, name="node-c"), confidence=0.9)
    ledger.save_incident(
        Incident(id=f"of-{job.replace('/', '-')}", revision=1, job=job, cause=cause, culprits=(culprit,), severity=Severity.SEV1, findings=(), evidence=(), since=NOW, time=NOW), state, time=NOW
    )


def app():
    from streamlit.testing.v1 import AppTest

    seek_components_once()
    return AppTest.from_file(ENTRY, default_timeout=120)


def test_without_tokens_everybody_is_let_in_and_told_so(state, ledger):
    text = shown(app().run())
    assert "everybody who can reach this address is an administrator" in text
    assert "No job and no node yet" in text
    assert "eagle-eye run" in text, "says what to do next"


def test_with_tokens_nothing_is_shown_before_one(state, ledger):
    fault(ledger, "team/gpt/run", "slow node")
    token = add_person(state / "tokens" / "tokens.toml", "ada", Role.VIEWER, now=NOW)
    test = app().run()
    assert "slow node" not in shown(test).lower()
    assert "Sign in with your token" in shown(test)
    test.text_input[0].set_value("eet_wrong")
    test.button[0].click().run()
    assert "not known here" in shown(test)
    assert "slow node" not in shown(test).lower()
    test.text_input[0].set_value(token)
    test.button[0].click().run()
    assert "Slow node" in shown(test)
    assert "Signed in as ada, viewer" in shown(test)


def test_a_token_that_was_taken_away_lets_nobody_stay(state, ledger):
    path = state / "tokens" / "tokens.toml"
    token = add_person(path, "ada", Role.VIEWER, now=NOW)
    add_person(path, "bob", Role.VIEWER, now=NOW)
    test = app().run()
    test.text_input[0].set_value(token)
    test.button[0].click().run()
    assert "Signed in as ada" in shown(test)
    from eagle_eye.access.tokens import remove_person

    remove_person(path, "ada")
    assert "Signed in" not in shown(test.run())


def test_signing_out_asks_for_a_token_again(state, ledger):
    token = add_person(state / "tokens" / "tokens.toml", "ada", Role.VIEWER, now=NOW)
    test = app().run()
    test.text_input[0].set_value(token)
    test.button[0].click().run()
    next(button for button in test.button if button.label == "Sign out").click().run()
    assert "Sign in with your token" in shown(test)


def test_a_session_of_a_browser_ends_by_itself():
    clock = FakeClock()
    sessions = Sessions(clock)
    name = sessions.begin("eet_secret")
    assert sessions.token(name) == "eet_secret"
    assert sessions.token("") == sessions.token("guessed") == ""
    clock.advance(13 * 3600)
    assert sessions.token(name) == ""


def test_an_incident_stands_first_and_leads_to_its_page(state, ledger):
    fault(ledger, "team/gpt/run", "slow node")
    text = shown(page("cluster").run())
    assert "Slow node" in text
    assert "node-c" in text
    assert 'href="incident?incident=of-team-gpt-run"' in text


def test_whoever_belongs_to_a_tenant_sees_its_jobs_alone(state, ledger):
    fault(ledger, "red/gpt/run", "slow node")
    fault(ledger, "blue/gpt/run", "python hang")
    text = shown(page("cluster", Person(name="eve", role=Role.VIEWER, tenant="blue")).run())
    assert "Python hang" in text
    assert "red/gpt" not in text
    denied = shown(page("job", Person(name="eve", role=Role.VIEWER, tenant="blue"), job="red/gpt/run").run())
    assert "You may not do this" in denied


def test_an_unknown_job_says_so_kindly(state, ledger):
    text = shown(page("job", job="team/none/run").run())
    assert "There is no such thing" in text
    assert "team/none/run" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_page_without_a_server_says_what_to_start(state, name):
    text = shown(page(name, incident="some").run())
    assert "No ledger yet" in text
    assert "eagle-eye server" in text


@pytest.mark.parametrize("name", PAGES)
def test_a_ledger_of_a_newer_version_is_told_from_a_broken_one(state, ledger, name):
    with sqlite3.connect(state / "ledger.sqlite") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0009'")
    connection.close()
    assert "newer version" in shown(page(name, incident="some").run())


def test_pages_are_found_by_their_files_in_the_order_that_they_give():
    found = available()
    assert found[0].name == "cluster"
    assert [each.order for each in found] == sorted(each.order for each in found)
    assert {each.name: each.menu for each in found}["incident"] is False


def test_nothing_done_yet_says_how_to_try(state, ledger):
    text = shown(page("actions").run())
    assert "Nothing was done" in text
    assert "eagle-eye drill" in text


def test_nobody_leading_wants_a_person(state, ledger):
    text = shown(page("eagle_eye").run())
    assert "No leader" in text
    assert "ee-alarm" in text


def test_a_breaker_that_is_open_says_since_when_why_and_how_a_person_closes_it(state, ledger):
    ledger.save_suppression(Breaker(id="breaker-7", job="team/gpt/run", action="restart_worker", plan="p", incident="i", reason="it did not help twice", since=NOW))
    text = shown(page("actions").run())
    assert "breaker open" in text
    assert "it did not help twice" in text
    assert "eagle-eye breaker close breaker-7" in text


def test_a_job_shows_its_newest_safe_checkpoints_and_what_keeps_them_from_being_newer(state, ledger):
    names = ("node-a", "node-b")
    placements = tuple(RankPlacement(worker=f"run/{node}/0", node=node, rank=rank, local_rank=0) for rank, node in enumerate(names))
    layout = Layout(job="team/gpt/run", epoch=1, time=NOW, coordinator="node-a", launchers=dict.fromkeys(names, ""), placements=placements)
    ledger.save_job(layout.job, layout, "node-a:1", "restart:3", 3)
    ledger.save_job("team/gpt/other", msgspec.structs.replace(layout, job="team/gpt/other"), "node-a:1", "restart:3", 3)
    assert "Newest safe checkpoint" not in shown(page("job", job="team/gpt/other").run()), "it has told of none"
    tiers = {"memory": SafeStep(step=1234, time=1.0), "backup": SafeStep(failure="no <memory> there")}
    ledger.save_safety([NodeSafety(job=layout.job, node=node, time=NOW, tiers=tiers, kept_by="node-b", shared="switch leaf-1" if node == "node-a" else "") for node in names])
    text = shown(page("job", job=layout.job).run())
    assert "Newest safe checkpoint" in text
    assert "1,234" in text
    assert "node-a: no &lt;memory&gt; there; node-b: no &lt;memory&gt; there" in text
    assert "Both copies of node-a and node-b on switch leaf-1" in text
