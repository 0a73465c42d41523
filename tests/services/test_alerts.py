"""Alerts to real receivers in processes of their own: refused when malformed, killed in mid notification, hanging, dead, back again."""

import logging
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from eagle_eye.app.cli import main
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.types import IncidentState, Severity
from fakes.notifications import Newsroom
from remediation.actions.notify import Notify
from remediation.alerts.alert_service import AlertService
from remediation.alerts.receiver import Receiver
from remediation.engine.incident_phase import IncidentPhase
from servers.alertmanager import BINARY, Alertmanager
from servers.pager import SECRET, Pager

CLOCK = SystemClock()
KEY = "0123456789abcdef0123456789abcdef"


def until(event_action: str, look: Callable[[], Any], seconds: float = 90.0) -> Any:
    """The first answer that is not empty."""
    deadline = CLOCK.monotonic() + seconds
    while CLOCK.monotonic() < deadline:
        if found := look():
            return found
        CLOCK.sleep(0.05)
    pytest.fail(f"waited {seconds:.0f} s in vain for {event_action}")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(tmp_path / "ledger.sqlite")
    yield ledger
    ledger.close()


@pytest.fixture
def pager(tmp_path: Path) -> Iterator[Callable[..., Pager]]:
    """Makes receivers, and ends their processes."""
    made: list[Pager] = []

    def make(kind: str, behaviour: str = "answer", *, start: bool = True) -> Pager:
        made.append(Pager(tmp_path / f"pager{len(made)}", kind, free_port()))
        if start:
            made[-1].start(behaviour)
        return made[-1]

    yield make
    for each in made:
        each.stop(signal.SIGKILL)


@pytest.fixture
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("PLAIN", "HANGING"):
        monkeypatch.setenv(f"EAGLE_EYE_{kind}_SECRET", SECRET)
    monkeypatch.setenv("EAGLE_EYE_PAGERDUTY_KEY", KEY)


@contextmanager
def telling(ledger: Ledger, *receivers: Receiver, **more: Any) -> Iterator[tuple[AlertService, Newsroom]]:
    """A leader's alerts, and the desk that they look at."""
    notify = Notify(ledger=ledger, clock=CLOCK, receivers=receivers, update_s=0.2)
    alerts = AlertService(notify, ledger, CLOCK, page="https://eye.example/incidents/{incident}", **more)
    room = Newsroom(ledger, CLOCK, receivers)  # type: ignore[arg-type]
    room.lifecycle = alerts  # type: ignore[assignment]
    alerts.start()
    try:
        yield alerts, room
    finally:
        alerts.stop()


def looked(room: Newsroom) -> None:
    """As the engine does it, twenty times a second; the lifecycle looks five times."""
    for _ in range(6):
        room.lifecycle.update(room.incidents)
        CLOCK.sleep(0.05)


def test_every_kind_of_receiver_takes_a_life_of_an_incident(ledger: Ledger, pager: Callable[..., Pager], secrets: None) -> None:
    kinds = ("plain", "pagerduty", "slack", "alertmanager")
    pagers = {kind: pager(kind) for kind in kinds}
    with telling(ledger, *(Receiver(kind=kind, url=each.url) for kind, each in pagers.items())) as (_, room):  # type: ignore[arg-type]
        case = room.open("i1", cause="slow <node> & more", node="node-b")
        looked(room)
        room.ask(case, reason="a < b")
        looked(room)
        room.move(case, IncidentState.HEALED, IncidentPhase.ENDED)
        looked(room)
        until("the last notifications", lambda: ledger.undelivered_by_receiver() == {})
    assert {kind: each.refused for kind, each in pagers.items()} == {kind: [] for kind in kinds}
    assert [body["event_action"] for body in pagers["plain"].bodies][-1] == "resolve"
    assert [body["event_action"] for body in pagers["pagerduty"].bodies][-1] == "resolve"
    assert {body["dedup_key"] for body in pagers["pagerduty"].bodies} == {"i1"}
    assert pagers["slack"].bodies[-1]["text"].startswith("🟢 Resolved: slow &lt;node&gt;")


def test_the_servers_log_does_not_tell_an_address_that_is_a_secret(
    ledger: Ledger, pager: Callable[..., Pager], secrets: None, caplog: pytest.LogCaptureFixture
) -> None:
    slack = pager("slack")
    with caplog.at_level(logging.INFO), telling(ledger, Receiver(kind="slack", url=f"{slack.url}/T0-secret")) as (_, room):
        room.open("i1")
        looked(room)
        until("the notification", lambda: slack.bodies)
        until("its end", lambda: ledger.undelivered_by_receiver() == {})
    assert "T0-secret" not in caplog.text


