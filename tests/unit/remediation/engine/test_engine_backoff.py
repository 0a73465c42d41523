"""A job that keeps failing and waits between its restarts is left alone by the engine."""


import pytest

from eagle_eye.types import Entity, IncidentState, Kind, Severity

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")


@pytest.fixture
def make(make_world):
    return make_world


@pytest.mark.parametrize("cause", ["worker killed", "python hang", "job stalled", "node lost"])
def test_a_job_that_backs_off_is_left_to_itself(make, cause):
    world = make()
    world.job.stalled = True
    died = world.job.die(WORKER.name, heals=False)
    world.job.tell("restart.delayed", seconds="60", reason="death", kind="worker ended by SIGKILL", cause=died.id)
    world.run(1)
    world.find(cause, WORKER, event=died)
    world.run(58)
    assert [action for action in world.sent if action != "dump"] == []
    world.job._begin("death", cause=died.id)
    world.run(12)
    assert [action for action in world.sent if action != "dump"] == []
    assert world.state() is IncidentState.HEALED


def test_what_the_job_heals_after_a_back_off_is_written_down_though_nothing_is_found_any_more(make):
    world = make()
    died = world.job.die(WORKER.name, heals=False)
    world.job.tell("restart.delayed", seconds="30", cause=died.id)
    found = world.find("worker killed", WORKER, event=died)
    world.find("worker killed", WORKER, event=died, revision=2, active=False, since=found.since)
    world.run(29)
    world.job._begin("death", cause=died.id)
    world.run(12)
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


def test_a_coordinator_that_does_not_come_back_from_its_back_off_is_told_to_restart(make):
    world = make()
    died = world.job.die(WORKER.name, heals=False)
    world.job.tell("restart.delayed", seconds="8")
    world.find("worker killed", WORKER, event=died)
    world.run(17)
    assert world.sent == []
    world.run(4)
    assert world.sent == ["restart"]


def test_broken_hardware_is_evicted_while_the_job_backs_off(make):
    world = make()
    died = world.job.die(WORKER.name, heals=False)
    world.job.tell("restart.delayed", seconds="60")
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=died)
    world.run(20)
    assert [sent.arguments["exclude"] for sent in world.commander.sent] == [["node-b"]]


def test_a_repair_under_verification_does_not_fail_because_the_job_backs_off_for_another_fault(make):
    world = make()
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(1)
    assert world.sent == ["dump", "restart"]
    world.job.stalled = True
    world.job.tell("restart.delayed", seconds="60")
    world.run(58)
    assert world.outcome("restart_worker").state == "intended"
    world.job._begin("death")
    world.run(10)
    assert world.outcomes()[-1] == ("restart_worker", "done")


@pytest.mark.parametrize("times", [2, 4])
def test_a_worker_that_is_killed_again_and_again_costs_no_node(make, times):
    world = make()
    for number in range(times):
        died = world.job.die(WORKER.name)
        world.find("worker killed", WORKER, event=died, name=f"i{number}")
        world.run(3)
    world.run(60)
    assert world.sent == []
    assert world.ledger.cordoned() == ()
