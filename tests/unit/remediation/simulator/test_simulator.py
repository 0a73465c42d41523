"""The simulator: time accounting that sums, lives worked out by hand, the same seed the same life, and the live planner inside."""

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError, EagleEyeError
from remediation.simulator import in_place_transition, job_mix, recovery_policy, trace_generators
from remediation.simulator.allocation_cache import AllocationCache
from remediation.simulator.fault_trace import FaultKind, FaultSymptom, FaultTrace, TraceEvent
from remediation.simulator.job_mix import JobMixEntry
from remediation.simulator.simulation import Scenario, SimulationResult, initial_allocation, simulate
from remediation.simulator.time_accounting import TimeAccounting, TimeCategory

ROOT = Path(__file__).resolve().parents[4]
BARE = {
    "efficiency": 1.0, "redundant_share": 0.0, "detection_lost_s": 10.0, "detection_exit_s": 10.0, "detection_hang_s": 10.0,
    "detection_hang_iterations": 0.0, "reattempt_s": 5.0, "restart_s": 8.0, "reconfigure_s": 20.0, "doubling_s": 0.0, "load_replica_s": 0.0,
    "load_memory_s": 0.0, "load_storage_s": 0.0, "checkpoint_interval_s": 100.0, "checkpoint_stall_s": 0.0, "checkpoint_persist_s": 0.0,
}  # fmt: skip


def linear(name="job", nodes=4, weight=1.0, minimum=1, replica=1, maximum=None) -> JobMixEntry:
    """One FLOP/s a node."""
    rates = np.arange(nodes + 1.0)
    return JobMixEntry(
        name=name, weight=weight, minimum=minimum, maximum=maximum or nodes, replica=replica, iteration_s=1e-6,
        rates=job_mix.whole_replicas(rates, replica), template_rates=rates,
    )  # fmt: skip


def life(*events: TraceEvent, nodes=4, duration_s=1000.0) -> FaultTrace:
    return FaultTrace("by hand", nodes, duration_s, events, node_mtbf_s=1e6)


def outage(lost_s: float, back_s: float, *nodes: int) -> tuple[TraceEvent, TraceEvent]:
    return TraceEvent(lost_s, FaultKind.LOST, nodes), TraceEvent(back_s, FaultKind.JOINED, nodes)


def run(name: str, trace: FaultTrace, *jobs: JobMixEntry, gpus_per_node=1, start=None, spares=0, unit=1, **constants) -> SimulationResult:
    chosen = recovery_policy.load_policy(name).with_constants(**{**BARE, **constants})
    return simulate(Scenario(jobs=jobs or [linear()], gpus_per_node=gpus_per_node, start=start, spares=spares, unit=unit), chosen, trace)


def gpu_seconds(result: SimulationResult) -> dict[str, float]:
    return {word: round(share * result.gpus * result.duration_s, 6) for word, share in result.time_shares.items() if share}


@pytest.mark.parametrize("replica", [1, 2])
def test_a_lost_node_in_place_costs_what_the_planner_of_live_transitions_says(replica):
    whole = in_place_transition.transition_shares(8, replica, (1,), 0, 8)
    assert whole.lost_share == pytest.approx(1 / (8 * replica))  # what the lost node itself had done, nothing else
    assert whole.load_share == replica - 1  # nobody lacks state but the half that is left of a replica
    assert in_place_transition.transition_shares(8, replica, (1,), 1, 8).load_share == 1.0  # a new node takes all of a node's state
    assert in_place_transition.transition_shares(800, replica, (1,), 0, 8).lost_share == pytest.approx(1 / (800 * replica))


def test_only_ours_waits_for_no_state_where_nobody_lacks_any():
    trace = life(*outage(400, 900, 3))
    ours, paper = (run(name, trace, load_replica_s=50.0, capacity="shrink") for name in ("ours", "unicron"))
    assert ours.waf_s - paper.waf_s == pytest.approx(3 * 50)  # once less, when it shrinks; growing costs both the same
    assert run("ours", trace, load_replica_s=50.0, capacity="shrink", transitions=False).waf_s == pytest.approx(paper.waf_s)


def test_who_waits_earns_nothing_until_the_node_is_back():
    result = run("megatron", life(*outage(400, 700, 3)))
    # 400 s of 4 nodes, until 700 none, 20 s of switch, 280 s of 4 nodes
    assert result.waf_s == pytest.approx(4 * 400 + 4 * 280)
    assert gpu_seconds(result) == {"effective": 2720, "detection": 30, "transition": 80, "idle": 3 * 290, "sub-healthy": 300}