def test_a_receiver_that_refuses_says_why_and_the_operator_is_told(ledger: Ledger, pager: Callable[..., Pager], secrets: None) -> None:
    """A PagerDuty's notification at Slack's door: a wrong address."""
    slack = pager("slack")
    with telling(ledger, Receiver(kind="pagerduty", url=slack.url)) as (_, room):
        room.open()
        looked(room)
        [notice] = until("the notice", ledger.notices)
    assert notice.name == "alerts.given_up"
    assert "no_text" in notice.message


@pytest.mark.parametrize("kind", ["plain", "pagerduty"])
def test_a_receiver_killed_between_accept_and_answer_gets_the_same_letter_again(
    ledger: Ledger, pager: Callable[..., Pager], secrets: None, kind: Any
) -> None:
    receiver = pager(kind, "mute")
    with telling(ledger, Receiver(kind=kind, url=receiver.url)) as (_, room):
        room.open()
        looked(room)
        until("the notification", lambda: receiver.accepted)
        receiver.stop(signal.SIGKILL)
        receiver.start()
        until("the notification, again", lambda: ledger.undelivered_by_receiver() == {})
    first, second = receiver.accepted
    assert first == second
    assert first["notification"].startswith("i1/")


def test_letters_survive_the_leader_and_a_receiver_that_was_dead(ledger: Ledger, pager: Callable[..., Pager], secrets: None) -> None:
    receiver = pager("plain", start=False)
    config = Receiver(kind="plain", url=receiver.url)
    with telling(ledger, config) as (_, room):
        cases = [room.open(f"i{number}") for number in range(3)]
        looked(room)
        room.move(cases[0], IncidentState.HEALED, IncidentPhase.ENDED)
        looked(room)
        until("a try", lambda: ledger.undelivered_by_receiver()["plain"][2])
        kept = dict(room.incidents)
    receiver.start()
    with telling(ledger, config) as (_, room):
        room.incidents = kept
        looked(room)
        until("the notifications", lambda: ledger.undelivered_by_receiver() == {})
    told = [(body["event_action"], body["id"]) for body in receiver.bodies]
    assert sorted(told) == [("resolve", "i0"), ("trigger", "i0"), ("trigger", "i1"), ("trigger", "i2")]
    assert told.index(("trigger", "i0")) < told.index(("resolve", "i0"))


def test_a_receiver_that_hangs_and_one_that_is_dead_delay_nobody_else(ledger: Ledger, pager: Callable[..., Pager], secrets: None) -> None:
    hanging, good = pager("plain", "hang"), pager("slack")
    dead = Receiver(kind="pagerduty", url=f"http://127.0.0.1:{free_port()}/")
    slow = Receiver(kind="plain", name="hanging", url=hanging.url, timeout_s=600.0)
    with telling(ledger, slow, dead, Receiver(kind="slack", url=good.url)) as (_, room):
        room.open("i1")
        looked(room)
        until("the first notification", lambda: len(good.bodies) == 1)
        room.open("i2")
        looked(room)
        until("the second notification", lambda: len(good.bodies) == 2)
        assert set(ledger.undelivered_by_receiver()) == {"hanging", "pagerduty"}


def test_a_receiver_that_hangs_is_tried_again(ledger: Ledger, pager: Callable[..., Pager], secrets: None) -> None:
    receiver = pager("plain", "hang")
    with telling(ledger, Receiver(kind="plain", url=receiver.url, timeout_s=0.3)) as (_, room):
        room.open()
        looked(room)
        until("a time-out", lambda: "no answer within 0.3 s" in ledger.undelivered_by_receiver()["plain"][2])
        receiver.stop(signal.SIGKILL)
        receiver.start()
        until("the notification", lambda: ledger.undelivered_by_receiver() == {})
    assert len(receiver.accepted) == 1


# --- eagle-eye alerts ----------------------------------------------------------------------------------------------


def command(folder: Path, text: str, *arguments: str) -> Result:
    (folder / "eagle-eye.toml").write_text(text)
    return CliRunner().invoke(main, ["alerts", *arguments, "--config", str(folder / "eagle-eye.toml"), "--state-dir", str(folder)])


