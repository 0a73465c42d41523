"""Who gets how many workers: against brute force, event by event, and what is refused."""

import itertools
import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_eye.errors import ConfigError
from remediation.planner.allocation import dynamic_program
from remediation.planner.allocation.allocation import solve
from remediation.planner.allocation.convolution import CandidateCounts, combine
from remediation.planner.allocation.event_table import EventTable
from remediation.planner.allocation.next_events import NextEvent, NextEventKind, next_events, problem_after
from remediation.planner.allocation.standby_table import StandbyTable
from remediation.planner.allocation.tasks import AllocationProblem, Task, TaskCluster

LINEAR = tuple(float(count) for count in range(9))


def task(name="a", throughput=LINEAR, **more) -> Task:
    return Task(name=name, throughput=throughput, **more)


def worth(task: Task, count: int, problem: AllocationProblem) -> float:
    """G, written down once more from the paper."""
    def weighted(x):
        return task.weight * float(task.throughput[x]) if x >= task.minimum else 0.0

    switches = count != task.current or task.name in problem.failed
    return weighted(count) * problem.gpu_mtbf_s / max(1, problem.usable) - switches * weighted(task.current) * task.transition_s


def every_plan(problem: AllocationProblem):
    allowed = [range(0, min(each.most, problem.usable) + 1, problem.granularity) for each in problem.tasks]
    return (plan for plan in itertools.product(*allowed) if sum(plan) <= problem.usable)


def brute_force(problem: AllocationProblem) -> tuple[float, int]:
    """The best value, and the fewest workers moved among the plans worth it that give no task workers for nothing."""
    plans = []
    for plan in every_plan(problem):
        value = sum(worth(each, count, problem) for each, count in zip(problem.tasks, plan, strict=True))
        useless = any(0 < count < each.minimum for each, count in zip(problem.tasks, plan, strict=True))
        plans.append((value, useless, sum(abs(count - each.current) for each, count in zip(problem.tasks, plan, strict=True))))
    best = max(value for value, _, _ in plans)
    return best, min(moved for value, useless, moved in plans if value == best and not useless)


@st.composite
def tasks(draw, name: str, running: bool) -> Task:
    row = draw(st.lists(st.integers(0, 40), min_size=4, max_size=9))
    most = len(row) - 1
    minimum = draw(st.integers(0, 3))
    return Task(
        name=name, throughput=[0.0, *map(float, row[1:])], weight=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])), minimum=minimum,
        maximum=draw(st.one_of(st.none(), st.integers(minimum, 9))), current=draw(st.integers(0, most)) if running else 0,
        transition_s=float(draw(st.integers(0, 20))),
    )


@st.composite
def clusters(draw, most: int = 4) -> TaskCluster:
    granularity = draw(st.sampled_from([1, 1, 2, 3]))
    running = tuple(draw(tasks(f"t{index}", True)) for index in range(draw(st.integers(0, most))))
    queue = tuple(draw(tasks(f"q{index}", False)) for index in range(draw(st.integers(0, 2))))
    used = sum(each.current for each in running)
    spares = draw(st.integers(0, 3))
    workers = used + spares + draw(st.integers(0, 4))
    return TaskCluster(
        tasks=running, queue=queue, workers=workers, spares=spares, spare_pool=draw(st.integers(0, 4)), granularity=granularity,
        gpu_mtbf_s=float(draw(st.sampled_from([8, 64, 5040]))),
    )


@st.composite
def situations(draw) -> AllocationProblem:
    some = tuple(draw(tasks(f"t{index}", True)) for index in range(draw(st.integers(0, 4))))
    usable = draw(st.integers(0, 12))
    failed = frozenset(draw(st.sets(st.sampled_from([each.name for each in some])))) if some else frozenset()
    whole = float(draw(st.integers(1, 50)) * max(1, usable))  # D_running is whole: sums of floats are then exact and ties are ties
    return AllocationProblem(tasks=some, usable=usable, gpu_mtbf_s=whole, granularity=draw(st.sampled_from([1, 2, 3])), failed=failed)


@settings(max_examples=60, deadline=None)
@given(situations())
def test_no_plan_is_worth_more_and_none_worth_as_much_moves_fewer_workers(problem):
    found = solve(problem)
    value, moved = brute_force(problem)
    assert found.value == pytest.approx(value, rel=1e-12, abs=1e-9)
    assert found.moved == moved