def test_who_shares_goes_on_with_what_is_left():
    result = run("unicron", life(*outage(400, 700, 3)))
    # 10 s until it is seen, 20 s of switch, 3 nodes until 700, 20 s of switch, 4 nodes
    assert result.waf_s == pytest.approx(4 * 400 + 3 * 270 + 4 * 280)


def test_work_since_the_checkpoint_is_done_again_unless_a_replica_has_it():
    trace = life(*outage(450, 452, 3))
    assert run("megatron", trace).waf_s == pytest.approx(4 * (1000 - 10 - 20 - 50))
    assert run("unicron", trace).waf_s == pytest.approx(4 * (1000 - 10 - 20), rel=1e-6)


def test_without_a_replica_state_comes_from_the_neighbours_memory_and_without_that_from_storage():
    trace = life(*outage(450, 450, 0))
    held_twice = run("unicron", trace, linear(replica=2, minimum=2), checkpoint_persist_s=90.0)
    memory = run("unicron", trace, linear(replica=4, minimum=4), checkpoint_persist_s=90.0)
    storage = run("unicron", life(*outage(450, 450, 0, 1)), linear(replica=4, minimum=4), checkpoint_persist_s=90.0)
    assert gpu_seconds(held_twice).get("recomputation", 0.0) < 1e-3
    assert gpu_seconds(memory)["recomputation"] == pytest.approx(4 * 50)
    assert gpu_seconds(storage)["recomputation"] == pytest.approx(4 * 150), "the checkpoint at 400 was not yet on storage"


def test_the_weakest_repair_that_helps_is_the_cheapest():
    hang = life(TraceEvent(450, FaultKind.TRANSIENT, (0,), FaultSymptom.HANG))
    crash = life(TraceEvent(450, FaultKind.RESTART, (0,), FaultSymptom.EXIT))
    assert run("unicron", hang).waf_s == pytest.approx(4 * (1000 - 10 - 5))
    assert run("unicron", crash).waf_s == pytest.approx(4 * (1000 - 10 - 8), rel=1e-6)
    assert run("megatron", crash).waf_s == pytest.approx(4 * (1000 - 10 - 20 - 50))


def test_a_spare_ends_the_wait():
    trace = life(*outage(400, 900, 0), nodes=5)
    assert run("megatron", trace, linear(nodes=5, maximum=4), spares=1).waf_s == pytest.approx(4 * (1000 - 30))


def test_nodes_go_to_the_task_that_is_worth_more():
    dear, cheap = linear("dear", weight=2.0, maximum=2), linear("cheap", minimum=1, maximum=2)
    result = run("unicron", life(TraceEvent(400, FaultKind.LOST, (0,))), dear, cheap, start=(2, 2))
    assert result.jobs["dear"] >= 2 * 2 * (1000 - 30) - 1e-6
    assert result.jobs["cheap"] < 2 * 1000 - 500


def test_checkpoints_cost_their_stall():
    result = run("megatron", life(duration_s=1100.0), checkpoint_stall_s=10.0)
    assert gpu_seconds(result) == {"effective": 4000, "checkpoint": 400}


def test_nodes_left_over_beside_whole_replicas_idle_unless_there_are_templates():
    trace, job = life(TraceEvent(400, FaultKind.LOST, (0,))), linear(replica=2)
    whole, all_used = run("varuna", trace, job), run("oobleck", trace, job)
    assert whole.waf_s == pytest.approx(4 * 400 + 2 * 570)
    assert gpu_seconds(whole)["idle"] == pytest.approx(570)
    assert all_used.waf_s == pytest.approx(4 * 400 + 3 * 570, rel=1e-6)


def test_one_slow_node_holds_all_back_until_micro_batches_move_away():
    slow = life(TraceEvent(500, FaultKind.SLOW, (1,), speed=0.5), TraceEvent(900, FaultKind.HEALTHY, (1,)))
    assert run("unicron", slow).waf_s == pytest.approx(4 * (600 + 400 * 0.5))
    ours = run("ours", slow, detection_slow_s=100.0)
    assert ours.waf_s == pytest.approx(4 * (600 + 100 * 0.5 + 300 * 3.5 / 4))
    assert gpu_seconds(ours)["sub-healthy"] == pytest.approx(4 * (50 + 300 / 8))


