"""Two elastic jobs of paper on one node: who takes whose worker when one is lost, and who gets it back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from eagle_eye.clock import FakeClock
from eagle_eye.errors import ControlError
from eagle_eye.ledger import Ledger, Throughput, TransitionCost
from eagle_eye.plugins import available, build, load
from eagle_eye.types import Entity, IncidentState, Kind, Mode
from fakes.fake_commander import FakeCommander
from fakes.fake_elastic_job import ElasticJob, commands
from fakes.live_cluster import Cluster
from fakes.synthetic_job import incident
from remediation.engine.engine import Engine
from remediation.engine.execution import at_once
from remediation.policy.engine_settings import EngineSettings


@pytest.fixture
def make(ledger_path: Path) -> Iterator[Callable[..., Cluster]]:
    ledger = Ledger.open(ledger_path)
    yield lambda mode=Mode.AUTO, **policy: Cluster(ledger, mode, **policy)
    ledger.close()


def alone(ledger: Ledger, declared: dict[str, int], **policy: float) -> tuple[ElasticJob, Engine, FakeCommander, Callable[[float], None]]:
    """One job, the engine, what it sent, and a function that lets seconds pass."""
    clock = FakeClock()
    job = ElasticJob(clock=clock, name="t/gpt/g1", declared=declared)
    commander = FakeCommander(answers=commands(job))
    services = {"commander": commander, "clock": clock, "ledger": ledger}
    actions = {name: build(load("remediation.actions", name), {}, services) for name in available("remediation.actions")}
    engine = Engine(ledger=ledger, actions=actions, guards=[], clock=clock, settings=EngineSettings(mode=Mode.AUTO, **policy), start=at_once)
    engine.resume()

    def run(seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            clock.advance(0.1)
            for snapshot in job.advance(0.0):
                engine.receive_snapshot(snapshot)
            engine.declare_job(job.name, heal="in-place", budget_left=100, demand=job.demand)
            engine.tick()

    return job, engine, commander, run


# --- nothing is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("self_heals", [True, False])
@pytest.mark.parametrize("cause", ["python hang", "cuda error"])
def test_a_bug_of_rank_0_that_hits_whoever_has_that_rank_evicts_nobody(ledger, cause, self_heals):
    """An elastic worker that is started again has the rank that it had: that it fails again shows nothing against its node."""
    job, engine, commander, run = alone(ledger, {"n1": 2, "n2": 2, "n3": 2})
    job.epoch = 2
    run(8)
    for number in range(4):
        rank0 = job.layout.placements[0].worker
        job.stalled = True
        engine.receive_incidents([incident(job, cause, Entity(kind=Kind.WORKER, name=rank0), name=f"i{number}")])
        run(0.5)
        if self_heals:
            job.stalled = False
            job._next("stall")
        run(40)
    assert [sent.arguments["exclude"] for sent in commander.sent if sent.action == "restart" and sent.arguments["exclude"]] == []
    assert ledger.cordoned() == ()


# --- a broken node -----------------------------------------------------------------------------------------------------


def test_a_node_that_is_left_out_in_place_costs_what_was_foretold_and_says_nothing_about_restarts(ledger: Ledger):
    job, engine, commander, run = alone(ledger, {"n1": 2, "n2": 2}, downtime_s=40.0, regroup_s=0.5)
    run(8)
    engine.receive_incidents([incident(job, "gpu fault", Entity(kind=Kind.NODE, name="n2"))])
    run(40)
    (sent,) = [each for each in commander.sent if each.action == "restart"]
    assert sent.arguments["exclude"] == ["n2"]
    plan = next(plan for plan in ledger.plans(incident="i1") if plan.action == "evict_node")
    outcome = ledger.outcome(plan.id)
    assert outcome is not None
    assert (plan.cost, outcome.predicted["downtime_s"]) == (pytest.approx(4 * 0.5), 0.5)
    assert outcome.state == "done"
    assert outcome.actual["downtime_s"] < 0.5
    assert not engine._state.job(job.name).downtimes, "nothing was restarted"
    assert [cordon.node for cordon in ledger.cordoned()] == ["n2"]


# --- a loss ------------------------------------------------------------------------------------------------------------


def test_a_worker_of_the_lighter_job_takes_the_place_of_the_dead_one(make):
    world = make()
    world.kill(world.heavy)
    world.run(20)
    assert world.sent == [("resize", "t/light/l1", {"n1": 2}), ("resize", "t/heavy/h1", {"n1": 3})]
    assert world.state() is IncidentState.HEALED
    assert (len(world.heavy.layout.placements), len(world.light.layout.placements)) == (3, 2)


def test_every_alternative_is_told_with_its_price_and_why_it_lost(make):
    world = make()
    world.kill(world.heavy)
    world.run(3)
    plan = world.plan()
    assert not plan.own
    assert plan.benefit > 0
    lost = {loser.action: loser for loser in plan.alternatives}
    assert {"nothing", "wait", "restart_worker", "rebalance"} <= set(lost)
    assert lost["nothing"].cost == pytest.approx(plan.cost + plan.benefit)
    assert lost["restart_worker"].cost > plan.cost
    assert "more" in lost["nothing"].why
    assert lost["rebalance"].cost is None


def test_the_waf_of_both_layouts_is_foretold_and_measured(make):
    world = make()
    world.kill(world.heavy)
    world.run(20)
    outcome = world.outcome(world.plan())
    assert outcome.state == "done"
    told = {name: value for name, value in outcome.predicted.items() if name.startswith("waf")}
    assert told == {"waf_before": pytest.approx(12.0, rel=0.02), "waf_left": pytest.approx(9.0, rel=0.02), "waf": pytest.approx(11.0, rel=0.02)}
    for name, value in told.items():
        assert outcome.actual[name] == pytest.approx(value, rel=0.1), name


def test_the_heavier_job_gives_nothing_to_the_lighter_one(make):
    world = make()
    world.kill(world.light)
    world.run(20)
    assert world.sent == []
    assert world.state() is IncidentState.HEALED
    own = world.plan("heal_in_place")
    assert own.own
    taken = next(loser for loser in own.alternatives if loser.action == "resize")
    assert taken.cost is not None
    assert taken.cost > own.cost


def test_a_replacement_that_comes_by_itself_needs_no_plan(make):
    world = make()
    world.heavy.respawns = True
    world.kill(world.heavy)
    world.run(20)
    assert world.sent == []
    assert world.state() is IncidentState.HEALED


def test_a_job_that_goes_on_without_a_worker_and_then_takes_it_back_has_healed_itself_once(make):
    world = make(debounce_s=30.0, debounce_max_s=30.0)
    world.kill(world.heavy)
    world.run(5)
    assert world.outcome(world.plan("heal_in_place")).state == "done", "verified while something more might be done"
    world.heavy.workers_per_node = {"n1": 3}
    world.heavy._next("join")
    world.run(40)
    assert [(each.action, each.state) for each in world.ledger.outcomes(incident="i1")] == [("heal_in_place", "done")]
    assert [step.step for step in world.ledger.progress(world.plan("heal_in_place").id) if step.state == "done"] == ["epoch 2"]
    assert world.state() is IncidentState.HEALED


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.RECOMMEND])
def test_what_reaches_beyond_the_job_is_ruled_by_the_mode(make, mode):
    world = make(mode)
    world.kill(world.heavy)
    world.run(10)
    assert world.sent == []
    assert world.plan().alternatives, "it is written down all the same"


def test_what_was_given_goes_back_when_the_taker_cannot_start_a_worker(make):
    world = make()
    world.heavy.refuses = True
    world.kill(world.heavy)
    world.run(20)
    assert world.sent == [("resize", "t/light/l1", {"n1": 2}), ("resize", "t/light/l1", {"n1": 3})]
    assert "given back" in world.outcome(world.plan()).detail
    assert world.outcome(world.plan()).state == "failed"
    assert [sent.action for sent in world.commander.sent if sent.action == "restart"] == []


# --- the way back --------------------------------------------------------------------------------------------------------


def test_a_repaired_worker_restores_the_first_layout(make):
    world = make()
    world.kill(world.heavy)
    world.run(20)
    assert world.engine.release("n1", "ada") == {"node": "n1", "jobs": ["t/heavy/h1", "t/light/l1"]}
    world.run(10)
    assert world.sent[2:] == [("resize", "t/light/l1", {"n1": 3})]
    assert (world.heavy.workers_per_node, world.light.workers_per_node) == ({"n1": 3}, {"n1": 3})
    back = next(plan for plan in world.ledger.plans(incident="i1") if plan.action == "resize" and plan.undoes)
    assert back.undoes == next(plan for plan in world.ledger.plans(incident="i1") if plan.action == "resize" and not plan.undoes).id
    outcome = world.outcome(back)
    assert outcome.predicted["waf"] == pytest.approx(12.0, rel=0.02)
    assert outcome.actual["waf"] == pytest.approx(12.0, rel=0.1)


def test_a_node_where_nothing_is_missing_is_not_released(make):
    world = make()
    with pytest.raises(ControlError, match="no elastic job lacks a worker there"):
        world.engine.release("n1", "ada")


# --- precomputed plans --------------------------------------------------------------------------------------------------------


def test_a_table_of_answers_stands_ready_and_is_made_anew_when_something_changes(make):
    world = make()
    table = world.engine.precomputed_plans.renew()
    assert {(plan.event, plan.of.split("/")[1] if plan.of else "") for plan in table} == {("worker lost", "heavy"), ("worker lost", "light"), ("node lost", "")}
    heavy = next(plan for plan in table if plan.of == world.heavy.name)
    assert heavy.workers_per_node == {"t/light/l1": {"n1": 2}, "t/heavy/h1": {"n1": 3}}
    assert heavy.allowed
    assert heavy.epochs == {world.heavy.name: 1, world.light.name: 1}
    assert world.engine.precomputed_plans.renew() is None
    world.heavy.weight = 0.5
    world.run(0.1)
    assert world.engine.precomputed_plans.renew() is not None


def test_a_plan_that_was_spent_by_the_coordinator_is_carried_out_without_waiting(make):
    world = make()
    world.engine.precomputed_plans.renew()
    world.heavy.standing_plan = next(plan.id for plan in world.engine.precomputed_plans.plans if plan.of == world.heavy.name)
    world.kill(world.heavy)
    world.run(0.3)
    assert [job for _, job, _ in world.sent] == ["t/light/l1", "t/heavy/h1"]


def test_in_observe_mode_nothing_stands_ready(make):
    world = make(Mode.OBSERVE)
    heavy = next(plan for plan in world.engine.precomputed_plans.renew() if plan.of == world.heavy.name)
    assert not heavy.allowed
    assert "observe" in heavy.why


# --- what was learned ---------------------------------------------------------------------------------------------------------


def test_what_transitions_took_and_jobs_reached_goes_back_into_the_model(make):
    world = make()
    world.kill(world.heavy)
    world.run(20)
    costs = {(cost.job, cost.name): cost.seconds for cost in world.engine.transition_costs()}
    assert costs["t/heavy", "regroup_s"] == pytest.approx(0.04)
    assert {(each.job, each.workers) for each in world.engine.measured_throughputs()} >= {("t/heavy", 3), ("t/light", 3)}
    assert all(each.steps_per_s for each in world.engine.measured_throughputs())


def test_the_next_leader_plans_with_what_earlier_runs_reached(make, ledger_path):
    ledger = Ledger.open(ledger_path)
    ledger.save_throughputs((Throughput(job="t/heavy", workers=2, steps_per_s=5.0, time=1.0),))  # as fast as with three
    ledger.save_transition_costs((TransitionCost(job="t/heavy", name="start_s", seconds=2.0, time=1.0),))
    ledger.close()
    world = make()
    world.kill(world.heavy)
    world.run(20)
    assert world.sent == [], "a third worker brought nothing"


# --- stragglers ----------------------------------------------------------------------------------------------------------------


def test_micro_batches_move_away_from_a_straggler_and_back_when_it_is_well(make):
    world = make()
    slow = Entity(kind=Kind.WORKER, name=world.heavy.layout.workers[1])
    world.heavy.speeds = {slow.name: 0.5}
    world.run(4)
    found = incident(world.heavy, "slow worker", slow)
    world.engine.receive_incidents([found])
    world.run(20)
    sent = [each for each in world.commander.sent if each.action == "rebalance"]
    assert len(sent) == 1
    assert sent[0].arguments["shares"][slow.name] == pytest.approx(0.5, rel=0.1)
    assert world.state() is IncidentState.HEALED
    world.heavy.speeds = {}
    world.engine.receive_incidents([incident(world.heavy, "slow worker", slow, active=False, revision=2)])
    world.run(2)
    assert [each.arguments["shares"] for each in world.commander.sent if each.action == "rebalance"][1:] == [{}]


# --- a reason that is gone -------------------------------------------------------------------------------------------------------


def test_what_was_given_goes_back_when_the_incident_ends_before_it_is_taken(make):
    world = make()
    world.kill(world.heavy)
    found = world.engine._state.incidents["i1"].incident
    resize = world.light.resize

    def and_another_incident_explains_it(sent):
        answer = resize(sent)
        if len(world.sent) == 0:
            world.engine.receive_incidents([replace(found, revision=2, active=False, culprits=())])
        return answer

    world.commander.answers["resize"] = lambda sent: and_another_incident_explains_it(sent) if sent.job == world.light.name else world.heavy.resize(sent)
    world.run(20)
    assert world.sent == [("resize", "t/light/l1", {"n1": 2}), ("resize", "t/light/l1", {"n1": 3})]
    assert world.light.workers_per_node == {"n1": 3}
    assert world.outcome(world.plan()).state == "stale"
    assert "another incident explains it" in world.outcome(world.plan()).detail


def test_an_operator_may_still_give_a_worker_to_a_job_that_runs_well_without_it(make):
    world = make(Mode.RECOMMEND)
    world.kill(world.heavy)
    world.run(30)
    assert world.engine.status()["waiting"] == [world.plan().id]


# --- the next leader -------------------------------------------------------------------------------------------------------------


def rebalanced(world: Cluster) -> Entity:
    slow = Entity(kind=Kind.WORKER, name=world.heavy.layout.workers[1])
    world.heavy.speeds = {slow.name: 0.5}
    world.run(4)
    world.engine.receive_incidents([incident(world.heavy, "slow worker", slow)])
    world.run(20)
    assert world.heavy.shares
    return slow


def shares_sent(world: Cluster) -> list[dict[str, float]]:
    return [each.arguments["shares"] for each in world.commander.sent if each.action == "rebalance"]


def test_a_straggler_that_recovers_under_the_next_leader_gets_its_micro_batches_back(make):
    world = make()
    slow = rebalanced(world)
    world.next_leader()
    world.run(5)
    assert len(shares_sent(world)) == 1, "it is slow still"
    world.heavy.speeds = {}
    world.engine.receive_incidents([incident(world.heavy, "slow worker", slow, active=False, revision=2)])
    world.run(2)
    assert shares_sent(world)[1:] == [{}]
    world.next_leader()
    world.run(5)
    assert len(shares_sent(world)) == 2, "once"


def test_a_straggler_that_recovered_between_two_leaders_gets_its_micro_batches_back(make):
    world = make()
    slow = rebalanced(world)
    world.heavy.speeds = {}
    world.ledger.save_incident(incident(world.heavy, "slow worker", slow, active=False, revision=2), IncidentState.HEALED)
    world.next_leader()
    world.run(5)
    assert shares_sent(world)[1:] == [{}]


def test_a_released_worker_is_given_back_by_the_next_leader(make):
    world = make()
    world.kill(world.heavy)
    world.run(20)
    world.engine.release("n1", "ada")
    world.next_leader()  # before the engine had a look
    world.run(10)
    assert world.sent[2:] == [("resize", "t/light/l1", {"n1": 3})]
    assert [outcome.state for outcome in world.ledger.outcomes() if outcome.action == "return_workers"] == ["done"]
    world.next_leader()
    world.run(10)
    assert len(world.sent) == 3


def test_a_node_that_nobody_released_gets_no_worker_from_the_next_leader(make):
    world = make()
    world.kill(world.heavy)
    world.run(20)
    world.next_leader()
    world.run(20)
    assert len(world.sent) == 2
