"""The copies that lie on this node: those of its own workers, and those that it keeps for others. Read from the files, so a new launcher knows them, too."""

import contextlib
import errno
import mmap
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from eagle_eye.training.checkpoint import slot_table
from eagle_eye.training.checkpoint.memory_segment import (
    ROW,
    SUFFIX,
    SegmentFile,
    SlotContent,
    SlotStamp,
    TornCopy,
)
from eagle_eye.training.checkpoint.roll_backs import RollBacks, abandoned

from .copy_states import Held, Place, Seen

SLAB = 1 << 24
"""Bytes that are summed by one call."""


class CopyName(msgspec.Struct, frozen=True, kw_only=True):
    """A copy as launchers speak of it. Of a message, so nothing in it is believed before the copy is verified."""

    file: str
    """Its name on the node that serves it."""
    slot: int
    step: int
    sequence: int
    rank: int
    world: int
    payload: int
    """Bytes of its tensors."""
    backup: bool = False
    """Kept for another node."""
    replicated: bool = False
    """All ranks hold the same."""
    epoch: int = 0
    """Of the job, in which it was made; 0: it is not known."""


class _TableHead(msgspec.Struct, frozen=True):
    """What of a slot's table says whose copy it is."""

    rank: int
    world: int
    finite: bool
    replicated: bool = False
    epoch: int = 0


class UnreadableCopy(NamedTuple):
    """A copy that its worker takes for safe, and that no launcher can read."""

    place: Place
    step: int
    sequence: int
    """Of it and the step: -1 where the whole file cannot be opened."""
    why: str


class CopyFiles:
    """Segments in one folder whose names begin with `prefix`. For one thread; others have their own."""

    def __init__(self, folder: Path, prefix: str, workers: int) -> None:
        self._folder, self._prefix, self._workers = folder, prefix, workers
        self._ours = re.compile(rf"{re.escape(prefix)}(\d+|backup-\d+of\d+){re.escape(SUFFIX)}")
        self._open: dict[str, SegmentFile] = {}
        self._names: dict[tuple[str, int, int], CopyName | None] = {}
        """(file, slot, sequence) → what is there; None: nothing that another node could use."""
        self._payload_at: dict[Place, int] = {}
        self._unreadable: deque[UnreadableCopy] = deque(maxlen=64)
        """Those that were not told yet."""
        self._refused: set[str] = set()
        """Files that were told to be refused."""

    def own_path(self, slot: int) -> Path:
        """The segment of a worker of this node."""
        return self._folder / f"{self._prefix}{slot}{SUFFIX}"

    def backup_path(self, rank: int, world: int) -> Path:
        """Where this node keeps the copies of that rank."""
        return self._folder / f"{self._prefix}backup-{rank}of{world}{SUFFIX}"

    def seen(self, rolled_back: RollBacks = ()) -> list[Seen]:
        """The slots of this node's workers, as they are now; what was abandoned by a roll-back is as if it were not there."""
        found: list[Seen] = []
        for path in map(self.own_path, range(self._workers)):
            segment = self.segment(path.name)
            for slot in range(segment.slots if segment is not None else 0):
                stamp = segment.stamp(slot) if segment is not None else None
                found.append(Seen(Place(path.name, slot), *(stamp if stamp is not None else (-1, -1))))
        return [Seen(each.place, -1, -1) if self._is_abandoned(each, rolled_back) else each for each in found] if rolled_back else found

    def _is_abandoned(self, seen: Seen, rolled_back: RollBacks) -> bool:
        name = self.name_of(seen.place) if seen.sequence >= 0 else None
        return name is not None and bool(abandoned(rolled_back, name.epoch, name.step))

    def names(self, rank: int, world: int) -> list[CopyName]:
        """All copies of that rank that lie here; rank -1: those of any, and of any world, that workers here hold themselves, where all ranks hold the same."""
        paths = [*map(self.own_path, range(self._workers)), *([self.backup_path(rank, world)] if rank >= 0 else [])]
        places = [Place(path.name, slot) for path in paths if (segment := self.segment(path.name)) is not None for slot in range(segment.slots)]
        found = map(self.name_of, places)
        return [name for name in found if name is not None and (name.replicated if rank < 0 else (name.rank, name.world) == (rank, world))]

    def backups(self) -> Iterator[Held]:
        """Files that this node keeps for others."""
        for path in self._folder.glob(f"{self._prefix}backup-*{SUFFIX}"):
            segment = self.segment(path.name)
            if segment is not None:
                stamps = [stamp.step for slot in range(segment.slots) if (stamp := segment.stamp(slot)) is not None]
                with contextlib.suppress(OSError):
                    yield Held(path.name, path.stat().st_size, max(stamps, default=-1))

    def segment(self, file: str) -> SegmentFile | None:
        """The file of that name as it is now; None if there is none that can be read."""
        if not self._ours.fullmatch(file):
            return None
        before = self._open.get(file)
        if before is not None and before.is_current():
            return before
        if before is not None:
            before.close()
            del self._open[file]
            self._names = {key: name for key, name in self._names.items() if key[0] != file}
        try:
            self._open[file] = SegmentFile(self._folder / file)
        except OSError as error:
            if error.errno == errno.EPERM and file not in self._refused:
                self._refused.add(file)
                self._unreadable.append(UnreadableCopy(Place(file, 0), -1, -1, f"{self._folder / file}: {error.strerror}"))
            return None
        self._refused.discard(file)
        return self._open[file]

    def unreadable(self) -> list[UnreadableCopy]:
        """Copies of this node's workers and of others that turned out to be none since this was asked last; each once."""
        found = list(self._unreadable)
        self._unreadable.clear()
        return found

    def name_of(self, place: Place) -> CopyName | None:
        """The whole copy in a slot, unless its values are not finite."""
        segment = self.segment(place.file)
        stamp = segment.stamp(place.slot) if segment is not None else None
        if segment is None or stamp is None:
            return None
        key = (*place, stamp.sequence)
        if key not in self._names:
            self._names = {known: name for known, name in self._names.items() if known[:2] != place}
            self._names[key] = self._read(segment, place, stamp)
        return self._names[key]

    def _read(self, segment: SegmentFile, place: Place, stamp: SlotStamp) -> CopyName | None:
        try:
            content = segment.read(place.slot)
            head = _head(content.table)
        except (ValueError, msgspec.ValidationError) as error:
            if segment.stamp(place.slot) == stamp:  # else its worker is writing it anew, and nothing is wrong
                self._unreadable.append(UnreadableCopy(place, *stamp, f"the copy in slot {place.slot} is broken: {error}"))
            return None
        if not head.finite:
            return None
        self._payload_at[place] = content.payload_at
        return CopyName(
            file=place.file, slot=place.slot, step=content.step, sequence=content.sequence, rank=head.rank, world=head.world,
            payload=content.payload_bytes, backup=place.file.startswith(f"{self._prefix}backup-"), replicated=head.replicated, epoch=head.epoch,
        )  # fmt: skip

    def payload_at(self, place: Place) -> int:
        """Offset within the file of the copy that `name_of` has told last."""
        return self._payload_at[place]

    def content(self, name: CopyName) -> SlotContent | None:
        """Description, table and sums of a copy; None if it is not there any more, or was changed."""
        segment = self.segment(name.file)
        try:
            content = segment.read(name.slot) if segment is not None else None
        except TornCopy:
            return None
        return content if content is not None and content.sequence == name.sequence else None

    def close(self) -> None:
        for segment in self._open.values():
            segment.close()
        self._open.clear()


