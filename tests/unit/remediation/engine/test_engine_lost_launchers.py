"""A launcher that is lost, and what fails beside it: one repair, whoever makes it."""

import pytest

from eagle_eye.types import Entity, IncidentState, Kind, Mode, Severity

NODE = Entity(kind=Kind.NODE, name="node-b")
WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")


@pytest.fixture
def make(make_world):
    return make_world


@pytest.mark.parametrize("cause", ["exception", "worker killed"])
def test_a_worker_that_failed_beside_a_lost_launcher_is_not_restarted_twice(make, cause):
    world = make()
    died = world.job.die(WORKER.name, reason="node lost")
    world.find(cause, WORKER, event=died)
    world.run(12)
    assert world.sent == [], "the epoch that goes on without the launcher has restarted it"
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


@pytest.mark.parametrize("cause", ["node lost", "launcher lost"])
def test_a_lost_node_that_the_job_may_not_leave_behind_by_itself_is_left_behind_by_command(make, cause):
    for mode, sent in ((Mode.OBSERVE, []), (Mode.AUTO, ["restart"])):
        world = make(mode)
        world.job.budget_left, world.job.stalled = 0, True
        world.job.tell("budget.exhausted", heal="none")
        world.find(cause, NODE, severity=Severity.SEV1)
        world.run(12)
        assert world.sent == sent
        assert world.ledger.cordoned() == ()


def test_workers_that_ended_with_their_launcher_are_not_restarted_once_more(make):
    """The coordinator has gone on without their node: that is more than the restart that helps against an exit."""
    world = make()
    world.job.lose("node-b")
    world.find("worker exited", WORKER, since=world.clock.now() - 0.5)
    world.run(12)
    assert world.sent == []
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED
