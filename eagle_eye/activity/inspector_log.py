"""What NCCL Inspector, a profiler plugin of NCCL 2.28 and later, writes of each collective: one JSON object a line, in HOST-pidPID.log (formats v4.0 to v5.1).

It measures on the GPU from when the rank's own kernel runs: so the rank that comes last to a collective has the shortest time in it, and the others wait for it.
Messages under 8 KiB are left out unless its configuration says otherwise, and so is what is still under way.
"""

import math
import os
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

import msgspec

from eagle_eye.errors import WireError
from eagle_eye.regular_file import open_regular

LINE_BYTES = 1 << 20
"""With its events (NCCL_INSPECTOR_DUMP_VERBOSE=1) a line of 64 channels has 20 KB."""
FILE_BYTES = 4 << 30
"""Of one file; a line has 500 bytes, a collective of eight ranks as many lines."""
HEAD_BYTES = 1 << 16
KEYS_MOST = 100_000
"""Operations of communicators and ranks that are counted apart."""
GIGABYTE = 1e9
MOST_GIGABYTES_PER_S = 1e6
"""A bus bandwidth beyond is none; one GPU's NVLink has 900."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
"""Some builds write 5663.0 for a whole number."""
_Text = Annotated[str, msgspec.Meta(max_length=256)]


class _Header(msgspec.Struct, frozen=True):
    id: _Text
    rank: _Count
    n_ranks: _Count = 0
    comm_name: _Text = ""


class _Collective(msgspec.Struct, frozen=True):
    coll: _Text
    coll_sn: _Count
    coll_msg_size_bytes: _Count
    coll_exec_time_us: _Time
    coll_busbw_gbs: float | str = math.nan
    """Text where it is no number."""


class _PeerToPeer(msgspec.Struct, frozen=True):
    p2p: _Text
    p2p_sn: _Count
    p2p_msg_size_bytes: _Count
    p2p_exec_time_us: _Time
    p2p_busbw_gbs: float | str = math.nan


class _Line(msgspec.Struct, frozen=True):
    header: _Header
    coll_perf: _Collective | None = None
    p2p_perf: _PeerToPeer | None = None


_decoder = msgspec.json.Decoder(_Line)


class MeasuredOperation(NamedTuple):
    """One operation of one rank, when it was over."""

    communicator: str
    """Its hash."""
    group: str
    """The communicator's name: torch gives it that of the process group; '': it has none."""
    rank: int
    """Within the communicator."""
    ranks: int
    """Of the communicator; 0: not told."""
    operation: str
    """Such as AllReduce, or Send."""
    peer_to_peer: bool
    bytes: int
    """Of the message, as NCCL counts it: of one rank's part in an AllGather or ReduceScatter."""
    seconds: float
    bus_bytes_per_s: float
    """Bus bandwidth as nccl-tests define it; NaN: not told."""


def measured_operation(line: bytes) -> MeasuredOperation | None:
    """From one line; None for an object that tells of no operation. Raises ValueError for what is no such object."""
    try:
        told = _decoder.decode(line)  # msgspec's errors are ValueErrors
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    head = told.header
    of = (head.id, "" if head.comm_name == "unknown" else head.comm_name, head.rank, head.n_ranks)
    if (one := told.coll_perf) is not None:
        return MeasuredOperation(*of, one.coll, False, one.coll_msg_size_bytes, one.coll_exec_time_us / 1e6, _bandwidth(one.coll_busbw_gbs))
    if (p2p := told.p2p_perf) is not None:
        return MeasuredOperation(*of, p2p.p2p, True, p2p.p2p_msg_size_bytes, p2p.p2p_exec_time_us / 1e6, _bandwidth(p2p.p2p_busbw_gbs))
    return None


def _bandwidth(told: float | str) -> float:
    return told * GIGABYTE if isinstance(told, float | int) and 0 <= told <= MOST_GIGABYTES_PER_S else math.nan


