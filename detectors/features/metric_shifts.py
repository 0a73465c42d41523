"""Which metrics of a job moved on most of its machines when it lost throughput: its levels from before the loss beside those since.

It shows what came together, not what came first: a lower clock, a throttle reason, a higher temperature or a slower file system do not come from waiting; that power, load and
traffic fall, slower steps do by themselves. So these are told only beside something else that moved. One that is always on the move is not told: what it shows since is
compared with nearly all that it showed before. All is kept by machine, of so many machines at most that it costs the same whatever the size of the job.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Evidence, Floats, Integers, Kind

MOST_ENTITIES = 1024
"""Of one kind that are looked at, evenly over all."""
MOSTLY = 0.5
"""Of them, at least, that must have moved the same way."""
FEWEST_BEFORE, FEWEST_SINCE = 8, 3
"""Samples that a comparison needs."""
ORDINARY = 0.05
"""Share of the samples before at each end that are left out of what was ordinary: a pause, a start."""
MOST_LINES = 3
MASK = "throttle_reasons"
REASONS = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "thermal, by software", 0x40: "thermal, by hardware", 0x80: "power brake",
}  # fmt: skip
"""Bits of NVML's mask that hold the clocks down. Idle, and clocks that somebody set, do not belong to them."""


class _Watched(NamedTuple):
    """A metric that is compared."""

    kind: Kind
    metric: str
    share: float
    """It must change by so much of what it was ..."""
    least: float
    """... and by so much."""
    rises: bool = True
    falls: bool = True
    waits: bool = False
    """Slower steps by themselves lower it."""


def _rising(kind: Kind, share: float, least: float, *metrics: str) -> tuple[_Watched, ...]:
    return tuple(_Watched(kind, metric, share, least, falls=False) for metric in metrics)


def _falling(kind: Kind, share: float, least: float, *metrics: str) -> tuple[_Watched, ...]:
    return tuple(_Watched(kind, metric, share, least, rises=False) for metric in metrics)


def _waiting(kind: Kind, share: float, least: float, *metrics: str) -> tuple[_Watched, ...]:
    return tuple(_Watched(kind, metric, share, least, waits=True) for metric in metrics)


WATCHED = (
    *_rising(Kind.GPU, 0.0, 0.5, MASK),
    *_rising(Kind.GPU, 0.0, 10.0, *(f"throttled_{why}_percent" for why in (
        "power", "thermal", "sync_boost", "board_limit", "reliability", "software_thermal", "hardware_thermal", "power_brake",
    ))),
    *_falling(Kind.GPU, 0.05, 1.0, "sm_clock_mhz", "memory_clock_mhz"),
    *_falling(Kind.GPU, 0.25, 1.0, "pcie_generation", "pcie_width"),
    *_rising(Kind.GPU, 0.0, 5.0, "temperature_celsius", "memory_temperature_celsius"),
    *_rising(Kind.GPU, 1.0, 1.0, "pcie_replays_per_s", "nvlink_replays_per_s", "nvlink_crc_errors_per_s", "ecc_corrected_per_s"),
    *_waiting(Kind.GPU, 0.1, 1.0, "power_watts", "utilisation_percent"),
    *_rising(Kind.MOUNT, 1.0, 0.005, "stat_s", "read_s", "write_s", "round_trip_s"),
    *_rising(Kind.MOUNT, 1.0, 1.0, "retransmissions_per_s", "timeouts_per_s"),
    *_falling(Kind.LINK, 0.25, 1.0, "link_rate_bytes_per_s"),
    *_rising(Kind.LINK, 1.0, 10.0, "retries_per_s", "discards_per_s", "pauses_per_s", "congestion_marks_per_s", "send_waits_per_s"),
    *_waiting(Kind.LINK, 0.25, 1e6, "received_bytes_per_s", "sent_bytes_per_s"),
    *_rising(Kind.NODE, 0.0, 15.0, "cpu_percent"),
    *_rising(Kind.NODE, 0.0, 5.0, "cpu_steal_percent", "swap_percent"),
    *_rising(Kind.NODE, 1.0, 4.0, "processes_blocked"),
    *_rising(Kind.NODE, 1.0, 1000.0, "numa_misses_per_s", "tcp_retransmissions_per_s"),
    *_waiting(Kind.NODE, 0.25, 1e6, "net_received_bytes_per_s", "net_sent_bytes_per_s", "disk_read_bytes_per_s", "disk_write_bytes_per_s"),
    *_waiting(Kind.NODE, 0.25, 1000.0, "context_switches_per_s"),
)  # fmt: skip
_METRICS = {kind: tuple(each.metric for each in WATCHED if each.kind is kind) for kind in (Kind.GPU, Kind.MOUNT, Kind.LINK, Kind.NODE)}
_PLURALS = {Kind.GPU: "GPUs", Kind.MOUNT: "mounts", Kind.LINK: "links", Kind.NODE: "nodes"}


class _Rows(NamedTuple):
    """What the looked-at entities of one kind showed last, at one moment."""

    names: tuple[str, ...]
    metrics: Mapping[str, Floats]


class _Sample(NamedTuple):
    time: float
    rows: Mapping[Kind, _Rows]


class _Shift(NamedTuple):
    """One metric that moved."""

    watched: _Watched
    before: float
    since: float
    moved: int
    known: int
    reason: str = ""

    @property
    def follows(self) -> bool:
        """Slower steps by themselves do this."""
        return self.watched.waits and self.since < self.before

    @property
    def size(self) -> float:
        return abs(self.since - self.before) / max(abs(self.before), self.watched.least)

    @property
    def line(self) -> Evidence:
        metric, of = self.watched.metric, f"{self.moved} of {self.known} {_PLURALS[self.watched.kind]}"
        if metric == MASK:
            text = f"moved with it: {of} are throttled that were not before{f' ({self.reason})' if self.reason else ''}"
        else:
            text = f"moved with it: {metric} {self.before:.4g} → {self.since:.4g} (median), on {of}"
        return Evidence(text=f"{text}; slower steps by themselves lower it" if self.follows else text, metric=metric, value=self.since, threshold=self.before)


@dataclass
class MetricShifts:
    """Of one job. `update` at each tick, `settle` with what was no loss, `drop` with what belongs to no steady time."""

    _before: deque[_Sample] = field(default_factory=lambda: deque(maxlen=64))
    _since: deque[_Sample] = field(default_factory=lambda: deque(maxlen=32))
    """Of which it is not settled yet whether the job was at its level."""
    _last: dict[Kind, _Rows] = field(default_factory=dict)
    """The newest reading of each metric: some are read every ten seconds."""
    _columns: dict[Kind, tuple[tuple[str, ...], Integers]] = field(default_factory=dict)
    """Names of a kind → the columns that are looked at."""

    def update(self, frame: Frame, every_s: float) -> None:
        """Take a tick in; a sample at most every so many seconds."""
        for kind, metrics in _METRICS.items():
            if names := frame.entities.get(kind, ()):
                self._last[kind] = self._newest(kind, names, frame, metrics)
            else:
                self._last.pop(kind, None)
        if self._last and (not self._since or frame.time - self._since[-1].time >= every_s):
            self._since.append(_Sample(frame.time, dict(self._last)))

    def settle(self, until: float) -> None:
        """Up to this time the job was at its level."""
        while self._since and self._since[0].time <= until:
            self._before.append(self._since.popleft())

    def drop(self) -> None:
        """The newest samples are of a loss that is over, or of a pause."""
        self._since.clear()

    def lines(self, since: float) -> tuple[Evidence, ...]:
        """What moved, the most telling first; () if nothing did but what slower steps do by themselves. `since`: of the loss."""
        shifts = sorted(self._shifts([sample for sample in self._since if sample.time > since]), key=lambda shift: (shift.follows, -shift.size))
        return tuple(shift.line for shift in shifts[:MOST_LINES]) if shifts and not shifts[0].follows else ()

    def _newest(self, kind: Kind, names: tuple[str, ...], frame: Frame, metrics: tuple[str, ...]) -> _Rows:
        known, columns = self._columns.get(kind, ((), np.zeros(0, np.int64)))
        if known != names:
            columns = _looked_at(names, frame, kind)
            self._columns[kind] = names, columns
            self._last.pop(kind, None)
        before = self._last.get(kind)
        chosen = before.names if before else tuple(names[column] for column in columns.tolist())
        read = {metric: values[columns] for metric in metrics if (values := frame.metrics.get(kind, {}).get(metric)) is not None}
        if before:
            read = {**before.metrics, **{metric: _filled(values, before.metrics.get(metric)) for metric, values in read.items()}}
        return _Rows(chosen, read)

    def _shifts(self, newest: Sequence[_Sample]) -> Iterator[_Shift]:
        if len(self._before) < FEWEST_BEFORE or len(newest) < FEWEST_SINCE:
            return
        for watched in WATCHED:
            rows = self._last.get(watched.kind)
            if rows is not None and watched.metric in rows.metrics and (shift := self._shift(watched, rows.names, newest)) is not None:
                yield shift

    def _shift(self, watched: _Watched, names: tuple[str, ...], newest: Sequence[_Sample]) -> _Shift | None:
        before, since = (_ordered(samples, watched, names) for samples in (self._before, newest))
        usual, now, low, high = _quantile(before, 0.5), _quantile(since, 0.5), _quantile(before, ORDINARY), _quantile(before, 1.0 - ORDINARY)
        enough = np.maximum(watched.share * np.abs(usual), watched.least)
        known = np.isfinite(usual) & np.isfinite(now) & (np.isfinite(before).sum(axis=0) >= FEWEST_BEFORE)
        up, down = known & (now > high) & (now - usual >= enough), known & (now < low) & (usual - now >= enough)
        moved = max(int(up.sum()) if watched.rises else 0, int(down.sum()) if watched.falls else 0)
        if not moved or moved < MOSTLY * np.count_nonzero(known):
            return None
        reason = _reason(self._last[watched.kind].metrics[MASK]) if watched.metric == MASK else ""
        return _Shift(watched, float(np.median(usual[known])), float(np.median(now[known])), moved, int(np.count_nonzero(known)), reason)


def _looked_at(names: tuple[str, ...], frame: Frame, kind: Kind) -> Integers:
    """Columns of the job's own GPUs, where the layout names them, else of all; evenly, if they are very many."""
    own = {place.gpu for place in frame.layout.placements} if kind is Kind.GPU and frame.layout is not None else set()
    columns = [column for column, name in enumerate(names) if name in own] or list(range(len(names)))
    return np.array(columns[:: -(-len(columns) // MOST_ENTITIES)], np.int64)


def _filled(values: Floats, before: Floats | None) -> Floats:
    """What was not read now is as it was read last."""
    filled: Floats = values if before is None else np.where(np.isnan(values), before, values)
    return filled


def _ordered(samples: Sequence[_Sample], watched: _Watched, names: tuple[str, ...]) -> Floats:
    """Samples × these entities, each column in order, NaN last."""
    table = np.full((len(samples), len(names)), np.nan, np.float32)
    for line, sample in zip(table, samples, strict=True):
        rows = sample.rows.get(watched.kind)
        if rows is not None and watched.metric in rows.metrics:
            line[:] = _aligned(rows.metrics[watched.metric], rows.names, names)
    table[np.isinf(table)] = np.nan
    return np.sort(_throttled(table) if watched.metric == MASK else table, axis=0)


def _aligned(values: Floats, names: tuple[str, ...], wanted: tuple[str, ...]) -> Floats:
    if names == wanted:
        return values
    column = {name: number for number, name in enumerate(names)}
    places = np.array([column.get(name, -1) for name in wanted], np.int64)
    aligned: Floats = np.append(values, np.float32(np.nan))[places]
    return aligned


def _throttled(masks: Floats) -> Floats:
    """1.0 where a bit holds the clocks down."""
    bits = np.nan_to_num(masks, nan=0.0).astype(np.int64) & sum(REASONS)
    throttled: Floats = np.where(np.isnan(masks), np.nan, bits != 0).astype(np.float32)
    return throttled


def _reason(masks: Floats) -> str:
    """Of the bits that hold clocks down, the one that most GPUs have."""
    bits = np.nan_to_num(masks, nan=0.0, posinf=0.0, neginf=0.0).astype(np.int64)
    count, bit = max((int(np.count_nonzero(bits & bit)), -bit) for bit in REASONS)
    return REASONS[-bit] if count else ""


def _quantile(ordered: Floats, share: float) -> Floats:
    """Of each column what so many of its known values are below; NaN if none is known."""
    known = np.isfinite(ordered).sum(axis=0)
    place = np.minimum(np.rint(share * (known - 1)), len(ordered) - 1).astype(np.int64)
    quantile: Floats = np.where(known > 0, ordered[np.maximum(place, 0), np.arange(ordered.shape[1])], np.nan)
    return quantile