def test_the_command_tries_each_receiver_and_shows_no_secret(tmp_path: Path, pager: Callable[..., Pager], secrets: None) -> None:
    plain, pagerduty, slack = pager("plain"), pager("pagerduty"), pager("slack")
    tables = [f"[[actions.notify.receivers]]\nkind = '{each.kind}'\nurl = '{each.url}/T0-secret'\n" for each in (plain, pagerduty, slack)]
    done = command(tmp_path, "".join(tables), "test")
    assert done.exit_code == 0, done.output
    assert done.output.count("✓") == 4  # PagerDuty's is resolved again
    assert [body["event_action"] for body in pagerduty.bodies] == ["trigger", "resolve"]
    assert plain.bodies[0]["event_action"] == "test"
    assert "nothing is wrong" in slack.bodies[0]["text"]
    wrong = f"[[actions.notify.receivers]]\nkind = 'slack'\nurl = '{pagerduty.url}/T0-secret'\n"
    done = command(tmp_path, wrong, "test", "--json")
    assert done.exit_code == 1
    assert "status 400" in done.output
    assert "T0-secret" not in done.output
    assert "no alert receiver is named 'night'" in command(tmp_path, wrong, "test", "night").output


def test_the_command_shows_what_waits_and_why(tmp_path: Path, ledger: Ledger, secrets: None) -> None:
    assert "every notification was delivered" in command(tmp_path, "", "waiting").output
    with telling(ledger, Receiver(kind="plain", url=f"http://127.0.0.1:{free_port()}/")) as (_, room):
        room.open()
        looked(room)
        until("a try", lambda: ledger.undelivered_by_receiver()["plain"][2])
    assert re.search(r"plain +1 +ConnectError", command(tmp_path, "", "waiting").output)


# --- Alertmanager --------------------------------------------------------------------------------------------------


@pytest.fixture
def alertmanager(tmp_path: Path, pager: Callable[..., Pager]) -> Iterator[tuple[Alertmanager, Pager]]:
    if shutil.which(BINARY) is None or shutil.which("amtool") is None:
        pytest.skip(f"{BINARY} is missing: scripts/install-debian prometheus-alertmanager")
    hook = pager("webhook")
    server = Alertmanager(tmp_path / "alertmanager", hook.url)
    server.start()
    yield server, hook
    server.stop(signal.SIGKILL)


def heard(hook: Pager) -> set[tuple[str, str]]:
    """(firing or resolved, incident or the alert's name) of all that Alertmanager has told its receiver."""
    return {
        (alert["status"], alert["labels"].get("eagle_eye_incident", alert["labels"]["alertname"])) for body in hook.bodies for alert in body["alerts"]
    }


def test_an_alertmanager_routes_groups_keeps_and_resolves(ledger: Ledger, alertmanager: tuple[Alertmanager, Pager]) -> None:
    server, hook = alertmanager
    well = [True]
    receiver = Receiver(kind="alertmanager", url=server.url, every_s=0.5, labels={"cluster": "a"})
    with telling(ledger, receiver, ticking=lambda: well[0]) as (_, room):
        cases = [room.open(f"i{number}", node=f"node-{number}") for number in range(3)]
        looked(room)
        until("three alerts", lambda: {("firing", f"i{number}") for number in range(3)} | {("firing", "EagleEyeWatchdog")} <= heard(hook))
        assert any(len(body["alerts"]) == 3 for body in hook.bodies)  # grouped by job
        first = server.firing()["i0"]
        assert first["labels"] | {"severity": "critical", "cluster": "a"} == first["labels"]
        assert first["annotations"]["summary"].startswith("slow node: node-0")

        def kept() -> bool:  # sent again, long after the first would have been over
            room.lifecycle.update(room.incidents)
            return "i0" in (now := server.firing()) and now["i0"]["endsAt"] > first["endsAt"] and now["i0"]["updatedAt"] > first["endsAt"]

        until("the alert to be sent again", kept)
        assert ("resolved", "i0") not in heard(hook)
        room.revise(cases[0], severity=Severity.SEV2)
        room.move(cases[1], IncidentState.HEALED, IncidentPhase.ENDED)
        looked(room)
        until("the resolve", lambda: ("resolved", "i1") in heard(hook))
        until("the new severity", lambda: server.firing()["i0"]["labels"]["severity"] == "error")
        assert len([alert for alert in server.amtool("alert", "query") if alert["labels"].get("eagle_eye_incident") == "i0"]) == 1
        well[0] = False
        until("the watchdog to stop", lambda: room.lifecycle.update(room.incidents) or ("resolved", "EagleEyeWatchdog") in heard(hook))
        assert {"i0", "i2"} <= set(server.firing())


def test_an_alertmanager_that_lost_its_memory_hears_it_again(ledger: Ledger, alertmanager: tuple[Alertmanager, Pager]) -> None:
    server, _ = alertmanager
    with telling(ledger, Receiver(kind="alertmanager", url=server.url, every_s=0.5)) as (_, room):
        room.open()
        looked(room)
        until("the alert", lambda: "i1" in server.firing())
        server.stop(signal.SIGKILL)
        shutil.rmtree(server.folder / "data")
        server.start()
        until("the alert, again", lambda: "i1" in server.firing())
