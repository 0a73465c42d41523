"""Notices in milliseconds that a process is dying.

The kernel announces a death late: pidfd and waitpid answer after the memory was torn down, 80 ms per GiB. The
flag PF_EXITING in /proc/PID/stat is there at once, so that file is read 50 times a second through kept
descriptors, beside the pidfd.
"""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

PF_EXITING = 0x4
POLL_S = 0.02
QUICK_POLL_S = 0.003
"""Where every millisecond counts: some 20 µs a process and look."""


class ProcessStat(msgspec.Struct, frozen=True, kw_only=True):
    """What /proc/PID/stat says of a process."""

    state: str
    exiting: bool
    start_time: int
    """Clock ticks since boot; with the pid it names a process for good."""
    status: int | None
    """As of waitpid, once the process is exiting and the kernel lets us see it."""


def parse_stat(line: str) -> ProcessStat:
    """Read one line of /proc/PID/stat."""
    fields = line.rpartition(")")[2].split()
    exiting = bool(int(fields[6]) & PF_EXITING) or fields[0] in "ZX"
    status = int(fields[49]) if exiting and len(fields) > 49 else None
    return ProcessStat(state=fields[0], exiting=exiting, start_time=int(fields[19]), status=status)


def process_stat(pid: int) -> ProcessStat | None:
    """Look at a process once; None if there is none."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


class DeathWatch:
    """Calls back once for each watched process that dies: pid, and its wait status where it can be seen."""

    def __init__(self, on_death: Callable[[int, int | None], None], look_s: float = POLL_S) -> None:
        self._on_death = on_death
        self._look_s = look_s
        self._looked = 0.0
        self._looked_before = 0.0
        self._files: dict[int, int] = {}
        self._pidfds: dict[int, int] = {}
        self._unwatched: set[int] = set()
        """Tried again at each look."""

    def watch(self, pid: int) -> None:
        """Begin to watch; a process that is gone already is reported at the next look."""
        loop = asyncio.get_running_loop()
        try:
            if pid not in self._files:
                self._files[pid] = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            self._pidfds[pid] = os.pidfd_open(pid)
        except (FileNotFoundError, ProcessLookupError):
            self._unwatched.discard(pid)
            loop.call_soon(self._report, pid, None)
            return
        except OSError:  # no descriptor is left: that says nothing of the process
            self._unwatched.add(pid)
            return
        self._unwatched.discard(pid)
        loop.add_reader(self._pidfds[pid], self._look_at, pid)

    def quicken(self) -> None:
        """From now on look more often."""
        self._look_s = min(self._look_s, QUICK_POLL_S)

    def forget(self, pid: int) -> None:
        """No longer watch."""
        self._unwatched.discard(pid)
        pidfd = self._pidfds.pop(pid, None)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)
        file = self._files.pop(pid, None)
        if file is not None:
            os.close(file)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            self._looked_before, self._looked = self._looked, clock()
            self.look()
            await asyncio.sleep(self._look_s)

    def look(self) -> None:
        """Look at all of them now."""
        for pid in tuple(self._unwatched):
            self.watch(pid)
        for pid in tuple(self._files):
            self._look_at(pid)

    @property
    def noticed_s(self) -> float:
        """How long ago a death that is being reported may have been at the most: all were alive at the look before."""
        return asyncio.get_running_loop().time() - self._looked_before

    def close(self) -> None:
        for pid in tuple(self._files):
            self.forget(pid)

    def _look_at(self, pid: int) -> None:
        file = self._files.get(pid)
        if file is None:
            return
        try:
            seen = parse_stat(os.pread(file, 2048, 0).decode(errors="replace"))
        except OSError:  # reaped: the file of a process that is no more
            self._report(pid, None)
            return
        if seen.exiting:
            self._report(pid, seen.status)

    def _report(self, pid: int, status: int | None) -> None:
        self.forget(pid)
        self._on_death(pid, status)
