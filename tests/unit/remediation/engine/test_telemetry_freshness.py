"""Silence told from a clock that is off."""

from collections.abc import Iterable

from eagle_eye.types import JobSnapshot, Telemetry
from remediation.engine.job_state import TelemetryFreshness

T = 1_700_000_000.0


def heard(ages: Iterable[float], node: str = "n") -> Telemetry:
    """What is known after a tick each second, at which the node's newest batch was so old."""
    telemetry = TelemetryFreshness()
    for second, age in enumerate(ages):
        late = {node: age} if abs(age) > 3.0 else {}
        telemetry.update(JobSnapshot(job="j", generation=1, number=second, time=T + second, tick=True, late=late))
    return telemetry.of([node])[node]


def test_a_node_whose_batches_come_is_heard_now():
    assert heard([0.5, 0.7, 1.2]) == Telemetry(node="n", heard=T + 2)


def test_a_node_that_falls_silent_was_heard_last_when_it_still_spoke():
    told = heard([0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (told.heard, told.skew_s) == (T + 3, 0.0)


def test_a_clock_that_is_off_is_no_silence():
    behind = heard([30.5, 30.5, 30.5])
    assert (behind.heard, behind.skew_s) == (T + 2, -30.5)
    ahead = heard([0.5, -40.0, -40.0])
    assert (ahead.heard, ahead.skew_s) == (T + 2, 40.0)


def test_a_node_with_a_wrong_clock_may_fall_silent_too():
    told = heard([0.5, -40.0, -39.0, -38.0, -37.0])
    assert (told.heard, told.skew_s) == (T + 1, 40.0)


def test_a_node_that_never_spoke_was_never_heard():
    assert heard([T, T + 1, T + 2]).heard == 0.0


def test_when_no_tick_comes_nobody_is_heard_any_more():
    telemetry = TelemetryFreshness()
    telemetry.update(JobSnapshot(job="j", generation=1, number=1, time=T, tick=True))
    assert telemetry.of(["a", "b"])["b"].heard == T
