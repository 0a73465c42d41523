"""Running jobs as the planner sees them: T as measured, who changes jobs after each next event, and what it is worth."""

import numpy as np
import pytest

from eagle_eye.types import Demand
from remediation.live.event_responses import event_responses
from remediation.live.live_cluster import LiveCluster, LiveJob
from remediation.live.live_decision import DecisionInputs, decide_live
from remediation.live.worker_placement import plan_moves
from remediation.planner.decision.decision import AlternativeKind

DAY = 86_400.0


def job(name, weight=1.0, declared=None, workers_per_node=None, measured=None, workers_min=1, **more):
    declared = declared or {"n1": 3}
    demand = Demand(declared=declared, workers_per_node=declared if workers_per_node is None else workers_per_node, weight=weight, workers_min=workers_min)
    return LiveJob(name=name, epoch=2, demand=demand, measured=measured or {}, **{"regroup_s": 0.05, "start_s": 1.0, **more})


def cluster(*jobs, **more):
    return LiveCluster(jobs=jobs, worker_mtbf_s=1e8, **more)


def inputs(**more):
    return DecisionInputs(**{"repair_s": DAY, "restart_s": 5.0, "checkpoint_age_s": 60.0, "speeds": {}, **more})


def two(weight=3.0, **workers_per_node):
    return cluster(job("heavy", weight, workers_per_node=workers_per_node.get("heavy")), job("light", workers_per_node=workers_per_node.get("light")))


# --- T ---------------------------------------------------------------------------------------------------------------


def test_a_job_on_all_the_workers_it_asked_for_makes_as_many_worker_seconds_a_second():
    measured = job("gpt", measured={3: 12.0, 2: 9.0})
    np.testing.assert_allclose(measured.table, [0, 1.125, 2.25, 3.0])
    assert measured.waf(3) == pytest.approx(3.0)
    assert job("gpt", weight=2.0, measured={3: 12.0}).waf(2) == pytest.approx(4.0)


def test_what_was_never_run_is_the_linear_share_and_said_so():
    known = job("gpt", measured={3: 12.0})
    assert known.steps_per_s(1) == pytest.approx(4.0)
    assert known.source(3) == "measured on 3"
    assert "linear share" in known.source(1)
    assert "nothing is measured" in job("gpt").source(1)


def test_below_its_minimum_a_job_makes_nothing():
    assert job("gpt", workers_min=2).waf(1) == 0


# --- the one-event table -----------------------------------------------------------------------------------------------


def answer(of, event="worker lost", job="", node="n1"):
    return next(each for each in event_responses(of) if (each.event, each.of, each.node) == (event, job, node))


def test_the_light_job_gives_a_worker_when_the_heavy_one_loses_one_and_not_the_other_way_round():
    hit = answer(two(), job="heavy")
    assert hit.workers == {"heavy": 3, "light": 2}
    assert hit.moves.donors == ("light",)
    assert hit.moves.placement == {"light": {"n1": 2}, "heavy": {"n1": 3}}
    assert list(hit.moves.placement) == ["light", "heavy"]
    assert hit.waf > hit.waf_as_left
    assert answer(two(), job="light").moves.placement == {}


def test_a_worker_that_returns_restores_the_first_layout():
    after = two(light={"n1": 2})
    back = answer(after, event="worker returned")
    assert back.workers == {"heavy": 3, "light": 3}
    assert back.moves.placement == {"light": {"n1": 3}}


def test_a_lost_node_is_made_up_for_on_the_other_and_its_return_restores_both():
    heavy = job("heavy", 3.0, declared={"n1": 1, "n2": 2})
    light = job("light", declared={"n1": 2, "n2": 1})
    lost = answer(cluster(heavy, light), event="node lost", node="n2")
    assert lost.workers == {"heavy": 2, "light": 1}, "light keeps its minimum"
    grown = cluster(job("heavy", 3.0, declared={"n1": 1, "n2": 2}, workers_per_node={"n1": 2, "n2": 2}), job("light", declared={"n1": 2, "n2": 1}, workers_per_node={"n1": 1, "n2": 1}))
    restored = plan_moves(grown, {"heavy": 3, "light": 3})
    assert restored.placement == {"heavy": {"n1": 1}, "light": {"n1": 2}}


def test_nobody_takes_a_worker_on_a_node_where_it_has_no_launcher():
    far = cluster(job("heavy", 3.0, declared={"n1": 3}, workers_per_node={"n1": 2}), job("light", declared={"n2": 3}))
    assert plan_moves(far, {"heavy": 3, "light": 2}).placement == {}


def test_a_job_never_gets_more_than_it_asked_for():
    assert answer(two(weight=100.0), job="light").workers == {"heavy": 3, "light": 2}


# --- the choice ----------------------------------------------------------------------------------------------------------


def test_a_worker_of_the_lighter_job_is_cheapest_and_every_loser_has_its_price():
    left = two(heavy={"n1": 2})
    choice = decide_live(left, left.jobs[0], inputs())
    assert choice.kind is AlternativeKind.SPARE
    assert choice.moves is not None
    assert choice.moves.placement == {"light": {"n1": 2}, "heavy": {"n1": 3}}
    losers = {loser.action: loser for loser in choice.alternatives}
    assert {"nothing", "wait", "restart_worker", "rebalance"} <= set(losers)
    assert losers["nothing"].cost > choice.cost
    assert losers["nothing"].benefit == 0
    assert losers["rebalance"].cost is None, "not possible"
    assert all(loser.why for loser in choice.alternatives)
    # by hand: light makes 1 less for a day; heavy makes 3 · 1 less for 1 s of start and stands for two regroupings
    assert choice.cost == pytest.approx(DAY * 1.0 + 3 * 1.0 * 1.0 + 3 * 3 * 2 * 0.05 + 2 * 3 * 0.05, rel=1e-6)
    assert choice.waf == {"waf_left": pytest.approx(9.0), "waf": pytest.approx(11.0)}


def test_the_lighter_job_goes_on_with_less_and_the_price_of_taking_is_told():
    left = two(light={"n1": 2})
    choice = decide_live(left, left.jobs[1], inputs())
    assert choice.kind is AlternativeKind.NOTHING
    assert choice.moves is None
    taken = next(loser for loser in choice.alternatives if loser.action == "resize")
    assert taken.cost is not None
    assert taken.cost > choice.cost


def test_a_worker_that_would_be_back_at_once_is_not_worth_a_change():
    left = two(heavy={"n1": 2})
    assert decide_live(left, left.jobs[0], inputs(repair_s=0.5)).kind is AlternativeKind.NOTHING


def test_what_was_measured_decides():
    """Two workers of the heavy job reach what three do: a third is worth nothing to it."""
    left = cluster(job("heavy", 3.0, workers_per_node={"n1": 2}, measured={3: 10.0, 2: 10.0}), job("light", measured={3: 10.0}))
    assert decide_live(left, left.jobs[0], inputs()).kind is AlternativeKind.NOTHING


def test_micro_batches_move_away_from_a_straggler_at_no_downtime():
    slow = two()
    choice = decide_live(slow, slow.jobs[0], inputs(speeds={"run/n1/1": 0.5}))
    assert (choice.kind, choice.action) == (AlternativeKind.REBALANCE, "rebalance")
    assert choice.waf["waf"] > choice.waf["waf_left"]
