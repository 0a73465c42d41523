"""An action that does not help: noticed in the predicted time, undone, its breaker opened, a person told."""

import pytest

from eagle_eye.errors import PermanentError, TemporaryError
from eagle_eye.rpc.control_messages import BreakerCommand
from eagle_eye.types import Breaker, Entity, IncidentState, Kind, Mode, Refuse, Severity

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")
HOOK = "http://127.0.0.1:9/hook"


@pytest.fixture
def world(make_world):
    """Slow wherever it runs; a restart has no hope, so that leaving the node is weighed first."""
    world = make_world(restart_success_share=0.0, rank_swap=False, verify_s=10.0, receiver=HOOK)
    world.job.slow = lambda nodes: 6.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    return world


def breakers(world) -> tuple[Breaker, ...]:
    return world.ledger.breakers(at=world.clock.now())


def letters(world, incident="i1") -> list[str]:
    plans = sorted(world.ledger.plans(incident=incident), key=lambda plan: plan.made)
    return [plan.reason for plan in plans if plan.action == "notify"]


def test_a_slow_down_that_survives_the_node_lets_the_node_in_again(world):
    world.run(40)
    assert world.sent == ["restart", "release"]
    assert world.job.excluded == ()
    assert world.ledger.cordoned() == ()
    assert world.outcomes()[:2] == [("evict_node", "failed"), ("undo", "done")]
    assert world.state() is IncidentState.FAILED


def test_the_undoing_is_written_step_by_step_like_any_other_action(world):
    world.run(40)
    undo = next(plan for plan in world.ledger.plans(incident="i1") if plan.action == "undo")
    left = next(plan for plan in world.ledger.plans(incident="i1") if plan.action == "evict_node")
    assert undo.undoes == left.id
    steps = [(step.step, step.state) for step in world.ledger.progress(undo.id)]
    lift, release = "lift the cordon of node-b", f"release node-b {world.job.name}"
    assert steps == [(lift, "intended"), (lift, "done"), (release, "intended"), (release, "done")]


def test_what_was_predicted_stands_in_the_ledger_before_the_action_and_beside_what_came_of_it(world):
    world.run(4.0)
    early = world.outcome("evict_node")
    assert early.state == "intended"
    assert early.predicted["throughput_per_s"] == pytest.approx(2048 / 0.2 / 2, rel=0.05)
    assert {"downtime_s", "verify_s", "loss", "loss_high"} <= set(early.predicted)
    world.run(36)
    late = world.outcome("evict_node")
    assert late.predicted == early.predicted
    assert late.actual["throughput_per_s"] < 0.5 * late.predicted["throughput_per_s"]
    assert late.actual["verify_s"] >= late.predicted["verify_s"]
    assert "without node-b the fault stays" in late.detail


def test_its_breaker_opens_and_a_person_is_told_how_to_close_it(world):
    world.run(40)
    [breaker] = breakers(world)
    assert (breaker.job, breaker.action, breaker.incident) == (world.job.name, "evict_node", "i1")
    assert "of the throughput expected of 2 workers" in breaker.reason
    told = [letter for letter in letters(world) if "did not help" in letter]
    assert len(told) == 1
    assert f"eagle-eye breaker close {breaker.id}" in told[0]
    assert "undone: node-b is released" in letters(world)


def test_later_plans_are_refused_with_the_breakers_reason_until_a_person_closes_it(world):
    world.run(40)
    [breaker] = breakers(world)
    other = Entity(kind=Kind.NODE, name="node-a")
    world.find("slow node", other, name="i2", since=world.clock.now() - 6)
    world.run(20)
    assert world.sent == ["restart", "release"]
    said = [kept.verdict for kept in world.ledger.verdicts(incident="i2") if isinstance(kept.verdict, Refuse)]
    assert [verdict.guard for verdict in said] == ["breaker"]
    assert breaker.reason in said[0].reason
    assert any("refused: breaker" in letter for letter in letters(world, "i2"))
    assert world.engine.guard_counts()["breaker", "refuse"] == 1
    world.engine.order(BreakerCommand(id=breaker.id[:8], person="ada"))
    assert breakers(world) == ()
    assert world.ledger.breakers()[0].person == "ada"
    world.run(5)
    assert world.sent == ["restart", "release", "restart"]
    assert world.commander.sent[-1].arguments["exclude"] == ["node-a"]


def test_a_slow_down_that_nobody_repairs_is_not_learned_as_healthy(make_world):
    world = make_world(Mode.OBSERVE)
    world.job.slow = lambda nodes: 6.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 8)
    world.run(60)
    assert world.engine._state.job(world.job.name).expected(4) == pytest.approx(2048 / 0.2, rel=0.05)


def test_an_action_that_helps_opens_nothing_and_undoes_nothing(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False, verify_s=10.0)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(40)
    assert world.outcomes() == [("evict_node", "done")]
    assert world.sent == ["restart"]
    assert breakers(world) == ()