@dataclass
class OperationTotals:
    """Of several operations."""

    count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    _bus_bytes: float = 0.0
    _bus_s: float = 0.0

    def add(self, one: MeasuredOperation) -> None:
        self.count += 1
        self.bytes += one.bytes
        self.seconds += one.seconds
        if not math.isnan(one.bus_bytes_per_s):
            self._bus_bytes += one.bus_bytes_per_s * one.seconds
            self._bus_s += one.seconds

    @property
    def mean_s(self) -> float:
        return self.seconds / self.count if self.count else math.nan

    @property
    def bus_bytes_per_s(self) -> float:
        """Mean over the time; NaN: nothing told."""
        return self._bus_bytes / self._bus_s if self._bus_s else math.nan


class OperationSummary(msgspec.Struct, frozen=True):
    """An operation of a communicator, over all ranks whose files were read."""

    communicator: str
    group: str
    size: int
    operation: str
    ranks: tuple[int, ...]
    """Of the communicator, those with a file."""
    count: int
    """Of the rank with the most."""
    mean_bytes: float
    mean_s: float
    bus_bytes_per_s: float | None
    last_rank: int | None
    """Which the others wait for most: its mean time is the shortest, less than half the median. None: no rank."""
    last_rank_s: float | None


@dataclass
class InspectorSummary:
    """Lines of many files, added up."""

    lines: int = 0
    unreadable: int = 0
    """Lines that are torn, of another version, or beyond KEYS_MOST."""
    _totals: dict[tuple[str, str, int, str], dict[int, OperationTotals]] = field(default_factory=dict)
    _keys: int = 0

    def read(self, path: Path) -> None:
        """Add a file's lines. Raises WireError where it cannot be read."""
        try:
            with os.fdopen(open_regular(path), "rb") as file:
                for line in _lines(file):
                    self._add(line)
        except OSError as error:
            raise WireError(f"{path}: {error.strerror or error}") from error

    def operations(self) -> Iterator[OperationSummary]:
        """The ones that took the most time first."""
        for key, of_ranks in sorted(self._totals.items(), key=lambda item: -sum(each.seconds for each in item[1].values())):
            yield _summary(key, of_ranks)

    def _add(self, line: bytes) -> None:
        self.lines += 1
        try:
            one = measured_operation(line)
        except ValueError:
            self.unreadable += 1
            return
        if one is None:
            return
        of_ranks = self._totals.get((one.communicator, one.group, one.ranks, one.operation), {})
        if one.rank not in of_ranks:
            if self._keys >= KEYS_MOST:
                self.unreadable += 1
                return
            self._keys += 1
            of_ranks[one.rank] = OperationTotals()
            self._totals[one.communicator, one.group, one.ranks, one.operation] = of_ranks
        of_ranks[one.rank].add(one)


def is_inspector_log(path: Path) -> bool:
    """By the beginning of its first line; False for what cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError:
        return False
    return head[:1] == b"{" and b'"header"' in head and (b'"coll_perf"' in head or b'"p2p_perf"' in head)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Up to FILE_BYTES; one that is too long comes in pieces, none of which can be read."""
    left = FILE_BYTES
    while left > 0 and (line := file.readline(LINE_BYTES)):
        left -= len(line)
        if line.strip():
            yield line


def _summary(key: tuple[str, str, int, str], of_ranks: dict[int, OperationTotals]) -> OperationSummary:
    communicator, group, size, operation = key
    every = list(of_ranks.values())
    count, seconds = sum(each.count for each in every), sum(each.seconds for each in every)
    bus = [each.bus_bytes_per_s for each in every if not math.isnan(each.bus_bytes_per_s)]
    last = min(of_ranks, key=lambda rank: of_ranks[rank].mean_s)
    is_last = len(every) > 2 and of_ranks[last].mean_s < statistics.median(each.mean_s for each in every) / 2
    return OperationSummary(
        communicator, group, size, operation, tuple(sorted(of_ranks)), max(each.count for each in every), sum(each.bytes for each in every) / count, seconds / count,
        statistics.fmean(bus) if bus else None, last if is_last else None, of_ranks[last].mean_s if is_last else None,
    )  # fmt: skip
