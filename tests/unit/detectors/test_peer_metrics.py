"""Whose power or clock keeps apart from that of its peers, and whose readings are stuck."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from detectors.peer_metrics import PeerMetrics
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Kind

GPUS = tuple(f"GPU-{number}" for number in range(8))
SICK = 3
BEGIN = 40
Change = Callable[[Doubles], object]
"""Changes readings (ticks × GPUs) in place."""


def frames(change: Change, metric: str = "power_watts", *, ticks: int = 80, gpus: tuple[str, ...] = GPUS) -> Iterator[Frame]:
    """All swing with the step; 1 % of noise, and GPUs that differ by a few percent."""
    rng = np.random.default_rng(5)
    swing = 1.0 + 0.1 * np.sin(np.arange(ticks))[:, None]
    power = 600.0 * swing * np.linspace(0.97, 1.03, len(gpus)) * np.exp(rng.normal(0.0, 0.01, (ticks, len(gpus))))
    change(power)
    for tick, row in enumerate(power):
        yield Frame(job="t/n/r", number=tick + 1, generation=1, time=100.0 + tick, tick=True, entities={Kind.GPU: gpus}, metrics={Kind.GPU: {metric: row.astype(np.float32)}})


def told(change: Change, *, metric: str = "power_watts", detector: PeerMetrics | None = None, gpus: tuple[str, ...] = GPUS) -> list[Claim]:
    found = detector or PeerMetrics()
    return [claim for frame in frames(change, metric, gpus=gpus) for claim in found.update(frame)]


def one(times: float, begin: int = BEGIN, end: int = 60, gpus: slice = slice(SICK, SICK + 1)) -> Change:
    def change(power: Doubles) -> None:
        power[begin:end, gpus] *= times

    return change


@pytest.mark.parametrize("times", [0.35, 0.8, 1.25])
@pytest.mark.parametrize("metric", ["power_watts", "sm_clock_mhz"])
def test_fault_a_gpu_that_keeps_apart_is_told_in_seconds_and_withdrawn(times: float, metric: str) -> None:
    first, last = told(one(times), metric=metric)
    assert (first.kind, first.entity.name, first.active, last.active) == ("gpu.unlike_peers", GPUS[SICK], True, False)
    assert first.since == 100.0 + BEGIN
    assert ("below" if times < 1.0 else "above") in first.evidence[0].text
    assert first.evidence[0].value == pytest.approx(times, rel=0.05)


def test_fault_it_is_told_after_six_seconds() -> None:
    detector = PeerMetrics()
    assert [frame.time for frame in frames(one(0.7)) if any(claim.active for claim in detector.update(frame))] == [100.0 + BEGIN + 6.0]


def nothing(power: Doubles) -> None:
    """Healthy."""


def pause(power: Doubles) -> None:
    """An evaluation: one works, the others wait."""
    power[BEGIN:60] = 150.0
    power[BEGIN:60, SICK] = 300.0


def late(power: Doubles) -> None:
    """Half of the power for all, and one is read three ticks late."""
    power[BEGIN:, :] *= 0.85
    power[BEGIN : BEGIN + 3, SICK] /= 0.85


def both_sides(power: Doubles) -> None:
    """One that swings against the others."""
    power[BEGIN:60:2, SICK] *= 1.3
    power[BEGIN + 1 : 60 : 2, SICK] *= 0.7


def unread(power: Doubles) -> None:
    power[BEGIN:60, SICK] = np.nan


@pytest.mark.parametrize(
    "innocent",
    [nothing, pause, late, both_sides, unread, one(0.7, begin=0, end=80), one(0.7, end=BEGIN + 4), one(0.95), one(0.7, gpus=slice(0, 8)), one(0.7, gpus=slice(0, 4)), one(1.3, gpus=slice(0, 8))],
    ids=["healthy", "pause", "late", "both sides", "not read", "always so", "four seconds", "a little", "all", "half of them", "all work harder"],
)
def test_twin_who_is_as_its_peers_or_as_ever_is_not_told(innocent: Change) -> None:
    assert told(innocent) == []


def hold(begin: int, end: int) -> Change:
    def change(power: Doubles) -> None:
        power[begin:end, SICK] = power[begin, SICK]

    return change


def test_fault_a_meter_whose_readings_do_not_change_is_told_until_they_do() -> None:
    first, last = told(hold(BEGIN, 60))
    assert (first.kind, first.entity.name, first.active, last.active) == ("gpu.reading_stuck", GPUS[SICK], True, False)
    assert first.since == 100.0 + BEGIN


def clocks(power: Doubles) -> None:
    """As a rule they stand still."""
    power[:] = 1980.0


def test_twin_readings_that_stand_still_for_a_moment_for_all_or_as_a_clock_may_are_not_told() -> None:
    assert told(hold(BEGIN, BEGIN + 4)) == []
    assert told(clocks) == []
    assert told(hold(BEGIN, 60), metric="sm_clock_mhz") == []


def test_three_gpus_are_too_few() -> None:
    assert told(one(0.3, gpus=slice(0, 1)), gpus=GPUS[:3]) == []


def test_nodes_are_compared_too_and_what_is_gone_is_withdrawn() -> None:
    detector, nodes, found = PeerMetrics(), tuple(f"node-{number}" for number in range(8)), []
    for frame in frames(one(0.5, end=80)):
        names = nodes if frame.time < 160.0 else nodes[:SICK] + nodes[SICK + 1 :]
        power = frame.metrics[Kind.GPU]["power_watts"]
        there = Frame(
            job=frame.job, number=frame.number, generation=1, time=frame.time, tick=True, entities={Kind.NODE: names},
            metrics={Kind.NODE: {"power_watts": power if len(names) == 8 else np.delete(power, SICK)}},
        )  # fmt: skip
        found += list(detector.update(there))
    assert [(claim.kind, claim.entity.name, claim.active) for claim in found] == [("node.unlike_peers", "node-3", True), ("node.unlike_peers", "node-3", False)]
    assert found[-1].evidence[-1].text == "over: nothing is read of it any more"
