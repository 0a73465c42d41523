"""What a fault really was may be known only after its job has healed itself."""

import pytest

from eagle_eye.types import Entity, IncidentState, Kind, Severity

NODE = Entity(kind=Kind.NODE, name="node-b")
WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")


@pytest.fixture
def make(make_world):
    return make_world


def test_a_node_that_is_found_lost_after_its_job_is_healed_is_told_in_the_same_incident(make):
    world = make(receiver="http://127.0.0.1:1/")
    world.job.lose("node-b")
    world.find("network error", severity=Severity.SEV3)
    world.run(8)
    assert world.state() is IncidentState.HEALED
    healed = world.clock.now()
    world.find("node lost", NODE, revision=2, severity=Severity.SEV1, since=healed - 8.0)
    world.run(8)
    assert world.sent == []
    assert world.state() is IncidentState.HEALED
    told = [plan.reason for plan in world.ledger.plans(incident="i1") if plan.action == "notify" and plan.made >= healed]
    assert told == ["the job is healed, and the cause is known now: node lost, node node-b"]


def test_a_hang_that_joins_an_incident_after_it_was_healed_is_healed_by_another_restart(make):
    """The peers' cries of a commanded restart were its first findings: the restart before the hang was taken for the answer, and the job stood for ever."""
    world = make()
    world.run(8)
    world.job.lose("node-b")
    world.find("network error", severity=Severity.SEV3)
    world.run(8)
    assert world.state() is IncidentState.HEALED
    world.job.stalled = True
    world.find("python hang", WORKER, revision=2, since=world.clock.now())
    world.run(20)
    assert world.sent == ["dump", "restart"]
    assert world.state() is IncidentState.HEALED


def test_a_stop_that_was_over_when_it_was_found_is_told_and_nothing_is_done(make):
    world = make(receiver="http://127.0.0.1:1/")
    world.find("worker stopped", WORKER, severity=Severity.SEV3, active=False)
    world.run(5)
    assert world.sent == []
    assert world.state() is IncidentState.CLOSED
    assert [plan.reason for plan in world.ledger.plans(incident="i1")] == ["it was over when it was found: no action is taken"]
