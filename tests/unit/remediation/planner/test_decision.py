"""A decision: the cheapest of all alternatives, never worse than doing nothing, and a reason for each that lost."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError
from remediation.planner.decision.checkpoint_interval import advise_interval, daly, overhead, young
from remediation.planner.decision.decision import (
    AlternativeKind,
    IncidentCase,
    PricedAlternative,
    TransitionCosts,
    decide,
)
from remediation.planner.pipelines.pipeline_reconfiguration import ReconfigurationProblem
from remediation.planner.pipelines.pipeline_template import PipelineStage, PipelineTemplate, iteration_time

DAY = 86400.0


def row(gpus: int, per_gpu: float = 1e14, step: int = 8) -> np.ndarray:
    values = np.arange(gpus + 1) * per_gpu
    values[np.arange(gpus + 1) % step != 0] = 0
    return values


def case(**changes) -> IncidentCase:
    given = {
        "task": "gpt", "gpus": 128, "gpus_per_node": 8, "healthy": 128e14, "iteration_s": 10.0, "repair_s": DAY, "replicas": 8, "stages": 2,
        "micro_batches": 16, "state_bytes": 1e11, "checkpoint_age_s": 900.0, "throughput": row(128),
    }  # fmt: skip
    return IncidentCase(**{**given, **changes})


def priced(case: IncidentCase, costs: TransitionCosts) -> dict[AlternativeKind, float]:
    """The prices once more, from the words of the docstring alone, without templates."""
    torn = costs.lost_iterations * case.iteration_s if case.lost or case.process_died else 0.0
    part = case.state_bytes / max(1.0, case.gpus / case.replicas / case.gpus_per_node) / costs.network_bytes_s
    kept = not case.lost or case.replicas > case.lost * hit(case)
    prices = {AlternativeKind.NOTHING: nothing_price(case, costs)} | restart_price(case, costs)
    if case.lost and kept:
        share = without(case, case.lost * hit(case)) * min(case.slow.values(), default=1)
        prices[AlternativeKind.REBALANCE] = price(case, costs.regroup_s, share, torn, costs.regroup_s + part)
    elif not case.lost and case.slow and case.replicas > 1:
        prices[AlternativeKind.REBALANCE] = price(case, 0, makespan_ratio(case, balanced=True), 0)
    if case.broken and kept and case.replicas > case.broken * hit(case):
        prices[AlternativeKind.SHRINK] = price(case, costs.regroup_s, without(case, case.broken * hit(case)), torn, costs.regroup_s + part)
    if case.broken and kept and case.spares >= case.broken:
        prices[AlternativeKind.SPARE] = price(case, costs.spare_start_s + costs.regroup_s + part, 1, torn, spares=case.broken)
    if case.broken:
        down = costs.spare_start_s + costs.regroup_s + part if kept else costs.restart_s + case.state_bytes / costs.storage_bytes_s
        prices[AlternativeKind.WAIT] = price(case, case.repair_s + down, 1, torn if kept else case.checkpoint_age_s)
    return prices


def price(case: IncidentCase, down: float, share: float, lost: float, back: float = 0.0, spares: int = 0) -> float:
    share = min(share, 1.0)
    seconds = down + (1 - share) * max(0.0, case.repair_s - down) + lost + share * back
    return case.weight * case.healthy * seconds + spares * case.spare_worth * case.repair_s


def without(case: IncidentCase, count: int) -> float:
    most = math.ceil(case.micro_batches * case.replicas / (case.replicas - count))
    return (case.micro_batches + case.stages - 1) / (most + case.stages - 1)


def hit(case: IncidentCase) -> int:
    """Whole pipelines in a node, or the one that it is part of."""
    return max(1, math.floor(case.gpus_per_node / (case.gpus / case.replicas)))


def nothing_price(case: IncidentCase, costs: TransitionCosts) -> float:
    if not (case.lost or case.process_died):
        return price(case, 0, makespan_ratio(case, balanced=False), 0)
    until = max(case.repair_s, costs.collective_timeout_s) if case.lost else case.repair_s
    return price(case, until + costs.restart_s + case.state_bytes / costs.storage_bytes_s, 1, case.checkpoint_age_s)


def restart_price(case: IncidentCase, costs: TransitionCosts) -> dict[AlternativeKind, float]:
    """Of re-layout and of restart."""
    prices = {}
    torn = costs.lost_iterations * case.iteration_s if case.lost or case.process_died else 0.0
    load, kept = case.state_bytes / costs.storage_bytes_s, not case.lost or case.replicas > case.lost * hit(case)
    best = max(range(case.healthy_gpus + 1), key=lambda count: case.throughput[count])
    if case.broken and case.throughput[best] > 0:
        moving = case.state_bytes * best / max(1, case.gpus // case.replicas) / (best / case.gpus_per_node) / costs.network_bytes_s
        down = costs.restart_s + (moving if kept else load)
        prices[AlternativeKind.RELAYOUT] = price(case, down, case.throughput[best] / case.healthy, torn if kept else case.checkpoint_age_s, down)
    taken = min(case.spares, case.broken)
    most = max(case.throughput[: case.healthy_gpus + taken * case.gpus_per_node + 1])
    down = costs.restart_s + load + (costs.spare_start_s if taken else 0)
    if taken == case.broken and (case.broken or case.process_died):
        prices[AlternativeKind.RESTART] = price(case, down, 1, case.checkpoint_age_s, 0, taken)
    elif case.broken and most > 0:
        prices[AlternativeKind.RESTART] = price(case, down, most / case.healthy, case.checkpoint_age_s, down, taken)
    return prices


def makespan_ratio(case: IncidentCase, *, balanced: bool) -> float:
    """Healthy over slowed makespan of equal pipelines, by trying every number of micro-batches."""
    speeds = [1.0] * case.replicas
    for index, speed in enumerate(np.repeat(sorted(case.slow.values()), hit(case)).tolist()):
        speeds[index % case.replicas] = min(speeds[index % case.replicas], speed)
    fill, total = case.stages - 1, case.micro_batches * case.replicas
    healthy = case.micro_batches + fill
    if not balanced or case.replicas < 2:
        return min(1.0, healthy / max((case.micro_batches + fill) / speed for speed in speeds))
    times = sorted((count + fill) / speed for speed in speeds for count in range(1, total + 1))
    enough = next(time for time in times if sum(done(time, speed, fill, total) for speed in speeds) >= total)
    return min(1.0, healthy / enough)


def done(time: float, speed: float, fill: int, total: int) -> float:
    """Micro-batches within the time; a pipeline that gets none at all rules the time out."""
    return max((count for count in range(1, total + 1) if (count + fill) / speed <= time * (1 + 1e-12)), default=-math.inf)


CASES = st.builds(
    lambda process_died, slow, **others: case(process_died=process_died and not slow, slow=slow, **others),
    healthy=st.floats(1e15, 2e16),
    weight=st.floats(0, 4),
    iteration_s=st.floats(0.1, 60),
    repair_s=st.floats(60, 10 * DAY),
    lost=st.integers(0, 3),
    slow=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0.05, 1), max_size=2),
    process_died=st.booleans(),
    spares=st.integers(0, 4),
    spare_worth=st.floats(0, 1e15),
    replicas=st.sampled_from([1, 2, 3, 4, 5, 32]),
    stages=st.integers(1, 4),
    micro_batches=st.integers(1, 4),
    state_bytes=st.floats(0, 1e13),
    checkpoint_age_s=st.floats(0, 7200),
)
COSTS = st.builds(TransitionCosts, restart_s=st.floats(0, 2000), regroup_s=st.floats(0, 5), lost_iterations=st.floats(0, 1))


@settings(max_examples=150, deadline=None)
@given(CASES, COSTS)
def test_the_choice_is_never_dearer_than_doing_nothing_nor_than_anything_else(case, costs):
    decided = decide(case, costs)
    wanted = priced(case, costs)
    rounding = 1e-12 * max(1.0, case.weight * case.healthy * case.repair_s)
    assert {one.kind for one in decided.options} == set(wanted)
    for one in decided.options:
        assert one.cost == pytest.approx(wanted[one.kind], rel=1e-9, abs=rounding)
        assert decided.best.cost <= one.cost
    assert set(decided.why_rejected) == set(AlternativeKind) - {decided.best.kind}
    assert all(why.endswith(".") for why in decided.why_rejected.values())


def test_a_slow_node_is_balanced_before_anybody_leaves_and_each_loser_says_why_with_numbers():
    decided = decide(case(slow={"node3": 0.7}))
    assert decided.best.kind is AlternativeKind.REBALANCE
    assert decided.best.downtime_s == 0
    assert "70.0% of the throughput afterwards against 94" in decided.why_rejected[AlternativeKind.NOTHING]
    assert "0 spares are free" in decided.why_rejected[AlternativeKind.SPARE]
    assert "86,4" in decided.why_rejected[AlternativeKind.WAIT]


def test_a_node_of_many_whole_pipelines_takes_them_all_along():
    shrink = next(one for one in decide(case(lost=1, replicas=128, stages=1, micro_batches=15)).options if one.kind is AlternativeKind.SHRINK)
    assert shrink.throughput / 128e14 == pytest.approx(15 / 16)  # 8 of 128 are gone
    assert shrink.gpus == 120


def test_a_spare_wins_unless_it_makes_more_elsewhere():
    assert decide(case(lost=1, spares=1)).best.kind is AlternativeKind.SPARE
    assert decide(case(lost=1, spares=1, spare_worth=16e14)).best.kind is AlternativeKind.RELAYOUT


def test_a_short_repair_is_waited_for_and_a_dead_process_restarts():
    assert decide(case(lost=1, repair_s=5.0, throughput=None, replicas=2)).best.kind in (AlternativeKind.WAIT, AlternativeKind.REBALANCE)
    assert decide(case(process_died=True)).best.kind is AlternativeKind.RESTART


def test_a_job_whose_state_died_goes_back_to_the_checkpoint():
    decided = decide(case(lost=1, replicas=1, spares=1))
    assert decided.best.kind is AlternativeKind.RESTART
    assert decided.best.lost_work_s == 900
    assert "copies of the state" in decided.why_rejected[AlternativeKind.SPARE]


def template(nodes: int, latencies: tuple[float, ...]) -> PipelineTemplate:
    stages = tuple(PipelineStage(2 * index, 2 * index + 2, 1) if nodes == 3 else PipelineStage(3 * index, 3 * index + 3, 1) for index in range(nodes))
    return PipelineTemplate(nodes, stages, latencies, 12, iteration_time(latencies, 12))


TEMPLATES = {2: template(2, (3.0, 3.0)), 3: template(3, (2.0, 2.0, 1.0))}


def pipelines(**changes) -> ReconfigurationProblem:
    return ReconfigurationProblem(**{"templates": TEMPLATES, "state": [1e9] * 6, "pipelines": (("a", "b", "c"), ("d", "e", "f")), "micro_batches": 24, **changes})


def described(**changes) -> IncidentCase:
    return case(gpus=6, gpus_per_node=1, healthy=6e14, throughput=None, **changes)


def test_a_slow_node_in_a_pipeline_may_change_places_with_the_lightest_stage():
    problem = pipelines(speeds={"a": 0.5})
    decided = decide(described(slow={"a": 0.5}, pipelines=problem))
    swap = next(one for one in decided.options if one.kind is AlternativeKind.SWAP)
    nothing = next(one for one in decided.options if one.kind is AlternativeKind.NOTHING)
    assert 0.9 * 6e14 < swap.throughput < 6e14  # half as fast on half the work: only the first micro-batch takes longer
    assert nothing.throughput < 0.6 * 6e14
    assert 0 < swap.downtime_s < 1
    assert decided.best.kind is AlternativeKind.SWAP


def test_a_lost_node_shrinks_its_pipeline_by_the_templates_and_costs_what_it_copies():
    decided = decide(described(lost=1, pipelines=pipelines(lost=frozenset("c"))))
    shrink = next(one for one in decided.options if one.kind is AlternativeKind.SHRINK)
    assert sorted(len(one) for one in shrink.transition.pipelines) == [2, 3]
    assert shrink.gpus == 5
    assert shrink.downtime_s == pytest.approx(0.05 + 2 * 1e9 / 12.5e9)  # two layers more on the node that takes most
    assert decided.best.kind is AlternativeKind.SHRINK


def test_when_no_survivor_holds_a_layer_the_templates_say_so():
    decided = decide(described(lost=2, pipelines=pipelines(lost=frozenset("cf"))))
    assert "no survivor holds layer 4" in decided.why_rejected[AlternativeKind.SHRINK]
    assert "no survivor holds layer 4" in decided.why_rejected[AlternativeKind.REBALANCE]


@pytest.mark.parametrize(
    ("field", "value"),
    [("gpus", 0), ("healthy", math.nan), ("lost", -1), ("lost", 17), ("slow", {"a": 0.0}), ("slow", {"a": 1.5}),  ("repair_s", 0), ("checkpoint_age_s", -1)],
)
def test_an_impossible_incident_is_refused_by_field(field, value):
    with pytest.raises(ConfigError, match=f"task 'gpt': {field} is"):
        case(**{field: value})
    with pytest.raises(ConfigError, match="process_died is True"):
        case(process_died=True, slow={"a": 0.5})
    with pytest.raises(ConfigError, match="restart_s is -1"):
        TransitionCosts(restart_s=-1)


@settings(deadline=None)
@given(st.floats(0.1, 1000), st.floats(3600, 1e7))
def test_dalys_interval_is_near_the_least_overhead(save, mtbf):
    grid = np.geomspace(save / 10 + 1, mtbf, 4000)
    least = min(overhead(tau, save, mtbf) for tau in grid)
    assert overhead(young(save, mtbf), save, mtbf) <= least * (1 + 1e-3)
    assert overhead(daly(save, mtbf), save, mtbf) <= least * 1.5


def test_checkpoint_advice_names_rate_and_doubt():
    advice = advise_interval(save_s=10.6, failures=9, observed_s=9 * 3 * 3600.0)
    assert advice.mtbf_s == 3 * 3600
    assert advice.young_s == pytest.approx(478, abs=1)
    assert 460 < advice.interval_s < advice.young_s
    assert "9 failures in 27.0 h" in advice.observed
    assert "±33%" in advice.observed
    assert "at most" in advise_interval(1, 0, DAY).observed
    with pytest.raises(ConfigError, match="save_s is 0"):
        advise_interval(0, 1, DAY)


def test_every_option_is_an_alternative_of_the_same_case():
    assert all(isinstance(one, PricedAlternative) and one.gpu_hours >= 0 for one in decide(case(lost=1)).options)
