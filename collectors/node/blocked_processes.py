"""How many processes of a machine the kernel holds in uninterruptible sleep (state D), and still at the next look: they wait for storage or a driver."""

import os
from dataclasses import dataclass
from pathlib import Path

from .kernel_files import names_in

MOST = 20_000
"""Processes that are looked at."""


@dataclass
class BlockedProcesses:
    """Looked at now and then: every process for a moment in state D waits for its disk, and most are out of it at once."""

    proc: Path = Path("/proc")

    def __post_init__(self) -> None:
        self._before: frozenset[tuple[str, bytes]] | None = None

    def look(self) -> float:
        """Of how many this look and the one before say so; NaN at the first one."""
        before, self._before = self._before, frozenset(self._held())
        return float("nan") if before is None else float(len(before & self._before))

    def _held(self) -> list[tuple[str, bytes]]:
        """Process and its start time, so that a later one of the same number is another."""
        folder = str(self.proc)
        pids = [name for name in names_in(self.proc) if name[0].isdigit()][:MOST]
        return [(pid, fields[19]) for pid in pids if len(fields := _fields(f"{folder}/{pid}/stat")) > 19 and fields[0] == b"D"]


def _fields(path: str) -> list[bytes]:
    """From the state on (man 5 proc_pid_stat); none if the process is gone. The name before may hold spaces and brackets."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return os.read(file, 1024).rpartition(b")")[2].split()
    except OSError:
        return []
    finally:
        os.close(file)
