"""State of a process, read from /proc through file descriptors that stay open.

An open descriptor costs one system call per read and stays bound to its process: once that is gone, a read fails with
ESRCH even if another process has got the pid.
"""

import math
import os
from pathlib import Path
from typing import NamedTuple, Self

from eagle_eye.open_file_limit import NO_ROOM

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
EXITING = 0x4
"""PF_EXITING of field 9: the kernel is taking the process down, which takes long when it has much memory."""
DEAD = frozenset("ZXx")


class ProcStat(NamedTuple):
    """Content of /proc/PID/stat at one moment (man 5 proc_pid_stat)."""

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
    """Open descriptors of one process, until `close`."""

    def __init__(self, pid: int, stat_file: int) -> None:
        self.pid = pid
        self._stat_file = stat_file
        self._schedstat_file = -1

    @classmethod
    def open(cls, pid: int, start_time: int = 0, user: int | None = None) -> Self | None:
        """The living process with this pid, start time (0: any) and user (None: any); None if there is none."""
        if pid <= 0:
            return None
        try:
            process = cls(pid, os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        stat = process.read()
        if stat is None or stat.state in DEAD or start_time not in {0, stat.start_time} or (user is not None and user not in users_of(pid)):
            process.close()
            return None
        return process

    def read(self) -> ProcStat | None:
        """Its current state; None once it is gone."""
        try:
            line = os.pread(self._stat_file, 1024, 0)
        except OSError:
            return None
        fields = line[line.rindex(b")") + 2 :].split()  # the name before may hold spaces and brackets
        return ProcStat(
            state=chr(fields[0][0]),
            exiting=bool(int(fields[6]) & EXITING),
            cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
            start_time=int(fields[19]),
            rss_bytes=int(fields[21]) * PAGE_BYTES,
            status=int(fields[49]),
        )

    def runqueue_s(self) -> float:
        """Seconds that its main thread has waited in the run queue since its start; NaN if unknown."""
        waited = self._schedstat(1)
        return float("nan") if waited is None else waited / 1e9

    def turns(self) -> int | None:
        """How often its main thread got a processor since its start; whoever is continued by a signal gets one. None if unknown."""
        return self._schedstat(2)

    def _schedstat(self, field: int) -> int | None:
        try:
            if self._schedstat_file < 0:
                self._schedstat_file = os.open(f"/proc/{self.pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
            return int(os.pread(self._schedstat_file, 128, 0).split()[field])
        except (OSError, IndexError, ValueError):
            return None

    def close(self) -> None:
        for file in (self._stat_file, self._schedstat_file):
            if file >= 0:
                os.close(file)
        self._stat_file = self._schedstat_file = -1


def alive(pid: int, start_time: int = 0) -> bool:
    """Whether a process is alive; a zombie is not. One that cannot be looked at, since no descriptor is left, is not gone for that."""
    if pid <= 0:
        return False
    try:
        process = ProcessHandle(pid, os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.errno in NO_ROOM
    stat = process.read()
    process.close()
    return stat is not None and stat.state not in DEAD and start_time in {0, stat.start_time}


def users_of(pid: int) -> tuple[int, ...]:
    """Real and effective user id of a process; none if it is gone. Unlike the owner of its /proc entry they are told of every process."""
    try:
        return certain_users_of(pid)
    except OSError:
        return ()


def certain_users_of(pid: int) -> tuple[int, ...]:
    """The same. Raises OSError where they cannot be told: the process is gone, or no descriptor is left."""
    with open(f"/proc/{pid}/status", "rb") as status:  # noqa: PTH123  # asked for each worker
        line = next((line for line in status if line.startswith(b"Uid:")), b"")
    return tuple(int(user) for user in line.split()[1:3])


def in_first_pid_namespace() -> bool:
    """Pids here are those that the kernel's log names: PROC_PID_INIT_INO of Linux (include/linux/proc_ns.h)."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino == 0xEFFFFFFC
    except OSError:
        return False


def started_s_ago(start_time: int, monotonic_s: float) -> float:
    """Seconds since a process was started, from its start time (field 22 of /proc/PID/stat); inf: unknown."""
    return monotonic_s - start_time / TICKS_PER_S if start_time > 0 else math.inf


def resident_bytes() -> int:
    """Memory of this process (resident set, statm of proc(5)); 0: unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return 0