def test_a_weaker_action_that_does_not_help_says_that_it_cannot_be_undone_and_a_stronger_one_follows(make_world):
    world = make_world(verify_s=10.0)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(60)
    assert world.outcomes() == [("restart_worker", "failed"), ("evict_node", "done")]
    assert "a restart cannot be undone" in world.outcome("restart_worker").detail
    assert breakers(world) == ()


def test_a_weak_action_is_not_tried_for_ever(make_world):
    world = make_world(verify_s=5.0, relapse_s=5.0, breaker_after={"restart_worker": 2})
    world.job.slow = lambda nodes: 1.6
    world.run(8)
    for number in range(3):
        world.find("slow worker", Entity(kind=Kind.WORKER, name=f"run1/node-{'ab'[number % 2]}/0"), name=f"i{number}", since=world.clock.now() - 4)
        world.run(20)
        if breakers(world):
            break
    assert number == 1
    [breaker] = breakers(world)
    assert breaker.action == "restart_worker"
    assert breaker.reason.startswith("2 times")


def test_a_broken_part_stays_out_whatever_else_is_wrong(make_world):
    world = make_world(verify_s=5.0)
    died = world.job.die(WORKER.name)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=died)
    world.run(1.2)
    assert world.sent == ["restart"]
    world.job.stalled = True
    world.run(30)
    assert ("evict_node", "failed") in world.outcomes()
    assert "node-b stays out: ecc error was seen there" in world.outcome("evict_node").detail
    assert world.sent == ["restart"]
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]


def test_what_a_job_does_to_itself_is_neither_undone_nor_counted_nor_stopped_by_a_breaker(make_world):
    world = make_world(verify_s=5.0)
    name = world.job.name
    world.ledger.save_suppression(Breaker(id="b", job=name, action="restart_worker", plan="p", incident="i0", reason="50%", since=0.0))
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(10)
    assert world.sent == ["dump", "restart"]
    assert world.state() is IncidentState.HEALED
    world.job.lose("node-b")
    world.find("node lost", NODE, name="i2", severity=Severity.SEV1)
    world.job.stalled = True
    world.run(20)
    assert ("evict_node", "failed") in world.outcomes("i2")
    assert "stays out" not in world.outcome("evict_node", "i2").detail
    assert [breaker.id for breaker in breakers(world)] == ["b"]
    assert "release" not in world.sent


def test_a_repair_that_was_refused_opens_no_breaker(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False, breaker_after={"evict_node": 1})
    world.commander.answers["restart"] = PermanentError("too few nodes would be left")
    world.job.slow = lambda nodes: 6.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(20)
    assert ("evict_node", "failed") in world.outcomes()
    assert breakers(world) == ()


def test_a_repair_that_was_never_carried_out_is_not_counted_among_those_that_did_not_help(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False, verify_s=10.0, relapse_s=1.0, breaker_after={"evict_node": 2})
    restart = world.commander.answers["restart"]
    world.commander.answers["restart"] = PermanentError("too few nodes would be left")
    world.job.slow = lambda nodes: 6.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(10)
    world.commander.answers["restart"] = restart
    world.find("slow node", Entity(kind=Kind.NODE, name="node-a"), name="i2", since=world.clock.now() - 2)
    world.run(40)
    assert ("evict_node", "failed") in world.outcomes("i2")
    assert breakers(world) == ()


def test_a_node_that_another_plan_keeps_out_stays_cordoned(world):
    world.ledger.cordon("node-b", "tenant/other/run1", "another plan", world.clock.now(), "ecc error")
    world.run(40)
    assert world.outcome("undo").state == "done"
    assert [cordon.plan for cordon in world.ledger.cordoned()] == ["another plan"]


# --- a change of leaders -----------------------------------------------------------------------------------------------


def next_leader(world):
    world.leads = True
    world.engine = world.new_engine()
    world.engine.resume()


def test_the_next_leader_goes_on_with_an_undoing(world):
    release = world.commander.answers["release"]

    def lose_lease(_sent):
        world.leads = False
        raise TemporaryError("no answer", delay=0.5)

    world.commander.answers["release"] = lose_lease
    world.run(25)
    assert not world.leads
    assert world.job.excluded == ("node-b",)
    world.commander.answers["release"] = release
    next_leader(world)
    world.run(5)
    assert world.job.excluded == ()
    assert world.outcome("undo").state == "done"
    assert [breaker.action for breaker in breakers(world)] == ["evict_node"]


def test_a_new_leader_judges_by_what_the_old_one_predicted(world):
    world.run(6)
    assert world.sent == ["restart"]
    before = world.outcome("evict_node").predicted
    next_leader(world)
    world.run(30)
    outcome = world.outcome("evict_node")
    assert outcome.predicted == before
    assert outcome.state == "failed", "though this leader has never seen the job in good health"
    assert world.job.excluded == ()