def _head(table: bytes) -> _TableHead:
    """Raises ValueError, ValidationError."""
    with contextlib.suppress(msgspec.DecodeError):
        return msgspec.json.decode(table, type=_TableHead)  # much quicker, where all of it is strict JSON
    return msgspec.convert(slot_table.decode(table), type=_TableHead)


class SegmentTimes:
    """Whether a worker of this node has written a copy: each that is whole moves the time of its file (MemorySegment.stamp). Much quicker than a look at the copies.

    Two within one tick of the kernel's clock may look like one; so it is looked at the copies now and then in any case.
    """

    def __init__(self, files: CopyFiles, workers: int) -> None:
        self._paths = [os.fspath(files.own_path(slot)) for slot in range(workers)]
        self._known: list[tuple[int, int, int] | None] = []

    def have_changed(self) -> bool:
        """Since it was asked last."""
        before, self._known = self._known, [_file_time(path) for path in self._paths]
        return self._known != before


def _file_time(path: str) -> tuple[int, int, int] | None:
    """Which file it is, and when it was written; None: there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


class SegmentMaps:
    """Segments as memory that is given to system calls alone: one that is cut short then is an error (EFAULT), and no signal that ends this process.

    A mapping is kept, since its pages are mapped once; sent from a fresh one a copy takes a third longer. (sendfile is slower still: the receiver gets
    single pages.) Threads share it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._maps: dict[tuple[int, int], tuple[Path, memoryview]] = {}
        """By the file's identity, which nothing else has while it is mapped."""

    def of(self, segment: SegmentFile) -> memoryview:
        """All of a file. Raises OSError."""
        file = segment.content.fileno()
        with self._lock:
            identity = _identity(os.fstat(file))
            if identity not in self._maps:
                self._maps[identity] = segment.path, memoryview(mmap.mmap(file, 0, access=mmap.ACCESS_READ))
            return self._maps[identity][1]

    def forget_removed(self) -> None:
        """The memory of files whose name leads to them no more is given back once nobody sends of it."""
        with self._lock:
            for identity, (path, _) in list(self._maps.items()):
                try:
                    is_there = _identity(path.lstat()) == identity
                except OSError:
                    is_there = False
                if not is_there:
                    del self._maps[identity]


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def changed_row(rows: memoryview, sums: bytes, first: int) -> int:
    """The first row of these, which begin with row `first` of a payload, whose sum is not as it was written; -1 if there is none."""
    given = np.frombuffer(sums, dtype=np.int64)
    words = np.frombuffer(rows, dtype=np.int64).reshape(-1, ROW // 8)
    for at in range(0, len(words), SLAB // ROW):
        piece = words[at : at + SLAB // ROW]
        wrong = np.flatnonzero(piece.sum(axis=1) != given[first + at : first + at + len(piece)])
        if len(wrong):
            return first + at + int(wrong[0])
    return -1
