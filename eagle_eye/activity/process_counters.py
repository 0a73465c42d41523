"""Counters of a process and of everything that it has started: they move while somebody works."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
DEEP = 4
"""Generations of children that count: a data loader's workers, a compiler's own."""


class ProcessCounters(NamedTuple):
    """Sums over a process and its descendants (man 5 proc_pid_stat, proc_pid_io)."""

    cpu_s: float
    """Processor time, user and system."""
    io_bytes: int
    """Read and written, whether the disk was touched or not; 0 where this user may not know."""
    faults: int
    """Page faults, minor and major: memory that is touched for the first time, or read from a disk."""
    runnable: bool = False
    """The main thread of one of them computes, or waits for a processor: on a busy machine it may get little of it."""
    demand: Mapping[int, float] = {}
    """Thread of the process itself → seconds in which it computed or waited for a processor (/proc/PID/task/TID/schedstat)."""


def read_counters(pid: int) -> ProcessCounters | None:
    """The counters now; None if the process is gone."""
    own = _of_one(pid)
    if own is None:
        return None
    parts = [own, *(part for child in _descendants(pid, DEEP) if (part := _of_one(child)) is not None)]
    return ProcessCounters(
        cpu_s=sum(part.cpu_s for part in parts), io_bytes=sum(part.io_bytes for part in parts), faults=sum(part.faults for part in parts),
        runnable=any(part.runnable for part in parts), demand=dict(_demand(pid)),
    )  # fmt: skip


def runs(pid: int) -> bool:
    """Whether one of its threads computes, waits for a processor, or for a disk."""
    for file in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            line = file.read_text()
        except OSError:  # the thread has ended
            continue
        if line.rpartition(")")[2].split()[0] in ("R", "D"):
            return True
    return False


def _of_one(pid: int) -> ProcessCounters | None:
    try:
        line = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    return ProcessCounters(
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S, io_bytes=_io_bytes(pid), faults=int(fields[7]) + int(fields[9]),
        runnable=fields[0] == "R",
    )  # fmt: skip


def _demand(pid: int) -> Iterator[tuple[int, float]]:
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            computed, waited, _ = file.read_text().split()
        except (OSError, ValueError):  # the thread has ended, or this kernel does not count
            continue
        yield int(file.parent.name), (int(computed) + int(waited)) / 1e9


def _io_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar", "read_bytes", "write_bytes")))


def _descendants(pid: int, generations: int) -> Iterator[int]:
    if generations == 0:
        return
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child, generations - 1)