@settings(max_examples=60, deadline=None)
@given(situations())
def test_a_plan_is_worth_what_it_says_and_can_be_carried_out(problem):
    found = solve(problem)
    counts = list(found.workers.values())
    assert found.value == pytest.approx(sum(worth(each, found.workers[each.name], problem) for each in problem.tasks), abs=1e-9)
    assert all(count % problem.granularity == 0 for count in counts)
    assert all(count == 0 or each.minimum <= count <= each.most for each, count in zip(problem.tasks, counts, strict=True))
    assert found.idle == problem.usable - sum(counts) >= 0


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_the_answer_to_every_next_event_is_that_of_a_fresh_solution(cluster):
    event_table = EventTable(cluster)
    events = next_events(cluster)
    assert len(event_table) == len(events)
    for event in events:
        fresh = solve(problem_after(cluster, [event]))
        precomputed = event_table.allocation_after([event])
        assert precomputed.value == pytest.approx(fresh.value, rel=1e-12, abs=1e-9)
        assert precomputed.workers.keys() == fresh.workers.keys()
        assert precomputed.idle >= 0


@settings(max_examples=30, deadline=None)
@given(situations())
def test_counts_are_struck_off_only_if_no_best_plan_needs_them(problem):
    whole = solve(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic_program, "MINIMUM_PAIRS", 0)
        patch.setattr(dynamic_program, "FIRST_ATTEMPT_COUNTS", 1)
        cut = solve(problem)
    assert (cut.value, cut.moved) == (whole.value, whole.moved)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_the_tiles_make_the_same_sums_as_the_definition(size, width, seed):
    random = np.random.default_rng(seed)
    before = np.sort(random.integers(-1000, 1000, size))
    choices = CandidateCounts.of(random.integers(-1000, 1000, min(width, size)))
    reached = combine(before, choices)
    for units in random.integers(0, size, 5):
        pairs = zip(choices.counts, choices.keys, strict=True)
        assert reached[units] == max(before[units - count] + key for count, key in pairs if count <= units)


def test_a_table_of_real_size_agrees_with_fresh_solutions():
    random = np.random.default_rng(7)
    rows = [np.arange(151.0) * random.uniform(0.8, 1.2, 151) for _ in range(6)]
    running = tuple(task(f"t{i}", row, weight=1 + i / 5, minimum=4, current=20, transition_s=100.0) for i, row in enumerate(rows[:5]))
    cluster = TaskCluster(tasks=running, queue=(task("new", rows[5], minimum=8),), workers=120, gpu_mtbf_s=1e6)
    event_table = EventTable(cluster)
    for event in next_events(cluster):
        fresh = solve(problem_after(cluster, [event]))
        assert (event_table.allocation_after([event]).value, event_table.allocation_after([event]).workers) == (pytest.approx(fresh.value, rel=1e-12), fresh.workers)


# -- what the objective says ------------------------------------------------------------------------------------------


def test_a_task_keeps_its_workers_where_moving_them_costs_more_than_it_brings():
    slow, fast = task("slow", current=4, transition_s=50.0), task("fast", weight=1.1, current=4, transition_s=50.0)
    stay = solve(AllocationProblem(tasks=(slow, fast), usable=8, gpu_mtbf_s=800.0))
    assert stay.workers == {"slow": 4, "fast": 4}
    go = solve(AllocationProblem(tasks=(slow, fast), usable=8, gpu_mtbf_s=80_000.0))
    assert go.workers == {"slow": 0, "fast": 8}


def test_a_failed_task_pays_for_the_switch_even_with_the_same_count():
    alone = task(current=4, maximum=4, transition_s=10.0)
    calm = solve(AllocationProblem(tasks=(alone,), usable=4, gpu_mtbf_s=400.0))
    hit = solve(AllocationProblem(tasks=(alone,), usable=4, gpu_mtbf_s=400.0, failed=frozenset({"a"})))
    assert calm.workers == hit.workers == {"a": 4}
    assert calm.value - hit.value == 4 * 10.0


def test_below_its_minimum_a_task_waits():
    assert solve(AllocationProblem(tasks=(task(minimum=4),), usable=3, gpu_mtbf_s=100.0)).workers == {"a": 0}


def test_a_spare_takes_the_place_of_a_lost_worker_and_a_joined_one_fills_the_pool():
    cluster = TaskCluster(tasks=(task(current=6),), workers=8, spares=2, spare_pool=2, gpu_mtbf_s=100.0)
    lost = problem_after(cluster, [NextEvent(NextEventKind.LOST, "a")])
    assert (lost.usable, lost.failed) == (6, {"a"})
    assert problem_after(cluster, [NextEvent(NextEventKind.LOST, "a")] * 3).usable == 5
    assert problem_after(replace(cluster, spares=1), [NextEvent(NextEventKind.JOINED)]).usable == 7
    assert problem_after(cluster, [NextEvent(NextEventKind.JOINED)]).usable == 7


