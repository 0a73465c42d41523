"""What a reader sees of numbers, times and names."""

import doctest
import math
from datetime import UTC

import pytest

from dashboard import formatting
from dashboard.formatting import SPACE


def plain(text: str) -> str:
    return text.replace(SPACE, " ")


def test_the_examples_in_the_texts_are_true():
    assert doctest.testmod(formatting).failed == 0


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "0 W"), (999.6, "1 k W"), (1000, "1 k W"), (12.0, "12 W"), (0.00012345, "0.000123 W"), (-1500, "−1.5 k W"), (math.inf, "–"), (100, "100 W"), (300, "300 W")],
)
def test_numbers_keep_three_digits_and_their_unit(value, said):
    assert plain(formatting.number(value, "W")) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (0.0004, "0.4 ms"), (59.97, "1 min"), (59.94, "59.9 s"), (60, "1 min"), (3600, "1 h"), (3660, "1 h 1 min"), (3605, "1 h"), (86_399.9, "1 d"), (-90, "−1 min 30 s"), (None, "–")],
)
def test_durations_name_two_units_at_most(seconds, said):
    assert plain(formatting.duration(seconds)) == said


@pytest.mark.parametrize(("distance", "said"), [(0.4, "just now"), (1, "1 s ago"), (3599, "59 min ago"), (90_000, "1 d ago"), (-30, "in 30 s")])
def test_how_long_ago(distance, said):
    assert plain(formatting.relative(1e9, 1e9 + distance)) == said


def test_times_are_the_readers():
    berlin = formatting.zone("Europe/Berlin")
    assert formatting.clock_time(0.0, berlin) == "01:00:00"
    assert formatting.zone_name(berlin, 0.0) == "CET"
    assert formatting.date_time(-7200.0, berlin, 0.0) == "31 Dec 1969 23:00:00", "yesterday in the reader's zone"
    assert formatting.zone("Not/AZone") is UTC
    assert formatting.zone("../../etc/passwd") is UTC
    assert formatting.zone(None) is UTC


def test_names_that_are_not_as_expected_stay_as_they_are():
    assert formatting.entity("worker", "odd") == "worker odd"
    assert formatting.entity("job", "team/gpt/run-1") == "job team/gpt/run-1"
