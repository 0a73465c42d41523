"""The alerts of a leader: what the heartbeat vouches for, and that a mistake in them stops nobody from healing."""

import sys

import pytest

from detectors.diagnosis import Diagnosis
from detectors.runtime.runner import Runner
from eagle_eye.app.serving.alert_wiring import STALLED_S, PartitionHealth
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import LeaseHolder
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.memory import MemoryStream
from fakes.notifications import Newsroom
from remediation.actions.notify import Notify
from remediation.alerts.alert_service import STALLED_S as ENGINE_STALLED_S
from remediation.alerts.alert_service import AlertService
from remediation.alerts.receiver import Receiver

ADA = LeaseHolder(host="machine-a", pid=101, incarnation="ada")


@pytest.fixture
def runners(ledger, clock):
    stream = MemoryStream(clock=clock)
    return stream, {
        number: Runner(stream, number, [], Diagnosis(), clock=clock, generation=1) for number in range(stream.partitions(OBSERVATIONS))
    }


def own(ledger, clock, runners, seconds=1000.0):
    for number in runners:
        assert ledger.acquire(f"partition/{number}", ADA, seconds, clock.now())


def turn(clock, runners, seconds):
    for _ in range(round(seconds)):
        clock.advance(1.0)
        for runner in runners.values():
            runner.step()


def test_a_partition_without_an_owner_is_told(ledger, clock, runners):
    stream, _ = runners
    ticking = PartitionHealth(stream, ledger, {}, clock)
    assert not ticking()
    own(ledger, clock, runners[1], seconds=100.0)
    assert ticking()
    clock.advance(101)
    assert not ticking()


def test_a_runner_that_stands_still_is_told(ledger, clock, runners):
    stream, running = runners
    own(ledger, clock, running)
    ticking = PartitionHealth(stream, ledger, running, clock)
    turn(clock, running, 3)
    assert ticking()
    turn(clock, running, 60)
    assert ticking()
    clock.advance(STALLED_S + 1)
    assert not ticking()
    turn(clock, running, 2)
    assert ticking()


def test_a_ledger_that_does_not_answer_is_no_good_sign(ledger, clock, runners):
    stream, running = runners
    own(ledger, clock, running)
    ticking = PartitionHealth(stream, Away(), running, clock)
    assert not ticking()


class Away:
    """A ledger that does not answer."""

    def living(self, prefix, now):
        raise LedgerError("it is away")


@pytest.fixture
def alerts(ledger, clock, monkeypatch):
    monkeypatch.setenv("EAGLE_EYE_PLAIN_SECRET", "of the operator")
    receivers = (Receiver(kind="plain", url="http://127.0.0.1:9/"),)
    return AlertService(Notify(ledger=ledger, clock=clock, receivers=receivers), ledger, clock, page="", approval_link=lambda plan: plan.targets[7])


def test_without_a_receiver_nothing_is_imported_that_sends(ledger, clock, monkeypatch):
    worker = "remediation.alerts.delivery_worker"
    monkeypatch.delitem(sys.modules, worker, raising=False)
    AlertService(Notify(ledger=ledger, clock=clock, receivers=()), ledger, clock, page="")
    assert worker not in sys.modules


def test_an_engine_that_does_not_go_round_is_not_well(alerts, clock):
    assert alerts.well()
    clock.advance(ENGINE_STALLED_S + 1)
    assert not alerts.well()
    alerts.update({})
    assert alerts.well()


def test_a_mistake_in_a_letter_stops_the_heartbeat_and_not_the_engine(alerts, ledger, clock):
    room = Newsroom(ledger, clock, [Receiver(kind="plain")])
    case = room.open()
    room.ask(case)  # whose link cannot be made
    alerts.update(room.incidents)
    assert not alerts.well()
    clock.advance(1.0)
    room.incidents["i2"] = room.open("i2")
    del room.incidents["i1"]
    alerts.update(room.incidents)
    assert alerts.well()
    assert [alert.id for alert in room.notifications("plain")] == ["i2"]


def test_what_could_not_be_said_is_said_later(ledger, clock):
    links = [ValueError("no link yet"), "https://eye.example/approve/abc"]

    def link(plan):
        if isinstance(links[0], Exception):
            raise links.pop(0)
        return links[0]

    room = Newsroom(ledger, clock, approval_link=link)
    room.ask(room.open())
    with pytest.raises(ValueError, match="no link yet"):
        room.look()
    room.look(10)
    assert [alert.approval_link for alert in room.notifications()] == ["https://eye.example/approve/abc"]


def test_letters_to_a_receiver_that_is_configured_no_more_are_given_up_and_told(alerts, ledger, clock):
    ledger.enqueue("old", "{}", 1.0)
    ledger.enqueue("old", "{}", 1.0)
    alerts.start()
    alerts.stop()
    assert ledger.undelivered("old") == ()
    [notice] = ledger.notices()
    assert "2 notifications to alert receiver 'old' are given up" in notice.message