def test_a_task_that_finished_right_after_it_lost_a_worker_is_not_missed():
    cluster = TaskCluster(tasks=(task("a", current=2), task("b", current=2)), workers=4, gpu_mtbf_s=100.0)
    both = problem_after(cluster, [NextEvent(NextEventKind.LOST, "a"), NextEvent(NextEventKind.FINISHED, "a")])
    assert solve(both).workers == {"b": 3}


# -- the event_table while it is made anew -------------------------------------------------------------------------------


class Later(Executor):
    """Runs what it was given when told to."""

    def __init__(self):
        self.waiting = []

    def submit(self, work, /, *args, **more):
        future = Future()
        self.waiting.append((future, work, args))
        return future

    def run(self):
        for future, work, args in self.waiting:
            future.set_result(work(*args))
        self.waiting.clear()


SMALL = TaskCluster(tasks=(task("a", current=3), task("b", current=3)), workers=6, gpu_mtbf_s=1000.0)
LOST = NextEvent(NextEventKind.LOST, "a")


def test_before_the_forecast_is_ready_an_answer_is_solved_afresh():
    later = Later()
    standby = StandbyTable(SMALL, later)
    early = standby.answer([LOST])
    later.run()
    assert (early.precomputed, standby.answer([LOST]).precomputed) == (False, True)
    assert early.allocation == standby.answer([LOST]).allocation


def test_two_events_at_once_are_solved_afresh():
    later = Later()
    standby = StandbyTable(SMALL, later)
    later.run()
    answer = standby.answer([LOST, NextEvent(NextEventKind.LOST, "b")])
    assert not answer.precomputed
    assert sum(answer.allocation.workers.values()) == 4


def test_after_a_change_the_old_forecast_is_never_used():
    later = Later()
    standby = StandbyTable(SMALL, later)
    later.run()
    standby.change(replace(SMALL, workers=8))
    answer = standby.answer([LOST])
    assert (answer.precomputed, sum(answer.allocation.workers.values())) == (False, 7)


def test_of_two_changes_in_a_hurry_the_later_one_stands():
    later = Later()
    standby = StandbyTable(SMALL, later)
    standby.change(replace(SMALL, workers=8))
    later.waiting.reverse()
    later.run()
    answer = standby.answer([LOST])
    assert (answer.precomputed, sum(answer.allocation.workers.values())) == (True, 7)


def test_with_a_real_thread_answers_come_while_the_forecast_is_made():
    begun, go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: (begun.set(), go_on.wait(10)))
        standby = StandbyTable(SMALL, executor)
        assert begun.wait(10)
        assert not standby.answer([LOST]).precomputed
        done = standby.change(SMALL)
        go_on.set()
        done.result(10)
        assert standby.answer([LOST]).precomputed


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"name": ""}, "no name"),
        ({"throughput": ()}, "throughput"),
        ({"throughput": (0.0, float("nan"))}, r"throughput\[1\]"),
        ({"throughput": (0.0, 1.0, -1.0)}, r"throughput\[2\]"),
        ({"throughput": ((0.0, 1.0),)}, "throughput"),
        ({"weight": -1.0}, "weight"),
        ({"weight": float("inf")}, "weight"),
        ({"minimum": -1}, "minimum"),
        ({"minimum": 3, "maximum": 2}, "maximum"),
        ({"current": -2}, "current"),
        ({"current": 9}, "current"),
        ({"transition_s": float("nan")}, "transition_s"),
    ],
)
def test_a_task_that_cannot_be_is_refused_by_the_name_of_its_field(wrong, named):
    with pytest.raises(ConfigError, match=named):
        task(**wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"workers": -1}, "workers"),
        ({"workers": 5}, "current workers add up to 6"),
        ({"spares": 7}, "spares"),
        ({"spare_pool": -1}, "spare_pool"),
        ({"granularity": 0}, "granularity"),
        ({"gpu_mtbf_s": 0.0}, "gpu_mtbf_s"),
        ({"queue": (task("a"),)}, "two tasks are called 'a'"),
        ({"queue": (task("c", current=1),)}, "queue"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused_by_the_name_of_its_field(wrong, named):
    with pytest.raises(ConfigError, match=named):
        replace(SMALL, **wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"usable": -1}, "usable"), ({"failed": frozenset({"z"})}, "failed: no task is called 'z'"), ({"running_s": 0.0}, "running_s")],
)
def test_a_situation_that_cannot_be_is_refused_by_the_name_of_its_field(wrong, named):
    with pytest.raises(ConfigError, match=named):
        replace(problem_after(SMALL, []), **wrong)


def test_an_event_of_an_unknown_task_is_refused():
    with pytest.raises(ConfigError, match="event finished: no task is called 'z'"):
        problem_after(SMALL, [NextEvent(NextEventKind.FINISHED, "z")])
    with pytest.raises(ConfigError, match="only 0 are left"):
        problem_after(SMALL, [NextEvent(NextEventKind.LOST)] * 7)
