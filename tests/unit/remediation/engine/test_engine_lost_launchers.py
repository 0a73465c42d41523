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
        world.job.spend()
        world.find(cause, NODE, severity=Severity.SEV1)
        world.run(12)
        assert world.sent == sent
        assert world.ledger.cordoned() == ()


def test_a_launcher_whose_loss_is_found_only_after_the_job_has_stopped_for_it_does_not_wait_until_the_job_heals_itself(make):
    """A worker that was stopped by a signal had just been continued."""
    world = make()
    world.job.stalled = True
    world.find("worker stopped", WORKER, severity=Severity.SEV3)
    world.run(0.1)
    world.job.spend()
    world.run(0.1)
    world.find("launcher lost", NODE, name="i2")
    world.run(1.5)
    assert world.sent == ["reattempt", "restart"]


@pytest.mark.parametrize(("spent", "sent"), [(True, ["restart", "restart"]), (False, ["restart"])], ids=["stopped", "twin: its workers run"])
def test_a_job_that_stops_again_before_its_restart_is_verified_is_restarted_whenever_the_fault_began(make, spent, sent):
    """Its peers broke while the command was answered. Nothing is left to look at, nor to go on in place."""
    world = make()
    world.job.spend()
    world.find("worker killed", WORKER)
    world.run(2)
    assert world.sent == ["restart"]
    if spent:
        world.job.spend()
    world.find("network error", name="i2", since=world.job.layout.time, severity=Severity.SEV3)
    world.run(3)
    assert world.sent == sent


def test_workers_that_ended_with_their_launcher_are_not_restarted_once_more(make):
    """The coordinator has gone on without their node: that is more than the restart that helps against an exit."""
    world = make()
    world.job.lose("node-b")
    world.find("worker exited", WORKER, since=world.clock.now() - 0.5)
    world.run(12)
    assert world.sent == []
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED
