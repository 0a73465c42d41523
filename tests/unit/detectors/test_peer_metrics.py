"""Whose power or clock keeps apart from that of its peers, and whose readings are stuck."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from detectors.peer_metrics import PeerMetrics
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Kind
from fakes.synthetic_events import claims_of
from fakes.synthetic_frames import Draft, Fault, job_frames, layout_of

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


# --- readings that are stuck -------------------------------------------------------------------------------------------

BROKEN_AT = 60
ONE, ALL = slice(5, 6), slice(None)


def of_a_job(*faults: Fault, ticks: int = 200, nodes: int = 4) -> list[tuple[str, str, bool]]:
    seen = job_frames(nodes, 4, ticks, np.random.default_rng(3), faults=faults, gpus=True, layout=layout_of(nodes, 4, gpus=True))
    return [(claim.kind, claim.entity.name, claim.active) for claim in claims_of(PeerMetrics(), list(seen))]


def reads(kind: Kind, value: float | None, of: slice, *metrics: str, begin: int = BROKEN_AT, end: int = 1 << 30) -> Fault:
    """None: as it was when it began."""
    kept: dict[str, np.ndarray] = {}

    def fault(draft: Draft) -> None:
        if begin <= draft.tick < end:
            for metric in metrics:
                kept.setdefault(metric, draft.metrics[kind][metric][of].copy())
                draft.metrics[kind][metric][of] = kept[metric] if value is None else value

    return fault


STUCK_GPU, STUCK_NODE, STUCK_JOB = ("gpu.reading_stuck", "GPU-node-1/1", True), ("node.reading_stuck", "node-1", True), ("job.reading_stuck", "team/gpt/run", True)
OF_GPUS = ("utilisation_percent", "power_watts", "temperature_celsius", "sm_clock_mhz", "memory_used_bytes")
COUNTERS = ("net_received_bytes_per_s", "net_sent_bytes_per_s", "context_switches_per_s", "cpu_percent")


@pytest.mark.parametrize("metric", OF_GPUS)
def test_fault_a_gpu_that_trains_and_reads_0_has_a_stuck_reading_and_is_not_told_as_unlike_its_peers(metric: str) -> None:
    assert of_a_job(reads(Kind.GPU, 0.0, ONE, metric), ticks=100) == [STUCK_GPU]


def test_fault_a_gpu_of_which_all_reads_0_has_one_finding_that_names_all_of_it() -> None:
    found = of_a_job(reads(Kind.GPU, 0.0, ONE, *OF_GPUS), ticks=100)
    assert set(found) == {STUCK_GPU}


@pytest.mark.parametrize("metric", ["power_watts", "utilisation_percent", "temperature_celsius", "sm_clock_mhz"])
def test_fault_a_reading_that_used_to_change_and_stands_still_while_those_of_its_peers_change(metric: str) -> None:
    assert of_a_job(reads(Kind.GPU, None, ONE, metric, end=190)) == [STUCK_GPU, (*STUCK_GPU[:2], False)]


@pytest.mark.parametrize("metric", OF_GPUS)
def test_fault_what_reads_0_on_all_gpus_at_once_is_of_the_telemetry_and_told_of_the_job(metric: str) -> None:
    assert of_a_job(reads(Kind.GPU, 0.0, ALL, metric, end=90), ticks=100) == [STUCK_JOB, (*STUCK_JOB[:2], False)]


def test_fault_powers_that_stand_still_on_all_gpus_at_once() -> None:
    assert of_a_job(reads(Kind.GPU, None, ALL, "power_watts"), ticks=110) == [STUCK_JOB]


@pytest.mark.parametrize("metric", COUNTERS)
@pytest.mark.parametrize("value", [0.0, None])
def test_fault_a_node_whose_counters_read_0_or_stand_still_while_it_trains(metric: str, value: float | None) -> None:
    assert of_a_job(reads(Kind.NODE, value, slice(1, 2), metric), ticks=110) == [STUCK_NODE]


def idle(draft: Draft) -> None:
    """One GPU waits: it computes nothing, and draws little."""
    if draft.tick >= BROKEN_AT:
        draft.metrics[Kind.GPU]["utilisation_percent"][ONE] = 0.0
        draft.metrics[Kind.GPU]["power_watts"][ONE] *= np.float32(0.2)


def strange(draft: Draft) -> None:
    """GPUs of the node that the job does not use fall idle and quiet."""
    draft.entities[Kind.GPU] += ("GPU-other/0", "GPU-other/1")
    for metric, values in draft.metrics[Kind.GPU].items():
        draft.metrics[Kind.GPU][metric] = np.append(values, values[:2] if draft.tick < BROKEN_AT or metric == "power_watts" else np.zeros(2, np.float32))


def whole_degrees(draft: Draft) -> None:
    """Each stands for a good minute, as it does once a load is steady."""
    degrees = draft.metrics[Kind.GPU]["temperature_celsius"]
    for place in range(len(degrees)):
        degrees[place] = 62.0 + (draft.tick + 7 * place) // (75 if place == 5 and draft.tick >= BROKEN_AT else 8) % 3


def no_steps(draft: Draft) -> None:
    """The job pauses, and its GPUs with it."""
    if draft.tick >= BROKEN_AT:
        draft.steps.clear()


def locked(draft: Draft) -> None:
    """Somebody sets all clocks."""
    if draft.tick >= BROKEN_AT:
        draft.metrics[Kind.GPU]["sm_clock_mhz"][:] = 1500.0


def full(draft: Draft) -> None:
    """As much as there is."""
    draft.metrics[Kind.GPU]["utilisation_percent"][:] = 100.0 if draft.tick >= BROKEN_AT else np.minimum(draft.metrics[Kind.GPU]["utilisation_percent"] + 4.0, 100.0)
    draft.metrics[Kind.GPU]["memory_used_bytes"][:] = 7e10


def repeated(draft: Draft) -> None:
    """A driver that is asked every tenth second, and told in between as it was."""
    for kind, metric in ((Kind.NODE, "context_switches_per_s"), (Kind.GPU, "temperature_celsius")):
        values = draft.metrics[kind][metric]
        values[:] = 60.0 + (draft.tick // 10 * 7 + np.arange(len(values))) % 11


@pytest.mark.parametrize(
    "innocent",
    [
        idle, strange, whole_degrees, locked, full, repeated,
        reads(Kind.GPU, 0.0, ONE, "utilisation_percent", begin=0),
        reads(Kind.GPU, 0.0, ONE, "utilisation_percent", begin=60, end=68),
        reads(Kind.NODE, 0.0, ALL, "net_received_bytes_per_s", "net_sent_bytes_per_s"),
        reads(Kind.NODE, 0.0, slice(1, 2), "net_sent_bytes_per_s", begin=0),
    ],
    ids=["idle", "not of the job", "whole degrees", "locked clocks", "at its bound", "asked every tenth second", "always 0", "0 for a moment", "one node is enough", "never any traffic"],
)  # fmt: skip
def test_twin_what_may_stand_still_or_be_0_is_no_stuck_reading(innocent: Fault) -> None:
    assert [told for told in of_a_job(innocent) if "stuck" in told[0]] == []


def test_twin_nothing_is_stuck_while_the_job_does_not_train() -> None:
    assert of_a_job(no_steps, reads(Kind.GPU, 0.0, ALL, "utilisation_percent", "power_watts"), reads(Kind.NODE, 0.0, ONE, "cpu_percent")) == []
