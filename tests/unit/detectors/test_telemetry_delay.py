"""Telemetry that stopped or comes late while its job trains on: told of the node, and of nobody where somebody else tells it, or nothing is wrong."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.telemetry_delay import TelemetryDelay
from eagle_eye.frames import Frame
from eagle_eye.types import Event, Kind, Layout
from fakes.synthetic_events import claims_of, event, job, node, with_events
from fakes.synthetic_frames import BEGAN, job_frames, layout_of

LATE = "node-1"


def frames(ticks: int = 40, nodes: int = 4) -> list[Frame]:
    return list(job_frames(nodes, 1, ticks, np.random.default_rng(0)))


def silent(told: list[Frame], *names: str, begin: int = 5, end: int = 1 << 30) -> list[Frame]:
    """Nothing comes from these nodes between two ticks."""
    last = told[begin].reporting
    return [
        replace(frame, reporting={name: last[name] if name in names and begin <= index < end else time for name, time in frame.reporting.items()})
        for index, frame in enumerate(told)
    ]


def happens(told: list[Frame], at: int, *events: Event) -> list[Frame]:
    return [with_events(frame, *events) if index == at else frame for index, frame in enumerate(told)]


def without_node(layout: Layout, without: str) -> Layout:
    return msgspec.structs.replace(layout, placements=tuple(place for place in layout.placements if place.node != without))


def test_fault_a_dead_agent_on_a_node_that_trains_is_told_once_and_over_when_it_is_back() -> None:
    told, over = claims_of(TelemetryDelay(), silent(frames(70), LATE, end=30))
    assert (told.kind, told.entity, told.active) == ("telemetry.late", node(LATE), True)
    assert told.since == pytest.approx(BEGAN + 5.9), "since its newest batch"
    assert "its agent is away" in told.evidence[0].text
    assert (over.entity, over.active, over.evidence[-1].value) == (node(LATE), False, pytest.approx(BEGAN + 61.0)), "30 s after it came back"


def test_batches_that_come_fifteen_seconds_at_a_time_are_told_once() -> None:
    told = [replace(frame, reporting={**frame.reporting, LATE: BEGAN + index // 15 * 15 + 1.0}) for index, frame in enumerate(frames(300))]
    (claim,) = claims_of(TelemetryDelay(), told)
    assert (claim.entity, claim.active) == (node(LATE), True)


def test_of_most_nodes_that_come_and_go_the_job_is_told_once() -> None:
    most = tuple(frames(1)[0].reporting)[1:]
    told = [replace(frame, reporting={**frame.reporting, **dict.fromkeys(most, BEGAN + index // 15 * 15 + 1.0)}) for index, frame in enumerate(frames(300))]
    assert [(claim.entity.kind, claim.active) for claim in claims_of(TelemetryDelay(), told)] == [(Kind.JOB, True)]


def test_twin_an_agent_that_begins_again_is_nothing() -> None:
    assert claims_of(TelemetryDelay(), silent(frames(), LATE, end=15)) == []


def test_twin_a_node_that_was_just_cordoned_is_no_part_of_the_job() -> None:
    fewer = without_node(layout_of(4, 1, epoch=2), LATE)
    told = [replace(frame, layout=fewer) if index >= 8 else frame for index, frame in enumerate(silent(frames(), LATE))]
    assert claims_of(TelemetryDelay(), told) == []


def test_twin_a_node_whose_launcher_is_gone_is_left_to_liveness() -> None:
    gone = event("session.lost", node(LATE), BEGAN + 7.0, role="launcher")
    assert claims_of(TelemetryDelay(), happens(silent(frames(), LATE), 7, gone)) == []
    _, over = claims_of(TelemetryDelay(), happens(silent(frames(), LATE), 25, gone))
    assert "launcher" in over.evidence[-1].text


def test_twin_a_job_that_ends_and_one_all_of_whose_nodes_are_silent_are_nothing() -> None:
    everyone = tuple(frames(1)[0].reporting)
    assert claims_of(TelemetryDelay(), silent(frames(), *everyone)) == []
    assert claims_of(TelemetryDelay(), happens(silent(frames(), *everyone[1:]), 8, event("job.finished", job(), BEGAN + 8.0))) == []


def test_most_nodes_are_told_as_the_job() -> None:
    told, _ = claims_of(TelemetryDelay(), silent(frames(70), *tuple(frames(1)[0].reporting)[1:], end=30))
    assert told.entity.kind is Kind.JOB
    assert "3 of 4 nodes" in told.evidence[0].text


def test_a_clock_that_is_behind_is_no_late_telemetry() -> None:
    told = [replace(frame, reporting={**frame.reporting, LATE: frame.time - 60.4}, clocks={LATE: -60.0}) for frame in frames()]
    assert claims_of(TelemetryDelay(), told) == []
