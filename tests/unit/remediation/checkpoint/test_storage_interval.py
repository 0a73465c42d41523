"""How often a checkpoint goes to storage: Daly's formula on what was measured, and the same steps on all nodes."""

import math

import pytest

from eagle_eye.types import Layout
from remediation.checkpoint.storage_interval import STEPS_SEEN, StorageInterval
from remediation.planner.decision.checkpoint_interval import daly, overhead, young

MINUTE, HOUR = 60.0, 3600.0


def layout(epoch: int, reason: str = "start") -> Layout:
    return Layout(job="t/j/r", epoch=epoch, time=1.0, coordinator="n0", launchers={}, placements=(), reason=reason)


def trained(interval: StorageInterval, steps: int, step_s: float, first: int = 0, *, busy: bool = False, at: float = 0.0) -> list[int]:
    """The steps that are to be stored."""
    return [step for step in range(first, first + steps) if interval.step_seen(step, at + (step - first) * step_s, busy=busy)]


def trained_every_tenth(interval: StorageInterval) -> list[int]:
    return [step for step in range(7, 200, 10) if interval.step_seen(step, float(step), busy=False)]


@pytest.mark.parametrize(("mtbf_min", "youngs", "dalys"), [(1440, 120.0, 116.689815), (360, 60.0, 56.712963), (22.5, 15.0, 11.851852)])
def test_the_formula_of_the_paper(mtbf_min: float, youngs: float, dalys: float) -> None:
    """Daly (2006), equations 9 and 37, with a dump of five minutes, worked by hand; times in minutes."""
    assert young(5, mtbf_min) == pytest.approx(youngs)
    assert daly(5, mtbf_min) == pytest.approx(dalys, abs=1e-6)


def test_the_advice_is_that_of_the_formula_for_what_was_measured() -> None:
    interval = StorageInterval(600, tuned=False, now=0.0)
    assert interval.advice(HOUR) is None, "nothing was measured"
    for epoch, reason in ((1, "start"), (2, "death"), (2, "death"), (3, "node returned"), (4, "node lost")):
        interval.epoch_began(layout(epoch, reason))
    interval.stored(5 * MINUTE)
    advice = interval.advice(48 * HOUR)
    assert advice is not None
    assert (advice.mtbf_s, advice.observed.split(",")[0]) == (24 * HOUR, "2 failures in 48.0 h"), "a node that has returned is no failure"
    assert advice.interval_s / MINUTE == pytest.approx(116.689815, abs=1e-6)
    assert advice.overhead == pytest.approx(overhead(advice.interval_s, 300, 24 * HOUR))


def test_what_storing_costs_is_what_training_does_less_meanwhile() -> None:
    interval = StorageInterval(600, tuned=False, now=0.0)
    interval.stored(100.0)
    cost = interval.cost()
    assert cost is not None
    assert (cost.cost_s, cost.measured) == (100.0, False), "as if training stood still"
    trained(interval, STEPS_SEEN + 1, 1.0)
    trained(interval, STEPS_SEEN + 1, 1.25, 100, busy=True, at=200.0)  # the way there is one long step without
    quiet = StorageInterval(600, tuned=False, now=0.0)
    quiet.stored(100.0)
    trained(quiet, STEPS_SEEN + 1, 1.0)
    quiet._newest = None
    trained(quiet, STEPS_SEEN + 1, 1.25, 100, busy=True)
    cost = quiet.cost()
    assert cost is not None
    assert (cost.measured, cost.cost_s) == (True, pytest.approx(20.0)), "a fifth fewer steps"
    quiet._newest = None
    quiet._busy = quiet._quiet
    cost = quiet.cost()
    assert cost is not None
    assert cost.cost_s == pytest.approx(1.0), "none that can be seen counts as a little"


def test_all_nodes_store_the_same_steps_however_a_little_faster_one_of_them_measures() -> None:
    nodes = [StorageInterval(64, tuned=False, now=0.0) for _ in range(3)]
    chosen = [trained(node, 400, step_s) for node, step_s in zip(nodes, (1.0, 1.02, 0.9), strict=True)]
    assert [node.every for node in nodes] == [64, 32, 64]
    assert chosen[0] == chosen[2] == [64, 128, 192, 256, 320, 384]
    assert set(chosen[0]) < set(chosen[1]), "where they differ, the multiples of the larger one are stored by both"


def test_a_script_that_saves_every_tenth_step_stores_the_first_one_behind_each_multiple() -> None:
    interval = StorageInterval(40, tuned=False, now=0.0)
    assert trained_every_tenth(interval) == [37, 67, 97, 137, 167, 197]


def test_a_restart_from_an_older_step_stores_nothing_by_itself() -> None:
    interval = StorageInterval(8, tuned=False, now=0.0)
    trained(interval, 20, 1.0)
    assert not interval.step_seen(9, 30.0, busy=False)
    assert not interval.step_seen(10, 31.0, busy=False)
    assert interval.step_seen(16, 37.0, busy=False)


def test_a_tuned_interval_follows_cost_and_failures_and_leaves_the_storage_a_pause() -> None:
    interval = StorageInterval(600, tuned=True, now=0.0)
    trained(interval, 50, 10.0)
    assert interval.every == 32
    interval.epoch_began(layout(1))
    interval.stored(18.0)
    trained(interval, 50, 10.0, 100, at=1000.0)
    assert interval.interval_s == pytest.approx(daly(18.0, 1490.0)), "no failure yet: as if the next one came now"
    assert interval.every == 16
    hour = StorageInterval(600, tuned=True, now=0.0)
    hour.stored(400.0)
    trained(hour, 50, 10.0)
    assert hour.interval_s == 800.0
    assert math.isnan(StorageInterval(600, tuned=True, now=0.0).step_s)
