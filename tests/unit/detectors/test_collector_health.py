"""Telemetry that fails is a finding."""

from detectors.collector_health import CollectorHealth
from fakes.synthetic_events import claims_of, cut_frame, event, node

NODE = node("node-0")


def test_fault_a_failing_collector_is_told_until_all_work_again() -> None:
    frames = [
        cut_frame(1.0, event("collector.failing", NODE, 1.0, collector="gpu", reason="driver hangs")),
        cut_frame(2.0, event("collector.failing", NODE, 2.0, collector="host", reason="no /proc")),
        cut_frame(3.0, event("collector.recovered", NODE, 3.0, collector="gpu")),
        cut_frame(4.0, event("collector.recovered", NODE, 4.0, collector="host")),
    ]
    claims = claims_of(CollectorHealth(), frames)
    assert [(claim.active, len(claim.evidence)) for claim in claims] == [(True, 1), (True, 2), (True, 1), (False, 2)]
    assert {claim.since for claim in claims} == {1.0}
    assert "driver hangs" in claims[0].evidence[0].text


def test_twin_a_collector_that_is_back_and_never_failed_says_nothing() -> None:
    assert claims_of(CollectorHealth(), [cut_frame(1.0, event("collector.recovered", NODE, 1.0, collector="gpu"))]) == []