def test_a_new_leader_knows_that_a_person_has_closed_the_breaker(world):
    world.run(40)
    world.engine.order(BreakerCommand(id=breakers(world)[0].id, person="ada"))
    next_leader(world)
    world.run(1)
    assert breakers(world) == ()
    assert [attempt for attempt in world.engine._state.history._attempts.values() if attempt.action == "evict_node"] == []


# --- the loss ----------------------------------------------------------------------------------------------------------


def test_a_loss_that_does_not_come_back_is_told_to_a_person_and_isolates_nobody(make_world):
    world = make_world(Mode.AUTO, verify_s=10.0, receiver=HOOK)
    world.job.loss = lambda step: 2.0 + 0.01 * (step % 7)
    world.run(8)
    died = world.job.die(WORKER.name)
    world.job.loss = lambda step: 5.0
    world.find("worker killed", WORKER, event=died)
    world.run(30)
    outcome = world.outcome("restart_worker")
    assert outcome.state == "failed"
    assert "the loss is 5, above the" in outcome.detail
    assert outcome.actual["loss"] == pytest.approx(5.0)
    assert outcome.predicted["loss_high"] < 3.0
    assert world.sent == []
    assert any("above the" in letter for letter in letters(world))


# --- the true reason ---------------------------------------------------------------------------------------------------


def test_too_few_new_steps_are_the_reason_that_is_given_whatever_the_throughput(make_world):
    world = make_world(verify_s=10.0)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.job._checkpoints[:] = [-2000]  # all that follows was done before
    world.job.checkpoint_every = 10**6
    world.run(4)
    world.job.slow = lambda nodes: 1.0
    world.run(60)
    outcome = world.outcome("restart_worker")
    assert outcome.state == "failed"
    assert outcome.detail.startswith(f"0 of 5 new steps within {outcome.predicted['verify_s']:g} s")


@pytest.mark.parametrize(("factor", "told"), [(1.2, "83% of what 4 workers did before"), (1.1121, "89% of what 4 workers did before")])
def test_a_throughput_that_is_too_low_is_told_beside_what_is_needed(make_world, factor, told):
    world = make_world(verify_s=10.0)
    world.find("worker killed", WORKER, event=world.job.die(WORKER.name))
    world.job.slow = lambda _nodes: factor
    world.run(40)
    detail = world.outcome("restart_worker").detail
    assert detail.startswith(told)
    assert "90% is needed" in detail


# --- a fault that moves ------------------------------------------------------------------------------------------------

OTHER = Entity(kind=Kind.WORKER, name="run1/node-a/0")


def test_a_hang_that_moves_to_another_worker_was_not_healed_by_the_restart(make_world):
    world = make_world()
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(1.5)
    world.job.stalled = True
    world.find("python hang", OTHER, name="i2")
    world.run(15)
    outcome = world.outcome("restart_worker")
    assert (outcome.state, outcome.detail) == ("failed", f"the fault moved to worker {OTHER.name}, as incident i2")
    assert world.state() is IncidentState.FAILED
    assert world.ledger.cordoned() == (), "it did not stay with a node: none is evicted"


def test_a_node_is_released_when_the_fault_moves_after_its_eviction(make_world):
    world = make_world(restart_success_share=0.0, rank_swap=False)
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(3)
    assert [cordon.node for cordon in world.ledger.cordoned()] == ["node-b"]
    world.find("slow node", Entity(kind=Kind.NODE, name="node-a"), name="i2")
    world.run(10)
    assert world.outcome("evict_node").detail == "the fault moved to node node-a, as incident i2; without node-b the fault stays: released"
    assert world.ledger.cordoned() == ()


def test_an_incident_that_names_another_culprit_after_the_action_is_not_healed_by_it(make_world):
    world = make_world()
    world.job.stalled = True
    found = world.find("python hang", WORKER)
    world.run(1.5)
    world.find("python hang", OTHER, revision=2, since=found.since)
    world.run(20)
    assert world.outcomes()[1] == ("restart_worker", "failed")
    assert f"the fault moved to worker {OTHER.name}" in {outcome.detail for outcome in world.ledger.outcomes(incident="i1")}
    assert world.ledger.cordoned() == ()


def test_a_second_worker_that_dies_meanwhile_is_another_death(make_world):
    world = make_world()
    world.find("worker killed", WORKER, event=world.job.die(WORKER.name))
    world.run(1)
    world.find("worker killed", OTHER, event=world.job.die(OTHER.name), name="i2")
    world.run(12)
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.outcomes("i2") == [("restart_worker", "done")]
    assert (world.state(), world.state("i2")) == (IncidentState.HEALED, IncidentState.HEALED)


def test_a_worker_that_is_seen_to_be_its_node_is_the_same_fault(make_world):
    world = make_world()
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    found = world.find("slow worker", WORKER, since=world.clock.now() - 6)
    world.run(3.2)
    assert world.sent == ["restart"]
    world.job.slow = lambda nodes: 1.0
    world.find("slow node", NODE, revision=2, since=found.since)
    world.run(15)
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED
