"""What the ring of a worker's flight recorder says of its collectives: how many bytes one moves, of which kind it is, and how fast the bus was.

Asked of torch's own server in the worker, which answers from a thread in C++ without the interpreter. A collective that begins while the ring is copied waits for the copy, not for the text.

What the fields mean (torch 2.13, dump version 2.10; FlightRecorderDetail.hpp, ProcessGroupGloo.cpp):
- NCCL writes `duration_ms`, the time between two CUDA events around the kernel, only with TORCH_NCCL_ENABLE_TIMING=1; it holds the wait for the rank that comes last. Without it there is no bus bandwidth.
- `time_discovered_started_ns` and `time_discovered_completed_ns` are when the watchdog looked, up to a tenth of a second late; gloo has no events and leaves them 0. No time is taken from them.
- gloo counts every operation (`op_id`), messages from one to one too, which its ring does not hold: their bytes are unknown and count as 0.
- NCCL counts collectives (`collective_seq_id`; a batch is one) and single messages (`p2p_seq_id`) apart, but its state has one number for both: of a group with both, nothing is told.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from eagle_eye.activity.collective_bytes import KINDS, CollectiveKind, bus_factor, kind_of, tensor_bytes
from eagle_eye.activity.collective_calls import COALESCED, LARGEST_NUMBER

NCCL, REST = "nccl", "gloo"
"""Recorders: NCCL's, and that of all other backends, as in what a worker writes of its groups."""


class RingGroup(NamedTuple):
    """A process group, in the recorder that counts its collectives."""

    name: str
    recorder: str


@dataclass(frozen=True, slots=True)
class RingSizes:
    """Of one group: what belongs to each number that its recorder counts."""

    bytes: Mapping[CollectiveKind, float]
    calls: Mapping[CollectiveKind, float]
    bus_bytes: float
    """Of those with a duration, times the factor of nccl-tests; all of the ring together."""
    bus_s: float
    """Their durations; 0: none has any."""

    @property
    def mean_bytes(self) -> float:
        return sum(self.bytes.values())


class _RingEntry(msgspec.Struct, frozen=True, gc=False):
    process_group: tuple[str, ...]
    profiling_name: str
    collective_seq_id: int
    p2p_seq_id: int = 0
    op_id: int = 0
    is_p2p: bool = False
    input_sizes: tuple[tuple[int, ...], ...] = ()
    input_dtypes: tuple[str, ...] = ()
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    duration_ms: float | None = None


class _Ring(msgspec.Struct, frozen=True):
    entries: tuple[_RingEntry, ...] = ()


_decoder = msgspec.json.Decoder(_Ring)


def ring_sizes(answers: Iterable[bytes], ranks: Mapping[str, int]) -> dict[RingGroup, RingSizes]:
    """From what the recorders answer (`live_flight_recorder.answers`). `ranks`: name of a group → its size. Raises ValueError for what is no ring."""
    groups: dict[RingGroup, list[_RingEntry]] = {}
    for answer in answers:
        try:
            ring = _decoder.decode(answer)  # msgspec's errors are ValueErrors
        except RecursionError:
            raise ValueError("it is nested too deep") from None
        for entry in ring.entries:
            name = entry.process_group[0] if entry.process_group else ""
            groups.setdefault(RingGroup(name, NCCL if entry.profiling_name.startswith("nccl:") else REST), []).append(entry)
    found = {group: _sizes(group, entries, ranks.get(group.name, 0)) for group, entries in groups.items()}
    return {group: sizes for group, sizes in found.items() if sizes is not None}


def _sizes(group: RingGroup, entries: list[_RingEntry], ranks: int) -> RingSizes | None:
    """None where its entries do not say what its recorder counts, or no size is known."""
    field_name = "op_id" if group.recorder == REST else _counted_by_nccl(entries)
    if not field_name:
        return None
    totals = _RingTotals(ranks)
    for entry in entries:
        if 0 <= (number := getattr(entry, field_name)) <= LARGEST_NUMBER:
            totals.add(entry, number)
    return totals.sizes()


def _counted_by_nccl(entries: list[_RingEntry]) -> str:
    messages = sum(entry.is_p2p for entry in entries)
    if not messages or any(entry.profiling_name.endswith(f":{COALESCED}") for entry in entries):
        return "collective_seq_id"
    return "p2p_seq_id" if messages == len(entries) else ""


@dataclass
class _RingTotals:
    """Adds up the entries of one group, in the order in which they were begun."""

    ranks: int
    _numbers: int = 0
    _unknown: int = 0
    """Entries whose sizes cannot be."""
    _newest: int = -1
    _bytes: dict[CollectiveKind, int] = field(default_factory=dict)
    _calls: dict[CollectiveKind, int] = field(default_factory=dict)
    _bus_bytes: float = 0.0
    _bus_s: float = 0.0
    _known: dict[tuple[object, ...], tuple[CollectiveKind, int]] = field(default_factory=dict)
    """Calls that were seen: there are few different ones in a ring."""

    def add(self, entry: _RingEntry, number: int) -> None:
        if self._newest < 0 or number < self._newest:  # the group was made anew, and counts from the beginning
            self._forget()
            self._numbers = 1
        else:
            self._numbers += number - self._newest
        self._newest = number
        kind, size = self._call(entry)
        if size < 0:
            self._unknown += 1
            return
        self._bytes[kind] = self._bytes.get(kind, 0) + size
        self._calls[kind] = self._calls.get(kind, 0) + 1
        self._add_duration(kind, size, entry.duration_ms)

    def sizes(self) -> RingSizes | None:
        counted = self._numbers - self._unknown
        if counted <= 0 or not self._calls:
            return None
        shares = {kind: self._bytes[kind] / counted for kind in KINDS if kind in self._bytes}
        return RingSizes(shares, {kind: self._calls[kind] / self._numbers for kind in shares}, self._bus_bytes, self._bus_s)

    def _forget(self) -> None:
        self._bytes.clear()
        self._calls.clear()
        self._unknown, self._bus_bytes, self._bus_s = 0, 0.0, 0.0

    def _call(self, entry: _RingEntry) -> tuple[CollectiveKind, int]:
        key = (entry.profiling_name, entry.input_sizes, entry.input_dtypes, entry.output_sizes, entry.output_dtypes)
        found = self._known.get(key)
        if found is None:
            sides = tensor_bytes(entry.input_sizes, entry.input_dtypes), tensor_bytes(entry.output_sizes, entry.output_dtypes)
            found = self._known[key] = kind_of(entry.profiling_name.partition(":")[2]), max(sides) if min(sides) >= 0 else -1
        return found

    def _add_duration(self, kind: CollectiveKind, size: int, duration_ms: float | None) -> None:
        factor = bus_factor(kind, self.ranks)
        if duration_ms is not None and 0 < duration_ms < math.inf and size and not math.isnan(factor):
            self._bus_bytes += size * factor
            self._bus_s += duration_ms / 1e3
