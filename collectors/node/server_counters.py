"""What the kernel counts of the servers behind a mount: NFS in /proc/PID/mountstats, Lustre in its `stats` and `import` files.

Reading them asks no server anything. Lustre's are readable for root alone, below /proc/fs/lustre or, with newer clients, below
/sys/kernel/debug/lustre.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .counter_rates import CounterRates
from .kernel_files import names_in
from .mounts import Mount

NFS = frozenset({"nfs", "nfs4"})
LUSTRE = "lustre"
LUSTRE_FOLDERS = (Path("/proc/fs/lustre"), Path("/sys/kernel/debug/lustre"))
NAMES = ("retransmissions_per_s", "timeouts_per_s", "round_trip_s", "disconnected_servers")
CONNECTED = frozenset({"FULL", "IDLE"})
"""States of a Lustre import that can be used; an idle one connects when it is needed."""
IMPORTS_READ = 256
LARGEST = 8 << 20
"""Bytes of a file that are read; one NFS mount takes some 5,000."""
_OPERATION = re.compile(r"\s+([A-Z_0-9]+): (\d{1,20}) (\d{1,20}) (\d{1,20}) \d+ \d+ \d+ (\d{1,20})\b")
"""Of mountstats: operations, transmissions, major time-outs, bytes out and in, then milliseconds in the queue and to the answer (net/sunrpc/stats.c)."""
_SAMPLES = re.compile(r"\w+\s+(\d{1,20}) samples \[usecs?\] \d+ \d+ (\d{1,20})\b")
"""Of llite/*/stats, such as `getattr 12 samples [usecs] 3 9 70 500`: smallest, largest, sum, and the sum of squares."""
_STATE = re.compile(r"^\s*state:\s*(\w+)", re.MULTILINE)


class ServerCounts(NamedTuple):
    """Since the file system was mounted. -1: not counted."""

    operations: int
    retransmissions: int
    timeouts: int
    waited_us: int
    """Microseconds that the answers to all operations took together."""


@dataclass
class ServerCounters:
    """All mounts of a node."""

    proc: Path = Path("/proc")
    lustre: tuple[Path, ...] = LUSTRE_FOLDERS
    _rates: CounterRates[tuple[str, str, str]] = field(default_factory=CounterRates)

    def read(self, mounts: Mapping[str, tuple[Mount, str]], monotonic: float) -> dict[str, dict[str, float]]:
        """Name → metric of NAMES → value, where there is one. `mounts`: name → the mount, and a process that sees it."""
        counts: dict[tuple[str, str, str], int] = {}
        found: dict[str, dict[str, float]] = {}
        statistics = {pid: nfs_counts(_read(self.proc / pid / "mountstats")) for pid in {pid for mount, pid in mounts.values() if mount.kind in NFS}}
        for name, (mount, pid) in mounts.items():
            if mount.kind == LUSTRE:
                known = self._lustre_counts(mount)
                found[name] = {"disconnected_servers": float(self._disconnected(mount))}
            else:
                known = statistics.get(pid, {}).get(mount.point)
            if known is not None:
                counts |= {(name, mount.device, field): count for field, count in known._asdict().items() if count >= 0}
        rates = self._rates.update(counts, monotonic)
        for name, (mount, _) in mounts.items():
            of_mount = {field: rate for (of, device, field), rate in rates.items() if (of, device) == (name, mount.device)}
            found.setdefault(name, {}).update(_metrics(of_mount))
        return found

    def _lustre_counts(self, mount: Mount) -> ServerCounts | None:
        texts = [_read(folder / "stats") for folder in self._folders("llite", mount)]
        samples = [(int(found[1]), int(found[2])) for text in texts for found in _SAMPLES.finditer(text)]
        return ServerCounts(sum(count for count, _ in samples), -1, -1, sum(us for _, us in samples)) if samples else None

    def _disconnected(self, mount: Mount) -> int | float:
        """Object and metadata servers that the client has no connection to; NaN: not known."""
        folders = [folder for kind in ("osc", "mdc") for folder in self._folders(kind, mount)][:IMPORTS_READ]
        states = [found[1] for folder in folders if (found := _STATE.search(_read(folder / "import")))]
        return sum(state not in CONNECTED for state in states) if states else math.nan

    def _folders(self, kind: str, mount: Mount) -> Iterator[Path]:
        """`llite/scratch-ffff9c40` of a mount of `10.0.0.1@o2ib:/scratch`."""
        system = mount.source.rpartition(":/")[2].partition("/")[0]
        for root in self.lustre:
            yield from (root / kind / name for name in names_in(root / kind) if system and name.startswith(f"{system}-"))


def nfs_counts(text: str) -> dict[str, ServerCounts]:
    """Mount point → counts, of the content of a mountstats file."""
    found: dict[str, ServerCounts] = {}
    for part in text.split("\ndevice ")[0 if text.startswith("device ") else 1 :]:
        head, _, body = part.partition("\n")
        point, is_nfs, _ = head.partition(" mounted on ")[2].rpartition(" with fstype nfs")
        rows = [tuple(int(number) for number in row.groups()[1:]) for row in _OPERATION.finditer(body)] if is_nfs else []
        if rows:
            operations, sent, timeouts, waited_ms = (sum(column) for column in zip(*rows, strict=True))
            found[point] = ServerCounts(operations, sent - operations, timeouts, 1000 * waited_ms)
    return found


def _metrics(rates: Mapping[str, float]) -> dict[str, float]:
    operations, waited = rates.get("operations", 0.0), rates.get("waited_us", math.nan)
    known = {
        "retransmissions_per_s": rates.get("retransmissions", math.nan),
        "timeouts_per_s": rates.get("timeouts", math.nan),
        "round_trip_s": waited / operations / 1e6 if operations > 0 else math.nan,
    }
    return {metric: value for metric, value in known.items() if not math.isnan(value)}


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode("utf-8", "replace")
    except OSError:
        return ""
