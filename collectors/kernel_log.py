"""Kernel messages of this node: Xid and SXid, the out-of-memory killer, hung tasks, machine checks, PCIe, network, disks, file systems.

Read on from where the agent stopped, also over its restart. What a line says is in log/kernel/*.toml; lines that no
row knows are not reported. Many equal messages are one event a minute, with their count.
"""

import logging
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.ranges import Seconds
from eagle_eye.redaction import redact
from eagle_eye.types import Event, Kind

from .agent.job_directory import JobDirectory
from .agent.unsigned_event import filled, unsigned_event
from .log.kernel_messages import KernelMessage, KernelMessages, pci_address_of
from .log.kernel_sources import FileSource, JournalSource, KernelLine, KernelSource, KmsgSource, SourcePosition
from .log.position_file import PositionFile
from .log.repeat_limit import RepeatLimit
from .node.driver_gpus import DRIVER, UUID, driver_gpus
from .worker.procfs import in_first_pid_namespace

log = logging.getLogger(__name__)

REMEDY = (
    "give the agent CAP_SYSLOG (systemd: AmbientCapabilities=CAP_SYSLOG; Kubernetes: mount /dev/kmsg), "
    "add its user to the group systemd-journal, or name a file: [collectors.kernel_log] source = \"file\""
)
OF_A_GPU = {"xid": "gpu.xid", "fell_off_the_bus": "gpu.lost"}
"""Code of a message → the event, the same that NVML's readings give."""
MOST_FAILURES = 2
"""Attempts in succession to read the journal behind a cursor, after which it is read anew from the time of the last entry on."""
FAR_S = 366 * 86400.0
"""A message that seems older, or from the future, has no time of its own."""
_NAMED_GPU = re.compile(rf"NVRM: GPU at PCI:([0-9a-fA-F:.]+): ({UUID})")


