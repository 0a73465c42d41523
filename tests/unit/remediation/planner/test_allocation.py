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
from remediation.planner.allocation import pruning
from remediation.planner.allocation.allocation import solve
from remediation.planner.allocation.convolution import Choices, combine
from remediation.planner.allocation.forecast import Forecast
from remediation.planner.allocation.next_events import Event, EventKind, next_events, situation_after
from remediation.planner.allocation.standby_table import Standby
from remediation.planner.allocation.tasks import Cluster, Situation, Task

LINEAR = tuple(float(count) for count in range(9))


def task(name="a", throughput=LINEAR, **more) -> Task:
    return Task(name=name, throughput=throughput, **more)


def worth(task: Task, count: int, situation: Situation) -> float:
    """G, written down once more from the paper."""
    def weighted(x):
        return task.weight * float(task.throughput[x]) if x >= task.minimum else 0.0

    switches = count != task.current or task.name in situation.failed
    return weighted(count) * situation.gpu_mtbf_s / max(1, situation.usable) - switches * weighted(task.current) * task.transition_s


def every_plan(situation: Situation):
    allowed = [range(0, min(each.most, situation.usable) + 1, situation.granularity) for each in situation.tasks]
    return (plan for plan in itertools.product(*allowed) if sum(plan) <= situation.usable)


def brute_force(situation: Situation) -> tuple[float, int]:
    """The best value, and the fewest workers moved among the plans worth it that give no task workers for nothing."""
    plans = []
    for plan in every_plan(situation):
        value = sum(worth(each, count, situation) for each, count in zip(situation.tasks, plan, strict=True))
        useless = any(0 < count < each.minimum for each, count in zip(situation.tasks, plan, strict=True))
        plans.append((value, useless, sum(abs(count - each.current) for each, count in zip(situation.tasks, plan, strict=True))))
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
def clusters(draw, most: int = 4) -> Cluster:
    granularity = draw(st.sampled_from([1, 1, 2, 3]))
    running = tuple(draw(tasks(f"t{index}", True)) for index in range(draw(st.integers(0, most))))
    queue = tuple(draw(tasks(f"q{index}", False)) for index in range(draw(st.integers(0, 2))))
    used = sum(each.current for each in running)
    spares = draw(st.integers(0, 3))
    workers = used + spares + draw(st.integers(0, 4))
    return Cluster(
        tasks=running, queue=queue, workers=workers, spares=spares, spare_pool=draw(st.integers(0, 4)), granularity=granularity,
        gpu_mtbf_s=float(draw(st.sampled_from([8, 64, 5040]))),
    )


@st.composite
def situations(draw) -> Situation:
    some = tuple(draw(tasks(f"t{index}", True)) for index in range(draw(st.integers(0, 4))))
    usable = draw(st.integers(0, 12))
    failed = frozenset(draw(st.sets(st.sampled_from([each.name for each in some])))) if some else frozenset()
    whole = float(draw(st.integers(1, 50)) * max(1, usable))  # D_running is whole: sums of floats are then exact and ties are ties
    return Situation(tasks=some, usable=usable, gpu_mtbf_s=whole, granularity=draw(st.sampled_from([1, 2, 3])), failed=failed)


@settings(max_examples=60, deadline=None)
@given(situations())
def test_no_plan_is_worth_more_and_none_worth_as_much_moves_fewer_workers(situation):
    found = solve(situation)
    value, moved = brute_force(situation)
    assert found.value == pytest.approx(value, rel=1e-12, abs=1e-9)
    assert found.moved == moved


@settings(max_examples=60, deadline=None)
@given(situations())
def test_a_plan_is_worth_what_it_says_and_can_be_carried_out(situation):
    found = solve(situation)
    counts = list(found.workers.values())
    assert found.value == pytest.approx(sum(worth(each, found.workers[each.name], situation) for each in situation.tasks), abs=1e-9)
    assert all(count % situation.granularity == 0 for count in counts)
    assert all(count == 0 or each.minimum <= count <= each.most for each, count in zip(situation.tasks, counts, strict=True))
    assert found.idle == situation.usable - sum(counts) >= 0


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_the_answer_to_every_next_event_is_that_of_a_fresh_solution(cluster):
    forecast = Forecast(cluster)
    events = next_events(cluster)
    assert len(forecast) == len(events)
    for event in events:
        fresh = solve(situation_after(cluster, [event]))
        foreseen = forecast.plan([event])
        assert foreseen.value == pytest.approx(fresh.value, rel=1e-12, abs=1e-9)
        assert foreseen.workers.keys() == fresh.workers.keys()
        assert foreseen.idle >= 0


@settings(max_examples=30, deadline=None)
@given(situations())
def test_counts_are_struck_off_only_if_no_best_plan_needs_them(situation):
    whole = solve(situation)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pruning, "WORTH_IT", 0)
        patch.setattr(pruning, "FIRST_TRY", 1)
        cut = solve(situation)
    assert (cut.value, cut.moved) == (whole.value, whole.moved)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**32 - 1))
def test_the_tiles_make_the_same_sums_as_the_definition(size, width, seed):
    random = np.random.default_rng(seed)
    before = np.sort(random.integers(-1000, 1000, size))
    choices = Choices.of(random.integers(-1000, 1000, min(width, size)))
    reached = combine(before, choices)
    for units in random.integers(0, size, 5):
        pairs = zip(choices.counts, choices.keys, strict=True)
        assert reached[units] == max(before[units - count] + key for count, key in pairs if count <= units)


