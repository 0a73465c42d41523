"""A process as /proc shows it, read through file descriptors that stay open.

A kept descriptor costs one system call a look, and belongs to the process for good: once that is gone it answers
ESRCH, whoever gets its pid next.
"""

import os
from typing import NamedTuple, Self

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
EXITING = 0x4
"""PF_EXITING of field 9: the kernel is taking the process down, which takes long when it has much memory."""
DEAD = frozenset("ZXx")


class ProcessStat(NamedTuple):
    """What /proc/PID/stat said at one moment (man 5 proc_pid_stat)."""

    state: str
    """R running, S sleeping, D waiting for a disk, T stopped, t traced, Z dead and not yet reaped."""
    exiting: bool
    cpu_s: float
    """Processor time of all its threads since its start, user and system."""
    rss_bytes: int
    start_time: int
    """Ticks since boot: with the pid it names a process for good."""
    status: int
    """As of waitpid, once it is dead and not yet reaped; 0 if this user may not know."""


class ProcessHandle:
    """One process, for as long as somebody wants to look at it."""

    def __init__(self, pid: int, stat: int) -> None:
        self.pid = pid
        self._stat = stat
        self._schedule = -1

    @classmethod
    def open(cls, pid: int, start_time: int = 0) -> Self | None:
        """The living process with this pid and start time (0: whichever has the pid); None if there is none."""
        if pid <= 0:
            return None
        try:
            process = cls(pid, os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        look = process.look()
        if look is None or look.state in DEAD or start_time not in {0, look.start_time}:
            process.close()
            return None
        return process

    def look(self) -> ProcessStat | None:
        """How it is now; None once it is gone."""
        try:
            line = os.pread(self._stat, 1024, 0)
        except OSError:
            return None
        fields = line[line.rindex(b")") + 2 :].split()  # the name before may hold spaces and brackets
        return ProcessStat(
            state=chr(fields[0][0]),
            exiting=bool(int(fields[6]) & EXITING),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
            start_time=int(fields[19]),
            rss_bytes=int(fields[21]) * PAGE_BYTES,
            status=int(fields[49]),
        )

    def waited_s(self) -> float:
        """Seconds that its main thread was ready to run and had no processor, since its start; NaN if unknown."""
        try:
            if self._schedule < 0:
                self._schedule = os.open(f"/proc/{self.pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._schedule, 128, 0).split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return float("nan")

    def close(self) -> None:
        for file in (self._stat, self._schedule):
            if file >= 0:
                os.close(file)
        self._stat = self._schedule = -1


def alive(pid: int, start_time: int = 0) -> bool:
    """Whether a process lives (one that is dead and not yet reaped does not)."""
    process = ProcessHandle.open(pid, start_time)
    if process is None:
        return False
    process.close()
    return True
