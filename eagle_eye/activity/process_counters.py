"""Counters of a process and of everything that it has started: they move while somebody works. Threads of ours in it do not count."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from eagle_eye.service_thread import SERVICE_THREAD

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

    def without(self, part: Self) -> Self:
        """What is left of a process when a thread of it is taken away."""
        return self._replace(cpu_s=self.cpu_s - part.cpu_s, io_bytes=self.io_bytes - part.io_bytes, faults=self.faults - part.faults)


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
    return any(fields[0] in ("R", "D") for name, fields in map(_stat, _threads(pid)) if name not in ("", SERVICE_THREAD))


def _of_one(pid: int) -> ProcessCounters | None:
    whole = _counters(Path(f"/proc/{pid}"))
    if whole is None:
        return None
    for folder in _threads(pid):
        if _stat(folder)[0] == SERVICE_THREAD and (ours := _counters(folder)) is not None:
            whole = whole.without(ours)
    return whole


def _threads(pid: int) -> Iterator[Path]:
    return Path(f"/proc/{pid}/task").glob("[0-9]*")


def _stat(folder: Path) -> tuple[str, list[str]]:
    """(name, fields from the state on) of a process or a thread; ('', []) when it has ended."""
    try:
        line = (folder / "stat").read_text(errors="replace")
    except OSError:
        return "", []
    head, _, rest = line.rpartition(")")
    return head.partition("(")[2], rest.split()


def _counters(folder: Path) -> ProcessCounters | None:
    _, fields = _stat(folder)
    if not fields:
        return None
    return ProcessCounters(
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S, io_bytes=_io_bytes(folder), faults=int(fields[7]) + int(fields[9]),
        runnable=fields[0] == "R",
    )  # fmt: skip


def _demand(pid: int) -> Iterator[tuple[int, float]]:
    for folder in _threads(pid):
        try:
            computed, waited, _ = (folder / "schedstat").read_text().split()
        except (OSError, ValueError):  # the thread has ended, or this kernel does not count
            continue
        yield int(folder.name), (int(computed) + int(waited)) / 1e9


def _io_bytes(folder: Path) -> int:
    try:
        lines = (folder / "io").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.partition(":")[2]) for line in lines if line.startswith(("rchar", "wchar", "read_bytes", "write_bytes")))


def _descendants(pid: int, generations: int) -> Iterator[int]:
    if generations == 0:
        return
    for folder in _threads(pid):
        try:
            children = (folder / "children").read_text().split()
        except OSError:  # the thread has ended
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child, generations - 1)
