"""Keeps the copies of the predecessor on this node: fetches what is due there into segments here, the newest steps of each worker, so many as are configured.

A thread of the launcher with sockets that block, so that nothing of it holds up the launcher. What cannot be kept is told once and tried again.
"""

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from eagle_eye.access.credentials import Credentials
from eagle_eye.errors import EagleEyeError
from eagle_eye.training.checkpoint.memory_segment import (
    PAGE,
    SLOTS,
    MemorySegment,
    SlotStamp,
    TornCopy,
    free_memory,
    slot_bytes,
    slot_to_write,
)
from eagle_eye.training.save_retry import FIRST_S, LONGEST_S
from eagle_eye.training.storage_failure import StorageFailure, storage_failure

from .copy_client import CopyChanged, CopyClient, CopyGone, Description
from .copy_files import CopyFiles, CopyName
from .copy_states import evictable, outdated
from .copy_wire import CopyConnection, ProcessorTime, Source

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""How often it is looked whether there is a predecessor."""
OVERTAKEN, OVERTAKEN_S = 3, 4.0
"""A copy that its worker has written anew so often in a row, before it was here, is told, and the next is tried after a while, so long at the most: saves may come
at other times by then."""
BUSY_S = 0.5
"""Pause where something is due that is not to be tried yet."""


class BackupLimits(NamedTuple):
    """Of what a node keeps for another one."""

    bytes: int
    """Of all files together."""
    steps: int = SLOTS
    """Of each worker, at the most: where these bytes, or the node, have no room for so many it is SLOTS."""


class BackupFailure(NamedTuple):
    """What the job is told of a copy that is not on a second node."""

    file: str
    step: int
    failure: StorageFailure
    needed_bytes: int
    retry_s: float


class BackupKeeper:
    """Runs in its own thread until `stop` is set."""

    def __init__(
        self, files: CopyFiles, owner: str, find: Callable[[bool], Source | None], tell: Callable[[BackupFailure], None],
        stored: Callable[[int, int], int], credentials: Credentials | None, limits: BackupLimits, stop: threading.Event, spent: ProcessorTime | None = None,
    ) -> None:  # fmt: skip
        """`owner`: run/node, for the headers of segments. `find`: where the predecessor serves its copies, asked `anew` or as it
        is known; None: there is none. `stored` takes the step that the predecessor knows to be in storage and its epoch (0: an older launcher does not say), and gives the newest that is known here."""
        self._node = owner.rpartition("/")[2]
        self._files, self._owner, self._find, self._tell, self._stored = files, owner, find, tell, stored
        self._credentials, self._limits, self._stop, self._spent = credentials, limits, stop, spent
        self._segments: dict[Path, MemorySegment] = {}
        self._reduced: set[Path] = set()
        """There was no room for as many steps as are configured: it is not tried again."""
        self._failures: dict[str, int] = {}
        self._retry_at: dict[str, float] = {}
        self._connection: CopyConnection | None = None
        self._overtaken: dict[str, int] = {}
        """File → how often in a row its copy was written anew before it was here."""
        self._failing: dict[str, str] = {}
        self.failing = ""
        """Which copies cannot be kept here, and why; '' while nothing is known to be in the way. Read by other threads."""

    def interrupt(self) -> None:
        """From another thread, once `stop` is set: do not wait for an answer."""
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Until it is stopped."""
        try:
            self._keep_predecessors()
        finally:
            self.close()

    def _keep_predecessors(self) -> None:
        failures = 0
        while not self._stop.wait(LOOK_S * 2 ** min(failures, 5)):
            try:
                source = self._find(failures > 0)
                if source is not None:
                    self._follow(source)
                failures = 0
            except (OSError, EagleEyeError) as error:
                failures += 1
                log.debug("the predecessor's copies cannot be asked for: %s", error)
            except Exception:  # boundary: training and launcher go on without it
                failures += 1
                log.exception("keeping another node's copies failed; it begins again")

    def _follow(self, source: Source) -> None:
        """Until it is not the predecessor any more. Raises OSError."""
        client = CopyClient(source, self._credentials, self._spent)
        with client.connected() as connection:
            self._connection = connection
            self._failing.clear()
            self.failing = ""
            while not self._stop.is_set() and self._find(False) == source:
                answer = connection.ask({"kind": "due", "node": self._node})
                stored = self._stored(int(answer.get("stored", -1)), int(answer.get("stored_epoch", 0)))
                names = msgspec.convert(answer.get("copies"), list[CopyName])
                wanted = frozenset(self._files.backup_path(name.rank, name.world).name for name in names)
                done = [self._keep(client, connection, name, wanted, stored) for name in names]
                if any(done):
                    self._clear(wanted, stored)
                if names and not any(done):
                    self._stop.wait(BUSY_S)

    def _keep(self, client: CopyClient, connection: CopyConnection, name: CopyName, wanted: frozenset[str], stored: int) -> bool:
        if time.monotonic() < self._retry_at.get(name.file, 0.0):
            return False
        path, broken = self._files.backup_path(name.rank, name.world), ""
        needed = 0
        try:
            description = client.describe(connection, name)
            needed = PAGE + SLOTS * slot_bytes(len(description.table), description.payload)
            segment = self._segment(path, description, wanted, stored)
            _fill(client, name, description, segment)
        except CopyGone as error:
            return self._gone(name, path, error)
        except CopyChanged as error:
            broken = str(error)
            if _is_gone(client, connection, name):
                return self._gone(name, path, error)
        except (ConnectionError, TimeoutError):
            raise
        except OSError as error:
            self._failed(name, path, error, needed)
            return False
        self._failures.pop(name.file, None)
        self._overtaken.pop(name.file, None)
        self._fails(name.file, "")
        done = {"file": name.file, "slot": name.slot, "sequence": name.sequence, "broken": bool(broken), "why": broken}
        connection.ask({"kind": "settled", "node": self._node, **done})
        return True

    def _segment(self, path: Path, description: Description, wanted: frozenset[str], stored: int) -> MemorySegment:
        """The one with room for it, made anew if need be. Raises OSError."""
        table, payload = len(description.table), description.payload
        segment = self._segments.get(path) or _opened(path)
        if segment is not None and segment.is_visible() and segment.has_room(table, payload) and not self._is_to_change(segment, path, stored):
            self._segments[path] = segment
            return segment
        made = self._made(path, slot_bytes(table, payload), wanted, stored)
        if segment is not None:
            segment.close()
        self._segments[path] = made
        return made

    def _is_to_change(self, segment: MemorySegment, path: Path, stored: int) -> bool:
        """It is for another number of steps than is configured by now, and storage has a step as new as what would go with it."""
        if segment.slots == self._limits.steps or path in self._reduced:
            return False
        return max((stamp.step for stamp in _whole(segment).values()), default=-1) <= stored

    def _made(self, path: Path, size: int, wanted: frozenset[str], stored: int) -> MemorySegment:
        """With slots of so many bytes: as many as are configured, or two. Raises OSError."""
        steps = self._limits.steps if path not in self._reduced else SLOTS
        try:
            return self._made_for(path, size, steps, wanted, stored)
        except OSError as error:
            if steps <= SLOTS or error.errno not in {errno.ENOMEM, errno.ENOSPC}:
                raise
            log.warning("%s keeps %d steps, not %d (checkpoints.backup_steps): %s", path.name, SLOTS, steps, error.strerror)
            self._reduced.add(path)
            return self._made_for(path, size, SLOTS, wanted, stored)

    def _made_for(self, path: Path, size: int, steps: int, wanted: frozenset[str], stored: int) -> MemorySegment:
        needed, limit = PAGE + steps * size, self._limits.bytes
        gone = evictable(self._files.backups(), wanted | {path.name}, stored, needed, limit)
        if gone is None:
            remedy = "raise it" if steps <= SLOTS else "raise it, or lower checkpoints.backup_steps"
            raise OSError(errno.ENOMEM, f"this node keeps copies of others in {limit} bytes at the most (checkpoints.backup_share), and {steps} steps of this worker need {needed}: {remedy}", str(path))
        self._remove(path, gone)
        return MemorySegment.create(path, size, f"{self._owner}/{path.stem.rpartition('-')[2]}", steps)

    def _clear(self, wanted: frozenset[str], stored: int) -> None:
        """What was kept for a node that is another one's now, and of whose steps newer ones are here and in storage."""
        gone = outdated(self._files.backups(), wanted, stored, self._limits.steps)
        if gone:
            self._remove(self._files.backup_path(0, 1), gone)

    def _remove(self, beside: Path, files: Iterable[str]) -> None:
        for file in files:
            log.info("%s is removed: its node is another one's now, and storage has its steps", file)
            path = beside.with_name(file)
            path.unlink(missing_ok=True)
            if (segment := self._segments.pop(path, None)) is not None:
                segment.close()

    def _gone(self, name: CopyName, path: Path, error: Exception) -> bool:
        """Its worker has written the slot anew: once is nothing. With two slots that happens each time where a copy takes longer than two saves are apart."""
        log.debug("%s: %s", name.file, error)
        count = self._overtaken[name.file] = self._overtaken.get(name.file, 0) + 1
        if count >= OVERTAKEN:
            reason = f"its worker writes the slot anew before the copy is through, {count} times in a row: it has memory for two copies, and they take longer than two saves are apart; save less often, or make room for a third"
            self._failed(name, path, OSError(errno.EBUSY, reason, str(path)), 0, longest_s=OVERTAKEN_S)
        return False

    def _failed(self, name: CopyName, path: Path, error: OSError, needed: int, *, longest_s: float = LONGEST_S) -> None:
        count = self._failures[name.file] = self._failures.get(name.file, 0) + 1
        delay = min(longest_s, FIRST_S * 2 ** min(count - 1, 16))
        self._retry_at[name.file] = time.monotonic() + delay
        failure = storage_failure(error, path)
        self._fails(name.file, f"the copies of rank {name.rank} cannot be kept here: {failure.reason}")
        if count > 1:
            return
        if error.errno == errno.ENOMEM:
            failure = StorageFailure(failure.path, failure.errno, failure.reason, free_memory())
        self._tell(BackupFailure(name.file, name.step, failure, needed, delay))

    def _fails(self, file: str, why: str) -> None:
        self._failing.pop(file, None)
        if why:
            self._failing[file] = why
        self.failing = next(iter(self._failing.values()), "")

    def close(self) -> None:
        """Let go of the memory; the files stay."""
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._files.close()


