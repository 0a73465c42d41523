"""What the next leader finds: nothing that was done is sent again, nothing that was begun stays so for ever."""

import pytest

from eagle_eye.errors import TemporaryError
from eagle_eye.types import Entity, IncidentState, JobSnapshot, Kind, Mode, Outcome, Progress, Severity
from fakes.synthetic_job import incident
from remediation.engine import failover
from remediation.engine.failover import carried_out

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")


def next_leader(world, *, forgetful: bool = True) -> None:
    """`forgetful`: the job's coordinator is a new one as well, and knows nothing of earlier commands."""
    if forgetful:
        world.commander._answered.clear()
    world.leads = True
    world.engine = world.new_engine()
    world.engine.resume()


def lose_the_lease_in(world, action: str) -> None:
    """The command is carried out and answered, and then the leader dies."""
    answer = world.commander.answers[action]

    def and_the_leader_dies(sent):
        world.leads = False
        return answer(sent)

    world.commander.answers[action] = and_the_leader_dies


def test_a_release_that_is_recorded_as_done_is_not_sent_again(make_world):
    world = make_world()
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(12)
    lose_the_lease_in(world, "release")
    world.engine.release("node-b", "ada")
    world.run(1)
    next_leader(world)
    epoch = world.job.epoch
    world.run(20)
    assert world.sent.count("release") == 1
    assert world.job.epoch == epoch, "the job was not restarted once more"
    assert [outcome.state for outcome in world.ledger.outcomes() if outcome.action == "release"] == ["done"]


def test_a_release_that_was_not_sent_is_sent_by_the_next_leader(make_world):
    world = make_world()
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(12)
    world.leads = False
    world.engine.release("node-b", "ada")
    next_leader(world)
    world.run(5)
    assert world.sent.count("release") == 1


def test_a_repair_that_is_recorded_as_done_is_verified_and_not_sent_again(make_world):
    world = make_world()
    world.job.stalled = True
    world.find("worker stopped", WORKER)
    world.run(0.1)
    assert world.sent == ["reattempt"]
    next_leader(world)
    world.run(20)
    assert world.sent == ["reattempt"]
    assert world.outcomes() == [("reattempt", "done")]
    assert world.state() is IncidentState.HEALED


def test_a_repair_that_is_recorded_as_done_may_still_fail(make_world):
    world = make_world()
    world.job.stalled, world.job.resumed = True, False
    world.find("worker stopped", WORKER)
    world.run(0.1)
    next_leader(world)
    world.run(20)
    assert world.sent == ["reattempt", "restart"]
    assert world.outcomes() == [("reattempt", "failed"), ("restart_worker", "done")]


def test_what_a_job_did_to_itself_is_verified_by_the_next_leader(make_world):
    world = make_world()
    world.find("worker killed", WORKER, event=world.job.die(WORKER.name))
    world.run(0.5)
    next_leader(world)
    world.run(15)
    assert world.sent == []
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_half_done_eviction_is_completed(make_world, forgetful):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    lose_the_lease_in(world, "restart")
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(5)
    next_leader(world, forgetful=forgetful)
    world.run(15)
    assert world.sent == ["restart"]
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]


def storm(world, count: int) -> None:
    """Incidents about which nothing is done; of each the plan and the outcome that say so."""
    for number in range(count):
        name = f"s{number}"
        world.find("kernel error", Entity(kind=Kind.NODE, name=f"node-{number}"), severity=Severity.INFO, name=name)


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_repair_under_way_is_found_however_much_came_after_it(make_world, monkeypatch, forgetful):
    monkeypatch.setattr(failover, "LIMIT", 5)
    world = make_world(restart_success_share=0.0, rank_swap=False)
    answer = world.commander.answers["restart"]
    lose_the_lease_in(world, "restart")
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(5)
    world.commander.answers["restart"] = answer
    storm(world, 10)
    next_leader(world, forgetful=forgetful)
    world.run(15)
    assert world.sent == ["restart"]
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]
    assert world.ledger.begun() == ()


