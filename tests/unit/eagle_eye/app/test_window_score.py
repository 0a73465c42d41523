"""The score of the Numenta Anomaly Benchmark, by hand."""

import numpy as np
import pytest

from eagle_eye.app.evaluation.window_score import (
    FEW_FALSE_ALARMS,
    FEW_MISSES,
    LEARNING,
    OUTSIDE,
    STANDARD,
    SeriesWindows,
    best,
    probation,
    score,
    windows_of,
)
from eagle_eye.types import Doubles

ROWS = 100
"""Of which 15 are for learning."""


def scores(*alarms: int) -> Doubles:
    marked = np.zeros(ROWS)
    marked[list(alarms)] = 1.0
    return marked


def windows() -> SeriesWindows:
    return windows_of(ROWS, [(30, 39), (70, 79)])


def test_no_alarm_is_0_and_one_at_the_start_of_each_window_is_100() -> None:
    for profile in (STANDARD, FEW_FALSE_ALARMS, FEW_MISSES):
        assert score([(windows(), scores())], 1.0, profile) == 0.0
        assert score([(windows(), scores(30, 70))], 1.0, profile) == pytest.approx(100.0)


def test_the_soonest_alarm_of_a_window_counts_and_later_ones_of_it_cost_nothing() -> None:
    late = score([(windows(), scores(39))], 1.0, STANDARD)
    assert late == pytest.approx(25.0 * (1.0 + np.tanh(0.25) / np.tanh(2.5)))  # 2 / (1 + exp(5 x)) − 1 is −tanh(2.5 x)
    assert score([(windows(), scores(30, 39))], 1.0, STANDARD) == pytest.approx(50.0)


def test_an_alarm_beside_a_window_costs_the_more_the_further_behind_it_is() -> None:
    costs = [-score([(windows(), scores(row))], 1.0, STANDARD) for row in (20, 40, 45, 69)]
    full = 100.0 * 0.11 / 4.0
    assert costs == pytest.approx([full, full * np.tanh(2.5 / 9.0), full * np.tanh(2.5 * 6.0 / 9.0), full])
    assert score([(windows(), scores(20))], 1.0, FEW_FALSE_ALARMS) == pytest.approx(-2.0 * full)
    assert score([(windows(), scores(20))], 1.0, FEW_MISSES) == pytest.approx(-full * 4.0 / 6.0)


def test_what_is_for_learning_does_not_count() -> None:
    assert (probation(ROWS), probation(100_000)) == (15, 750)
    assert score([(windows(), scores(3))], 1.0, STANDARD) == 0.0
    early = windows_of(ROWS, [(2, 11), (70, 79)])
    assert (early.labelled, early.window[5], early.window[20], early.window[70]) == (1, LEARNING, OUTSIDE, 0)


def test_one_threshold_holds_for_all_series_and_the_best_is_found() -> None:
    first, second = np.zeros(ROWS), np.zeros(ROWS)
    first[[30, 20]] = 0.9, 0.5
    second[[70, 60]] = 0.6, 0.5
    series = [(windows(), first), (windows(), second)]
    assert best(series, STANDARD) == (pytest.approx(score(series, 0.6, STANDARD)), 0.6)
    assert score(series, 0.5, STANDARD) < score(series, 0.6, STANDARD)


def test_where_each_alarm_costs_more_than_it_brings_none_is_best() -> None:
    assert best([(windows(), scores(20))], STANDARD) == (0.0, np.inf)
