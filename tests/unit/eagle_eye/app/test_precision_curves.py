"""Precision and recall over all thresholds."""

import numpy as np
import pytest

from eagle_eye.app.evaluation.precision_curves import average_precision, period_of, ranges_of, vus_pr

LABELS = np.zeros(1000, np.int64)
LABELS[200:220] = LABELS[225:230] = LABELS[990:] = 1


def test_a_perfect_score_is_worth_1_and_one_by_chance_what_the_labels_share() -> None:
    assert average_precision(LABELS, LABELS.astype(np.float64)) == pytest.approx(1.0)
    chance = np.random.default_rng(1).uniform(size=1000)
    assert average_precision(LABELS, chance) < 0.08
    assert vus_pr(LABELS, LABELS.astype(np.float64), 0) == pytest.approx(1.0)
    assert vus_pr(LABELS, chance, 20) < 0.15


def test_average_precision_counts_equal_scores_together() -> None:
    assert average_precision(np.array([1, 0, 1, 0]), np.array([2.0, 2.0, 1.0, 0.0])) == pytest.approx(0.5 * 0.5 + 0.5 * 2 / 3)


def test_the_volume_forgives_a_score_that_is_a_little_late_and_a_miss_of_a_range_costs_recall() -> None:
    late = np.roll(LABELS, 3).astype(np.float64) + np.linspace(0.0, 0.01, 1000)
    assert vus_pr(LABELS, late, 40) > vus_pr(LABELS, late, 0)
    one = np.where(np.arange(1000) < 500, LABELS, 0) + np.linspace(0.01, 0.0, 1000)
    assert vus_pr(LABELS, one, 10) < 0.8


def test_the_volume_is_that_of_the_published_program() -> None:
    """0.4011 is what TSB-AD's RangeAUC_volume_opt gives for these scores, written down once."""
    labels = np.zeros(3000, np.int64)
    labels[300:340] = labels[350:360] = labels[900:903] = labels[2990:] = 1
    scores = np.round(np.random.default_rng(0).normal(0.0, 1.0, 3000) + 2.0 * labels, 2)
    assert vus_pr(labels, scores, 30) == pytest.approx(0.401096, abs=1e-5)


def test_ranges_and_periods() -> None:
    assert ranges_of(LABELS) == [(200, 219), (225, 229), (990, 999)]
    assert period_of(np.sin(np.arange(3000) / 7.0)) == 44
    assert period_of(np.arange(50.0)) == 125
