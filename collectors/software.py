"""What changed on this node in the last days: kernel, drivers, firmware, settings. Each job there is told each change once (`node.changed`).

The first look ever is compared with nothing. What was known, and the changes, are kept in a file of the agent's state directory: of a node whose state does not
survive its restart only what changes while its agent runs is known.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import msgspec

from eagle_eye.changes import (
    KEPT_S,
    NODE_CHANGED,
    ValueDifference,
    change_attributes,
    difference_text,
    differences,
    shown_value,
)
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import UNREADABLE
from eagle_eye.ranges import Seconds
from eagle_eye.redaction import redact
from eagle_eye.training import atomic_file
from eagle_eye.types import Event, Kind

from .agent.job_directory import JobDirectory
from .agent.unsigned_event import unsigned_event
from .node.kernel_files import KernelFiles
from .node.software_versions import changed_values, software_versions

log = logging.getLogger(__name__)

VERSION = 1
KEPT = 64
"""Changes that are kept."""
TOLD = 16
"""Of these, the newest that a job is told of when it comes."""
LONGEST = 4096
"""Characters of a value that are compared."""


class _SeenChange(msgspec.Struct, frozen=True, kw_only=True):
    """Times are seconds since 1970."""

    difference: ValueDifference
    known: float
    """When it was still as before."""
    seen: float


class _Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the file."""

    version: int = VERSION
    looked: float
    values: dict[str, str]
    changes: tuple[_SeenChange, ...] = ()
    """Oldest first."""


@dataclass
class SoftwareCollector:
    """`node.changed` events: what is not as it was, of the last seven days, to each job once."""

    look_s: Seconds = 600.0
    """Seconds between two looks at the files. A new job is told at once what is known."""
    node: str = ""
    """Name of this node; set by the agent."""
    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    state_dir: Path | None = None
    """Of the agent; None: nothing is remembered over its restart. Set by the agent."""
    proc: Path = Path("/proc")
    """Where the kernel's procfs is mounted."""
    sysfs: Path = Path("/sys")
    """Where its sysfs is mounted."""
    root: Path = Path("/")
    """In which etc/os-release is; within a container that of the node is read through its process 1, or none."""
    clock: Clock = field(default_factory=SystemClock)

    interval_s: ClassVar[float] = 5.0
    timeout_s: ClassVar[float] = 10.0

    def __post_init__(self) -> None:
        self._jobs = JobDirectory(Path(self.run_dir))
        self._files = KernelFiles()
        self._path = Path(self.state_dir) / "agent" / f"software-{self.node.replace('/', '_')}.json" if self.state_dir else None
        self._memory = self._load()
        self._told: dict[str, frozenset[_SeenChange]] = {}
        """Job → the changes that it was told of."""
        self._look_at = -math.inf

    def collect(self) -> list[Event]:
        if self.clock.monotonic() >= self._look_at:
            self._look_at = self.clock.monotonic() + self.look_s
            self._look()
        return list(self._news())

    @property
    def knows(self) -> str:
        """In words, for `eagle-eye agent --check`."""
        known = self._memory
        return "" if known is None else f"{len(known.values)} versions and settings, {len(known.changes)} changes in {KEPT_S / 86_400:.0f} days"

    def _look(self) -> None:
        now, known = self.clock.now(), self._memory
        values = {what: redact(value)[:LONGEST] for what, value in software_versions(Path(self.proc), Path(self.sysfs), Path(self.root), self._files).items()}
        before, old, looked = (known.values, known.changes, min(known.looked, now)) if known is not None else ({}, (), now)
        news = [_SeenChange(difference=_shortened(each), known=looked, seen=now) for each in differences(before, values)]
        for each in news:
            log.info("%s: %s", self.node, _words(each.difference))
        recent = [change for change in (*old, *news) if now - change.seen <= KEPT_S]
        self._memory = _Memory(looked=now, values=before | values, changes=tuple(recent[-KEPT:]))
        self._save(self._memory)

    def _news(self) -> Iterator[Event]:
        jobs = [job.job for job in self._jobs.read() if not job.stopped]
        changes = self._memory.changes if self._memory is not None else ()
        told, self._told = self._told, {job: frozenset(changes) for job in jobs}
        for job in jobs:
            for change in changes[-TOLD:] if job not in told else [change for change in changes if change not in told[job]]:
                yield self._event(change, job)

    def _event(self, change: _SeenChange, job: str) -> Event:
        attributes = change_attributes(change.difference, known=change.known, seen=change.seen)
        return unsigned_event(NODE_CHANGED, Kind.NODE, self.node, self.clock.now(), f"{self.node}: {_words(change.difference)}", job, **attributes)

    # --- the file

    def _save(self, memory: _Memory) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(self._path, msgspec.json.encode(memory), durable=False)
        except OSError as error:
            log.warning("what this node's software was cannot be saved in %s: %s; what changes while no agent runs is not seen", self._path, error)

    def _load(self) -> _Memory | None:
        """None: nothing is known, and nothing has changed."""
        if self._path is None:
            return None
        try:
            saved = msgspec.json.decode(self._path.read_bytes(), type=_Memory)
        except FileNotFoundError:
            return None
        except (OSError, *UNREADABLE) as error:
            log.warning("%s is ignored, so that the node's software is known from now on: %s", self._path, error)
            return None
        return saved if saved.version == VERSION else None


def _shortened(difference: ValueDifference) -> ValueDifference:
    before, after = changed_values(difference.what, difference.before, difference.after)
    return ValueDifference(difference.what, before, after)


def _words(difference: ValueDifference) -> str:
    return difference_text(difference.what, shown_value(difference.before), shown_value(difference.after))