def _is_gone(client: CopyClient, connection: CopyConnection, name: CopyName) -> bool:
    """Bytes that do not fit their sums are those of the next copy, where that is written there by now. Raises OSError."""
    try:
        client.describe(connection, name)
    except CopyGone:
        return True
    except CopyChanged:
        return False
    return False


def _opened(path: Path) -> MemorySegment | None:
    """That of the launcher before. Raises OSError."""
    try:
        return MemorySegment.open(path)
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.EINVAL}:
            raise
        return None


def _whole(segment: MemorySegment) -> dict[int, SlotStamp]:
    """What is in its slots, without those that hold nothing whole."""
    found: dict[int, SlotStamp] = {}
    for slot in range(segment.slots):
        with contextlib.suppress(TornCopy):
            content = segment.read(slot)
            found[slot] = SlotStamp(content.step, content.sequence)
    return found


def _fill(client: CopyClient, name: CopyName, description: Description, segment: MemorySegment) -> None:
    """Over the slot that is worth least; what is newer than this step is of a training that was rolled back."""
    whole = _whole(segment)
    target = slot_to_write(whole, segment.slots, name.step)
    assert target is not None  # nothing is held here
    sequence = 1 + max((stamp.sequence for stamp in whole.values()), default=0)
    client.fetch(name, description, segment, target, sequence)
    for slot, stamp in whole.items():
        if slot != target and stamp.step > name.step:
            segment.clear(slot)