def test_a_table_of_real_size_agrees_with_fresh_solutions():
    random = np.random.default_rng(7)
    rows = [np.arange(151.0) * random.uniform(0.8, 1.2, 151) for _ in range(6)]
    running = tuple(task(f"t{i}", row, weight=1 + i / 5, minimum=4, current=20, transition_s=100.0) for i, row in enumerate(rows[:5]))
    cluster = Cluster(tasks=running, queue=(task("new", rows[5], minimum=8),), workers=120, gpu_mtbf_s=1e6)
    forecast = Forecast(cluster)
    for event in next_events(cluster):
        fresh = solve(situation_after(cluster, [event]))
        assert (forecast.plan([event]).value, forecast.plan([event]).workers) == (pytest.approx(fresh.value, rel=1e-12), fresh.workers)


# -- what the objective says ------------------------------------------------------------------------------------------


def test_a_task_keeps_its_workers_where_moving_them_costs_more_than_it_brings():
    slow, fast = task("slow", current=4, transition_s=50.0), task("fast", weight=1.1, current=4, transition_s=50.0)
    stay = solve(Situation(tasks=(slow, fast), usable=8, gpu_mtbf_s=800.0))
    assert stay.workers == {"slow": 4, "fast": 4}
    go = solve(Situation(tasks=(slow, fast), usable=8, gpu_mtbf_s=80_000.0))
    assert go.workers == {"slow": 0, "fast": 8}


def test_a_failed_task_pays_for_the_switch_even_with_the_same_count():
    alone = task(current=4, maximum=4, transition_s=10.0)
    calm = solve(Situation(tasks=(alone,), usable=4, gpu_mtbf_s=400.0))
    hit = solve(Situation(tasks=(alone,), usable=4, gpu_mtbf_s=400.0, failed=frozenset({"a"})))
    assert calm.workers == hit.workers == {"a": 4}
    assert calm.value - hit.value == 4 * 10.0


def test_below_its_minimum_a_task_waits():
    assert solve(Situation(tasks=(task(minimum=4),), usable=3, gpu_mtbf_s=100.0)).workers == {"a": 0}


def test_a_spare_takes_the_place_of_a_lost_worker_and_a_joined_one_fills_the_pool():
    cluster = Cluster(tasks=(task(current=6),), workers=8, spares=2, spare_pool=2, gpu_mtbf_s=100.0)
    lost = situation_after(cluster, [Event(EventKind.LOST, "a")])
    assert (lost.usable, lost.failed) == (6, {"a"})
    assert situation_after(cluster, [Event(EventKind.LOST, "a")] * 3).usable == 5
    assert situation_after(replace(cluster, spares=1), [Event(EventKind.JOINED)]).usable == 7
    assert situation_after(cluster, [Event(EventKind.JOINED)]).usable == 7


def test_a_task_that_finished_right_after_it_lost_a_worker_is_not_missed():
    cluster = Cluster(tasks=(task("a", current=2), task("b", current=2)), workers=4, gpu_mtbf_s=100.0)
    both = situation_after(cluster, [Event(EventKind.LOST, "a"), Event(EventKind.FINISHED, "a")])
    assert solve(both).workers == {"b": 3}


# -- the forecast while it is made anew -------------------------------------------------------------------------------


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


SMALL = Cluster(tasks=(task("a", current=3), task("b", current=3)), workers=6, gpu_mtbf_s=1000.0)
LOST = Event(EventKind.LOST, "a")


def test_before_the_forecast_is_ready_an_answer_is_solved_afresh():
    later = Later()
    standby = Standby(SMALL, later)
    early = standby.answer([LOST])
    later.run()
    assert (early.foreseen, standby.answer([LOST]).foreseen) == (False, True)
    assert early.allocation == standby.answer([LOST]).allocation


def test_two_events_at_once_are_solved_afresh():
    later = Later()
    standby = Standby(SMALL, later)
    later.run()
    answer = standby.answer([LOST, Event(EventKind.LOST, "b")])
    assert not answer.foreseen
    assert sum(answer.allocation.workers.values()) == 4


def test_after_a_change_the_old_forecast_is_never_used():
    later = Later()
    standby = Standby(SMALL, later)
    later.run()
    standby.change(replace(SMALL, workers=8))
    answer = standby.answer([LOST])
    assert (answer.foreseen, sum(answer.allocation.workers.values())) == (False, 7)


def test_of_two_changes_in_a_hurry_the_later_one_stands():
    later = Later()
    standby = Standby(SMALL, later)
    standby.change(replace(SMALL, workers=8))
    later.waiting.reverse()
    later.run()
    answer = standby.answer([LOST])
    assert (answer.foreseen, sum(answer.allocation.workers.values())) == (True, 7)


def test_with_a_real_thread_answers_come_while_the_forecast_is_made():
    begun, go_on = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: (begun.set(), go_on.wait(10)))
        standby = Standby(SMALL, executor)
        assert begun.wait(10)
        assert not standby.answer([LOST]).foreseen
        done = standby.change(SMALL)
        go_on.set()
        done.result(10)
        assert standby.answer([LOST]).foreseen


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
        replace(situation_after(SMALL, []), **wrong)


def test_an_event_of_an_unknown_task_is_refused():
    with pytest.raises(ConfigError, match="event finished: no task is called 'z'"):
        situation_after(SMALL, [Event(EventKind.FINISHED, "z")])
    with pytest.raises(ConfigError, match="only 0 are left"):
        situation_after(SMALL, [Event(EventKind.LOST)] * 7)