@dataclass
class KernelLogCollector:
    """`gpu.xid`, `gpu.lost`, `kernel.error` and `kernel.notice` events."""

    source: Literal["auto", "kmsg", "journal", "file"] = "auto"
    """Where kernel messages are read: /dev/kmsg, the systemd journal, or `path`; auto takes the first that may be read."""
    path: Path = Path("/var/log/kern.log")
    """The file of source "file"."""
    further_files: tuple[str, ...] = ("/var/log/fabricmanager.log",)
    """Other logs of the node that are read with the same table, where they exist."""
    patterns: str = ""
    """A TOML file with rows of your own, in the form of log/kernel/gpu.toml; they count before those of this release."""
    repeat_s: Seconds = 60.0
    """Equal messages within so many seconds are one event."""
    retry_s: Seconds = 60.0
    """Seconds between two attempts to open a source that could not be read."""
    node: str = ""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    state_dir: Path | None = None
    """Where positions are kept over restarts; set by the agent. None: each start begins with what is written from then on."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 0.5
    timeout_s: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        self.unavailable = ""
        self._messages = KernelMessages(Path(self.patterns) if self.patterns else None)
        self._jobs = JobDirectory(Path(self.run_dir))
        self._gpus = GpuAddresses()
        self._main: KernelSource | None = None
        self._further: dict[str, KernelSource] = {}
        self._opened_at = -math.inf
        self._positions = PositionFile(self.state_dir, "kernel_log", self.node, SourcePosition)
        self._repeats = RepeatLimit(self.repeat_s)
        self._lost: dict[str, int] = {}
        self._failures: dict[str, int] = {}
        """Source → how often in succession it could not be read."""

    def collect(self) -> list[Event]:
        """Raises OSError where a source that could be read cannot be read any more."""
        self._positions.save()  # the events of the call before are with the agent now
        found: list[Event] = []
        failed: OSError | None = None
        for source in self._open_sources():
            try:
                found.extend(self._events_of(source))
            except OSError as error:
                self._failed(source, error)
                failed = error
            else:
                self._failures.pop(source.name, None)
                self._positions.put(source.name, source.position)
        if failed is not None and not found:  # what was found is not lost; the source is opened again and told then
            raise failed
        return found

    @property
    def reads_from(self) -> str:
        """The sources that are there."""
        further = [name for name in self._further if Path(name).exists()]
        return ", ".join([*([self._main.name] if self._main else []), *further])

    # --- sources

    def _open_sources(self) -> list[KernelSource]:
        """Open what is not open and can be read; what cannot is tried again after `retry_s`, with the reason in `unavailable`."""
        if self.clock.monotonic() - self._opened_at >= self.retry_s:
            self._opened_at = self.clock.monotonic()
            self._gpus.refresh()
            if self._main is None:
                self._main = self._found_source()
            for path in (Path(name) for name in self.further_files if name not in self._further):
                if os.access(path, os.R_OK) or not path.exists():
                    self._further[str(path)] = self._file(path)
        return [*([self._main] if self._main else []), *self._further.values()]

    def _found_source(self) -> KernelSource | None:
        try:
            source = self._main_source()
        except OSError as error:
            reason = f"kernel messages cannot be read: {error}; {REMEDY}"
            if reason != self.unavailable:
                log.warning("%s", reason)
            self.unavailable = reason
            return None
        self.unavailable = ""
        return source

    def _main_source(self) -> KernelSource:
        """Raises OSError, of the last that was tried."""
        tries = {"auto": ("kmsg", "journal", "file")}.get(self.source, (self.source,))
        for name in tries[:-1]:
            try:
                return self._opened(name)
            except OSError as error:
                log.info("kernel messages from %s: %s", name, error)
        return self._opened(tries[-1])

    def _opened(self, name: str) -> KernelSource:
        if name == "kmsg":
            return KmsgSource(self.clock, self._position("/dev/kmsg"))
        if name == "journal":
            return JournalSource(self.clock, self._position("journald"))
        self.path.stat()
        return self._file(self.path)

    def _file(self, path: Path) -> KernelSource:
        return FileSource(path, self.clock, self._position(str(path)))

    def _failed(self, source: KernelSource, error: OSError) -> None:
        """It is opened again later. The journal may have lost the place of a cursor for good, by a vacuum or a damaged file."""
        self._close(source)
        self._failures[source.name] = self._failures.get(source.name, 0) + 1
        stopped = self._position(source.name)
        if stopped.cursor and self._failures[source.name] >= MOST_FAILURES:
            self._positions.put(source.name, SourcePosition(time=stopped.time))
            begin = f"anew behind the entry of {stopped.time:.6f}" if stopped.time else "from now on: what came since is not known"
            log.warning("%s: nothing can be read behind the place where reading stopped (%s); it is read %s", source.name, error, begin)

    def _close(self, source: KernelSource) -> None:
        source.close()
        if source is self._main:
            self._main = None
        self._further.pop(source.name, None)
        self._lost.pop(source.name, None)  # the next one counts from 0

    def _position(self, name: str) -> SourcePosition:
        return self._positions.get(name) or SourcePosition()

    # --- events

    def _events_of(self, source: KernelSource) -> Iterator[Event]:
        lines = source.read()
        if source.lost > self._lost.get(source.name, 0):
            log.warning("%s: %d messages were lost before they were read", source.name, source.lost - self._lost.get(source.name, 0))
            self._lost[source.name] = source.lost
        for line in lines:
            if not line.written_by:
                self._gpus.learn(line.text)
            if message := self._messages.read(line.text):
                yield from self._told(line, message)

    def _told(self, line: KernelLine, message: KernelMessage) -> Iterator[Event]:
        key = (message.component, message.code, str(message.number), message.qualifier, message.device, message.pci, str(message.pid), line.written_by)
        repeated = self._repeats.passes(key, self.clock.monotonic())
        if repeated is not None:
            yield self._event(line, message, repeated)

    def _event(self, line: KernelLine, message: KernelMessage, repeated: int) -> Event:
        worker, job = self._worker_of(message.pid)
        attributes: dict[str, Any] = {
            "device": message.device, "pci": message.pci, "process": message.process, "pid": message.pid or "", "worker": worker,
            "qualifier": message.qualifier, "repeated": repeated or "", "written_by": line.written_by,
        }  # fmt: skip
        time, text = self._time_of(line), redact(message.text)
        if message.component == "gpu" and message.code in OF_A_GPU and message.pci and not line.written_by:
            attributes |= {"reason": redact(message.detail), "code": message.number if message.number >= 0 else ""}
            return unsigned_event(OF_A_GPU[message.code], Kind.GPU, self._gpus.name_of(message.pci), time, text, "", **filled(attributes))
        attributes |= {
            "component": message.component, "code": message.code, "number": message.number if message.number >= 0 else "",
            "advice": message.advice, "gpu": self._gpus.uuid_of(message.pci),
        }  # fmt: skip
        kind, entity = (Kind.WORKER, worker) if worker else (Kind.NODE, self.node)
        level = message.level if message.own or not line.written_by else "notice"  # a program's text may only quote the kernel
        return unsigned_event(f"kernel.{level}", kind, entity, time, text, job, **filled(attributes))

    def _time_of(self, line: KernelLine) -> float:
        now = self.clock.now()
        return line.time if now - FAR_S < line.time <= now else now

    def _worker_of(self, pid: int) -> tuple[str, str]:
        """Worker and job of a process that the kernel names; '' where it is none of ours, or where pids here are not the kernel's."""
        if not pid or not in_first_pid_namespace():
            return "", ""
        for job in self._jobs.read():
            for worker in job.workers:
                if worker.pid == pid:
                    return worker.worker, job.job
        return "", ""


class GpuAddresses:
    """PCI address → UUID of this node's GPUs, as the driver's files (`refresh`) and its own log lines (`learn`) tell: no call into the driver, which may hang.

    An address that was known once stays known: a GPU that is lost has no UUID any more.
    """

    def __init__(self, driver: Path = DRIVER) -> None:
        self._driver = driver
        self._uuids: dict[str, str] = {}

    def refresh(self) -> None:
        """Read the driver's files again; a node without them has none."""
        self._uuids |= {gpu.pci: gpu.uuid for gpu in driver_gpus(self._driver) if gpu.uuid}

    def learn(self, line: str) -> None:
        """`NVRM: GPU at PCI:0000:9b:00: GPU-…`, which the driver writes before the first Xid of a GPU."""
        if (found := _NAMED_GPU.search(line)) and (address := pci_address_of(found[1])):
            self._uuids[address] = found[2]

    def name_of(self, address: str) -> str:
        """Its UUID; the address itself where that is not known, and '' for none."""
        return self._uuids.get(address, address)

    def uuid_of(self, address: str) -> str:
        """'' for what is no GPU of this node."""
        return self._uuids.get(address, "")