def test_a_slow_node_is_left_out_where_nobody_can_take_its_work():
    """One pipeline of four nodes and a spare: the decision takes the spare, and the node comes back healthy."""
    slow = life(TraceEvent(500, FaultKind.SLOW, (1,), speed=0.5), TraceEvent(4500, FaultKind.HEALTHY, (1,)), nodes=5, duration_s=5000.0)
    job = linear(nodes=5, replica=4, minimum=4, maximum=4)
    bear = run("ours", slow, job, detection_slow_s=100.0, decides=False)
    ours = run("ours", slow, job, detection_slow_s=100.0)
    assert bear.waf_s == pytest.approx(4 * (1000 + 4000 * 0.5))
    assert ours.waf_s == pytest.approx(4 * (5000 - 100 * 0.5 - 20))
    assert gpu_seconds(ours)["sub-healthy"] == pytest.approx(4 * 50 + 3900)


@pytest.mark.parametrize("second_s", [405, 420])
def test_a_second_loss_before_the_job_runs_again_starts_it_all_anew(second_s):
    result = run("unicron", life(TraceEvent(400, FaultKind.LOST, (0,)), TraceEvent(second_s, FaultKind.LOST, (1,))))
    assert result.waf_s == pytest.approx(4 * 400 + 2 * (1000 - second_s - 30), rel=1e-6)


def test_a_hiccup_during_a_switch_does_not_make_it_shorter():
    result = run("unicron", life(TraceEvent(400, FaultKind.LOST, (0,)), TraceEvent(415, FaultKind.TRANSIENT, (1,), FaultSymptom.HANG)))
    assert result.waf_s == pytest.approx(4 * 400 + 3 * (1000 - 415 - 10 - 20), rel=1e-6)


def test_a_node_that_gets_slow_while_work_is_done_again_makes_that_longer():
    result = run("megatron", life(*outage(450, 455, 0), TraceEvent(500, FaultKind.SLOW, (1,), speed=0.5)))
    # 50 s are redo from 480 on: 20 at full speed, 30 at half; then half speed until the end
    assert result.waf_s == pytest.approx(4 * 450 - 4 * 0 + 2 * (1000 - 480 - 20 - 60))


def test_redundant_work_does_not_count():
    assert gpu_seconds(run("bamboo", life(), efficiency=0.4, redundant_share=0.6)) == {"effective": 1600, "redundant": 2400}


def test_without_faults_nobody_beats_megatron():
    for name in recovery_policy.policy_names():
        quiet = run(name, life(), **{key: value for key, value in vars_of(name).items() if key in ("efficiency", "redundant_share")})
        assert quiet.waf_s <= 4 * 1000 + 1e-6


def vars_of(name: str) -> dict[str, float]:
    costs = recovery_policy.load_policy(name).costs
    return {field: getattr(costs, field) for field in costs.__dataclass_fields__}


def test_more_of_the_papers_is_never_less_on_the_faults_that_they_are_about():
    jobs, trace = job_mix.read_job_mix("mix4", 16, 8), trace_generators.generate("trace-b", 0)
    waf = {name: simulate(Scenario(jobs=jobs), recovery_policy.load_policy(name), trace).waf_s for name in ("megatron", "transom", "unicron", "varuna", "bamboo", "oobleck")}
    ours = simulate(Scenario(jobs=jobs), recovery_policy.load_policy("ours").without("own_seconds"), trace).waf_s
    assert ours >= waf["unicron"] * (1 - 1e-12) > waf["transom"] > waf["megatron"] > max(waf["varuna"], waf["bamboo"], waf["oobleck"])


kinds = st.sampled_from([FaultKind.LOST, FaultKind.JOINED, FaultKind.RESTART, FaultKind.TRANSIENT, FaultKind.SLOW, FaultKind.HEALTHY])


@st.composite
def lives(draw) -> FaultTrace:
    """Losses and returns in any order, several nodes at once, also of nodes that are out already."""
    out = [0] * 6
    events = []
    for time_s in sorted(draw(st.lists(st.floats(0, 5000), max_size=25))):
        kind = draw(kinds)
        nodes = tuple(draw(st.sets(st.integers(0, 5), min_size=1, max_size=6 if kind is FaultKind.LOST else 1)))
        if kind is FaultKind.JOINED:
            nodes = tuple(node for node in nodes if out[node])
        for node in nodes:
            out[node] += {FaultKind.LOST: 1, FaultKind.JOINED: -1}.get(kind, 0)
        if nodes:
            events.append(TraceEvent(time_s, kind, nodes, draw(st.sampled_from(FaultSymptom)), 0.5))
    return FaultTrace("drawn", 6, 5000.0, tuple(events), node_mtbf_s=1e5)