@pytest.mark.parametrize(("step", "state"), [("intended", "stale"), ("done", "done")])
def test_nothing_stays_intended_under_an_incident_that_has_ended(make_world, step, state):
    world = make_world(Mode.RECOMMEND)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(20)
    [plan] = [plan for plan in world.ledger.plans(incident="i1") if plan.action == "evict_node"]
    told = [Progress(step=name, state="intended", time=1.0) for name in ("restart j", "cordon node-b")]
    for each in told:
        world.ledger.record_intent(plan, each)
    if step == "done":
        for each in told:
            world.ledger.record_result(plan, Progress(step=each.step, state="done", time=2.0))
    world.ledger.save_outcome(Outcome(plan=plan.id, incident="i1", action="evict_node", state="intended", time=world.clock.now() - 7200.0))
    world.ledger.move_incident("i1", IncidentState.CLOSED, world.clock.now())
    next_leader(world)
    world.run(5)
    assert world.ledger.outcome(plan.id).state == state
    assert world.sent == []


def test_of_two_plans_of_an_incident_the_newer_one_goes_on(make_world):
    world = make_world(verify_s=60.0)
    restart = world.commander.answers["restart"]
    world.commander.answers["restart"] = TemporaryError("no session", delay=0.5)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=world.job.die(WORKER.name))
    world.run(1.3)
    assert world.outcomes() == [("restart_worker", "intended"), ("evict_node", "intended")]
    world.commander.answers["restart"] = restart
    next_leader(world)
    world.run(15)
    assert world.outcomes() == [("restart_worker", "done"), ("evict_node", "done")]
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]


def test_a_plan_is_carried_out_when_each_of_its_steps_is_done(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(5)
    [plan] = [plan for plan in world.ledger.plans(incident="i1") if plan.action == "evict_node"]
    progress = world.ledger.progress(plan.id)
    assert [step.state for step in progress] == ["intended", "done", "intended", "done"]
    assert carried_out(plan, progress)
    assert not any(carried_out(plan, progress[:end]) for end in range(4)), "the cordon is part of it"


def run(world, seconds: float) -> list[JobSnapshot]:
    """As `world.run`; returns the snapshots, which the next leader reads once more."""
    told = []
    for _ in range(round(seconds * 10)):
        fresh = world.job.advance(0.1)
        for snapshot in fresh:
            world.engine.receive_snapshot(snapshot)
        world.engine.tick()
        told += fresh
    return told


def test_the_start_of_a_job_heals_no_fault_that_was_read_before_it(make_world):
    """A server that is behind reads the incident and the job's first snapshot in one go, the incident first."""
    world = make_world()
    world.job.stalled = True
    world.job.tell("epoch.started", epoch="1", reason="start", budget_left="3")
    world.engine = world.new_engine()
    world.find("worker stopped", WORKER)
    world.run(20)
    assert world.sent == ["reattempt"], "the worker is continued"
    assert world.outcomes() == [("reattempt", "done")]


def test_an_epoch_from_before_the_fault_heals_nothing_that_the_leader_before_left_open(make_world):
    world = make_world()
    world.find("worker killed", WORKER, event=world.job.die(WORKER.name))
    told = run(world, 15)
    assert world.state() is IncidentState.HEALED
    world.job.stalled = True
    hang = incident(world.job, "python hang", Entity(kind=Kind.WORKER, name="run1/node-a/1"), name="i2")
    world.ledger.save_incident(hang, IncidentState.OPEN)  # all that the leader came to before it was killed
    next_leader(world)
    for snapshot in told:
        world.engine.replay_snapshot(snapshot)
    world.run(20)
    assert world.sent == ["dump", "restart"]
    assert sorted(world.outcomes("i2")) == [("dump", "done"), ("restart_worker", "done")]
    assert world.state("i2") is IncidentState.HEALED