@settings(max_examples=30, deadline=None)
@given(lives(), st.sampled_from(recovery_policy.policy_names()), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2))
def test_every_second_of_every_gpu_is_accounted_whatever_happens(trace, name, replica, unit, spares):
    jobs = [linear("a", 6, 2.0, replica, replica), linear("b", 6, 1.0, 1)]
    result = simulate(Scenario(jobs=jobs, gpus_per_node=2, unit=unit, spares=spares), recovery_policy.load_policy(name), trace)
    assert sum(result.time_shares.values()) == pytest.approx(1.0)
    assert 0 <= result.waf_s <= 12 * 5000 * 2


@settings(max_examples=15, deadline=None)
@given(lives(), st.sampled_from([(name, part) for name in recovery_policy.policy_names() for part in recovery_policy.load_policy(name).parts]))
def test_each_part_can_be_switched_off_alone(trace, chosen):
    name, part = chosen
    without = recovery_policy.load_policy(name).without(part)
    assert without.label == f"{name} − {part}"
    assert sum(simulate(Scenario(jobs=[linear(nodes=6)], gpus_per_node=1), without, trace).time_shares.values()) == pytest.approx(1.0)


def test_the_same_seed_is_the_same_life_and_another_is_not():
    jobs = job_mix.read_job_mix("mix4", 16, 8)
    first, again, other = (simulate(Scenario(jobs=jobs), recovery_policy.load_policy("ours"), trace_generators.generate("trace-b", seed)) for seed in (1, 1, 2))
    assert (first.waf_s, first.time_shares) == (again.waf_s, again.time_shares)
    assert first.waf_s != other.waf_s


def test_an_answer_that_is_known_takes_no_planner():
    asked = []
    cache = AllocationCache([linear("a"), linear("b")], recovery_policy.load_policy("ours").costs, 1, 1e6, 8, timer=lambda: float(len(asked)) + (asked.append(1) or 0.0))
    assert cache.allocate((2, 2), 4) == cache.allocate((2, 2), 4)
    assert (len(asked), cache.asked, cache.solved) == (2, 2, 1)


def test_the_task_that_has_to_switch_anyway_is_the_one_that_shrinks():
    costs = recovery_policy.load_policy("unicron").with_constants(**BARE).costs
    cache = AllocationCache([linear("a"), linear("b", weight=1.01)], costs, 1, 1000.0, 1)
    assert cache.allocate((2, 2), 3, frozenset({0})) == (1, 2)
    assert cache.allocate((2, 2), 3, frozenset({1})) == (2, 1)


def test_the_same_question_to_the_planner_is_solved_once():
    jobs = job_mix.read_job_mix("eight", 400, 8)
    result = simulate(Scenario(jobs=jobs, unit=16), recovery_policy.load_policy("ours"), trace_generators.generate("llama3", 1, nodes=400, days=30))
    assert result.allocations_asked > 2 * result.allocations_solved > 0


def test_the_start_is_the_planners_and_the_same_for_all():
    jobs = job_mix.read_job_mix("mix4", 16, 8)
    starts = {initial_allocation(Scenario(jobs=jobs), 16, 1e7, recovery_policy.load_policy(name)) for name in recovery_policy.policy_names()}
    assert len(starts) == 1
    assert sum(starts.pop()) == 16


def test_a_start_that_does_not_fit_is_refused():
    with pytest.raises(ConfigError, match="start is \\(5,\\); it must be 1 counts"):
        run("ours", life(), start=(5,))


def test_time_that_does_not_sum_is_an_error():
    accounting = TimeAccounting()
    accounting.add_time(TimeCategory.IDLE, 10.0)
    with pytest.raises(EagleEyeError, match="bug of the simulator"):
        accounting.check_total(11.0)


def test_the_simulator_plans_with_the_live_planner():
    """What the engine would do is what is simulated: no second planner in here, and no way round the first."""
    sources = list((ROOT / "remediation/simulator").glob("*.py"))
    imported = {node.module for path in sources for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom) and node.module}
    assert {"remediation.planner.allocation.allocation", "remediation.planner.allocation.tasks", "remediation.planner.pipelines.node_stages", "remediation.planner.pipelines.micro_batch_distribution", "remediation.planner.decision.decision"} <= imported
    code = "import remediation.simulator.allocation_cache as plans, remediation.planner.allocation.allocation as live; assert plans.solve is live.solve"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
