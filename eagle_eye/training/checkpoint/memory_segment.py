"""A file in shared memory that holds the state of one worker twice, or three times: while one slot is written, the newest whole one stays.

The file belongs to a worker (`EAGLE_EYE_CHECKPOINT_MEMORY`), not to a process of it: it outlives a kill, and the worker's successor finds it.
A header (whose it is) is followed by slots of the same size. A slot is a page with its description, the table of what lies where (JSON), a
sum of 64-bit words for each ROW bytes of the payload, and the payload. The first word of the description, the stamp, is written last and
cleared first: wherever a SIGKILL comes, a slot that is not whole has none. A digest covers description, table and sums.
While the launcher on another node copies a slot, ours holds it: the worker writes another one meanwhile. That is why there are three where copies
go to another node: with two the only one left to write would be the newest. Leaving that save out instead would let the ranks of a job, whose copies
take differently long, hold different steps, and the job could go on from none of them.

All memory is reserved before it is mapped: a later store cannot fail. The writer holds a POSIX lock, which ends with its process and which
no forked child shares. Needs no torch: the agent and the launcher read the header, too.
"""

import ctypes
import errno
import fcntl
import hashlib
import logging
import mmap
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple, Self

from eagle_eye.cgroups import memory_cgroups_of
from eagle_eye.training.ring_buffer import start_time_of

MAGIC = b"EEMEMCKP"
VERSION = 3
PAGE = 4096
ROW = 1 << 16
"""Bytes of the payload that one sum covers."""
SLOTS, SLOTS_WITH_BACKUP = 2, 3
"""Of a segment; of one whose copies go to another node."""
MOST_SLOTS = 8
VARIABLE = "EAGLE_EYE_CHECKPOINT_MEMORY"
"""The file of a worker, from its launcher."""
SUFFIX = ".memory"
"""Of the file's name."""
UNFINISHED = ".new"
"""Suffix of a file that is being reserved; before it comes the pid."""
SPARE = 0.05
"""This share of the memory that is free stays free: what training needs comes first."""
_TRIED_S = 0.1
"""How often a file that another process holds is tried again."""
_log = logging.getLogger("eagle_eye.checkpoint")
_HEADER = struct.Struct("<8s6q")
"""magic, version, bytes of a slot, pid, start time of the process, length of the worker's name, number of slots"""
_HOLD, _HOLD_AT = struct.Struct("<3q"), _HEADER.size
"""Of a slot that is held, one for each `SlotHold`: its number + 1 (0: none), sequence, until when (ns of CLOCK_MONOTONIC). Written by the launcher alone."""
_WORKER = 128
_DESCRIPTION = struct.Struct("<7q32s")
"""stamp (step + 1; 0: not whole), sequence, step, bytes of the table, of the sums, of the payload, offset of the payload; digest"""
_STAMP, _STAMPED = struct.Struct("<q"), struct.Struct("<3q")
"""The stamp alone, and with sequence and step."""
_POPULATE_WRITE, _POPULATE_BYTES = 23, 1 << 22
"""madvise(2), since Linux 5.14: maps the pages of a range, and keeps what they hold; a piece at a time, since it keeps others from mapping memory."""


class SlotHold(IntEnum):
    """Why the worker is to leave a copy as it is."""

    SENT = 0
    """It is on its way to another node, or is there, and not all nodes have that step there."""
    KEPT = 1
    """It is the newest step that every node of the job has on a second one: if a node is lost, all others need it."""
    STORED = 2
    """It is on its way to storage."""


class TornCopy(ValueError):
    """A slot holds no whole copy, or one that was changed since it was written; the message says which."""


class EmptySlot(TornCopy):
    """Nothing was ever whole in a slot."""


class Segment(NamedTuple):
    """What the header of a file says."""

    worker: str
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class SlotContent:
    """What a slot holds, by its description."""

    slot: int
    step: int
    sequence: int
    """Rises with each copy: the highest is the newest, also after a restart from an older step."""
    table: bytes
    sums: bytes
    payload_at: int
    """Offset within the file."""
    payload_bytes: int


def slot_bytes(table: int, payload: int) -> int:
    """Of a slot for so many bytes of table and payload; there is some room for a table that grows."""
    rows = rows_of(payload)
    return _pages(PAGE + 2 * table + 8 * rows + rows * ROW + PAGE)


def rows_of(payload: int) -> int:
    """How many sums cover a payload."""
    return -(-payload // ROW)


class SlotStamp(NamedTuple):
    """What a slot says it holds, unverified; quick to read."""

    step: int
    sequence: int


def slot_to_write(whole: Mapping[int, SlotStamp], slots: int, step: int, is_held: Callable[[int], bool] = lambda _: False) -> int | None:
    """Which of so many slots gets the copy of this step: never the newest of those that are `whole`, nor one that is held; None: there is no other.

    Of two slots the one that is not the newest is given, held or not. What is newer than this step is of a training that was rolled back: it
    counts as older than all others, and nobody holds it any more.
    """

    def worth(slot: int) -> tuple[bool, int]:
        stamp = whole.get(slot)
        return (False, -1) if stamp is None else (stamp.step <= step, stamp.sequence)

    newest = max(whole, key=worth, default=-1)
    others = [slot for slot in range(slots) if slot != newest]
    free = [slot for slot in others if not (slot in whole and whole[slot].step <= step and is_held(slot))]
    return min(free if slots > SLOTS else others, key=worth, default=None)


class MemorySegment:
    """The file, mapped. One process at a time holds it, or several read it."""

    def __init__(self, file: int, path: Path, unfinished: Path | None = None) -> None:
        self.path = path
        self._unfinished = unfinished
        """Its name until it holds as many finite copies as it is to replace others with, ..."""
        self._copies_to_come = 1
        """... of which so many are not there yet."""
        self._file = file
        self._map = mmap.mmap(file, 0)
        magic, version, size, *_, slots = _HEADER.unpack_from(self._map)
        self.slot_bytes = int(size)
        self.slots = int(slots)
        if not _is_possible(magic, version, size, slots, len(self._map)):
            raise OSError(errno.EINVAL, "it is no segment of this version of Eagle Eye", os.fspath(path))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.memory = memoryview(self._map)

    @classmethod
    def create(cls, path: Path, size: int, worker: str, slots: int = SLOTS, *, copies: int = 1) -> Self:
        """A new one with so many slots of `size` bytes. Raises OSError: also ENOMEM where the node or its cgroup has not so much.

        It takes the place of an older one once so many `copies` in it are whole and finite. Takes 0.3 s/GiB, since the kernel clears the memory.
        """
        total = PAGE + slots * size
        free = free_memory()
        if total > free * (1 - SPARE):
            raise OSError(errno.ENOMEM, f"the node, or the cgroup of this process, has {free} bytes of memory free", os.fspath(path))
        _remove_unfinished(path)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}{UNFINISHED}")
        file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            name = worker.encode()[: PAGE - _WORKER]
            os.pwrite(file, name, _WORKER)
            os.pwrite(file, _HEADER.pack(MAGIC, VERSION, size, os.getpid(), start_time_of(os.getpid()), len(name), slots), 0)
            os.posix_fallocate(file, 0, total)  # after the header: if we are killed here the sweep knows whose it was
            segment = cls(file, path, unfinished)
        except OSError:
            os.close(file)
            unfinished.unlink(missing_ok=True)
            raise
        segment._copies_to_come = copies
        return segment

    @classmethod
    def open(cls, path: Path, *, shared: bool = False, wait_s: float = 0.0) -> Self:
        """That of a predecessor. `shared`: to read it, as other processes do at the same time; `wait_s`: so long it is tried again while a process holds it, which may be about to end.

        Raises OSError: FileNotFoundError if there is none, EPERM if it is another user's or others may use it, EAGAIN if a process holds it.
        """
        until, is_told = time.monotonic() + wait_s, False
        while True:
            try:
                return cls._opened(path, shared=shared)
            except OSError as error:
                if error.errno != errno.EAGAIN or time.monotonic() >= until:
                    raise
            if not is_told:
                _log.warning("%s is still held by another process, such as the worker before this one: it is waited for, for %g s at the most", path, wait_s)
            is_told = True
            threading.Event().wait(_TRIED_S)

    @classmethod
    def _opened(cls, path: Path, *, shared: bool) -> Self:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            refuse_foreign(file, path)
            fcntl.lockf(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if os.fstat(file).st_size < 2 * PAGE:
                raise OSError(errno.EINVAL, "it is cut short", os.fspath(path))
            segment = cls(file, path)
            if not shared:
                _, _, size, _, _, length, slots = _HEADER.unpack_from(segment.memory)
                _HEADER.pack_into(segment.memory, 0, MAGIC, VERSION, size, os.getpid(), start_time_of(os.getpid()), length, slots)
                _remove_unfinished(path)
        except OSError:
            os.close(file)
            raise
        return segment

    @property
    def has_name(self) -> bool:
        """It is what a successor would find."""
        return self._unfinished is None

    def is_visible(self) -> bool:
        """The name that it has now still leads to it."""
        try:
            return os.path.samestat((self._unfinished or self.path).lstat(), os.fstat(self._file))
        except OSError:
            return False

    def populate(self) -> None:
        """Map all pages, so that no copy waits for that; nothing happens where the kernel cannot. Other threads go on meanwhile."""
        libc, end = ctypes.CDLL(None, use_errno=True), self.address + len(self._map)
        for at in range(self.address, end, _POPULATE_BYTES):
            if libc.madvise(ctypes.c_void_p(at), ctypes.c_size_t(min(_POPULATE_BYTES, end - at)), _POPULATE_WRITE):
                return

    def read(self, slot: int) -> SlotContent:
        """What a slot holds. Raises TornCopy if that is not whole; the payload is still to be checked against the sums."""
        return read_slot(lambda count, at: bytes(self.memory[at : at + count]), self.slot_bytes, slot)

    def is_held(self, slot: int) -> bool:
        """The launcher has it copied to another node at this moment, or has the other nodes rely on it: what is there is to stay."""
        stamp, there = struct.unpack_from("<2q", self.memory, PAGE + slot * self.slot_bytes)
        holds = (_HOLD.unpack_from(self.memory, _HOLD_AT + _HOLD.size * why) for why in SlotHold)
        return stamp > 0 and any(held == slot + 1 and sequence == there and time.monotonic_ns() < until for held, sequence, until in holds)

    def clear(self, slot: int) -> None:
        """Nothing whole is there from now on. Called before the first byte is changed."""
        _STAMP.pack_into(self.memory, PAGE + slot * self.slot_bytes, 0)

    def payload_at(self, slot: int, payload: int) -> int:
        """Offset within the file at which a payload of so many bytes begins: at the end of the slot, for the table may grow."""
        return PAGE + slot * self.slot_bytes + (self.slot_bytes - rows_of(payload) * ROW) // PAGE * PAGE

    def has_room(self, table: int, payload: int) -> bool:
        """Whether a slot can hold so much."""
        return PAGE + table + 8 * rows_of(payload) + rows_of(payload) * ROW + PAGE <= self.slot_bytes

    def stamp(self, slot: int, step: int, sequence: int, table: bytes, sums: bytes, payload: int, *, finite: bool = True) -> None:
        """The payload is there: describe it, then make it visible. One that is not finite takes no name from an older segment, which may hold a better one."""
        at = PAGE + slot * self.slot_bytes
        start = at + PAGE
        self.memory[start : start + len(table)] = table
        self.memory[start + len(table) : start + len(table) + len(sums)] = sums
        fields = (step + 1, sequence, step, len(table), len(sums), payload, self.payload_at(slot, payload) - at)
        digest = _digest(fields, table, sums)
        _DESCRIPTION.pack_into(self.memory, at, 0, *fields[1:], digest)
        _STAMP.pack_into(self.memory, at, step + 1)
        os.utime(self._file)  # stores through a mapping change no time; the sweep goes by it
        self._copies_to_come -= finite
        if self._unfinished is not None and self._copies_to_come <= 0:
            self._unfinished.replace(self.path)
            self._unfinished = None

    def close(self) -> None:
        """Give the lock back; the memory is unmapped when the last view of it is gone."""
        if self._unfinished is not None and self.is_visible():  # the segment that was made in its place has the same name
            self._unfinished.unlink(missing_ok=True)
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_slot(read: Callable[[int, int], bytes], size: int, slot: int) -> SlotContent:
    """What a slot of `size` bytes holds; `read` gives (count, offset) of the file. Raises TornCopy as `MemorySegment.read`."""
    at = PAGE + slot * size
    stamp, sequence, step, table, sums, payload, payload_at, digest = _DESCRIPTION.unpack(read(_DESCRIPTION.size, at))
    if not stamp:
        kind = TornCopy if any(digest) else EmptySlot
        raise kind("nothing whole is there: it was not filled yet, or its worker ended while it was")
    sizes = (table, sums, payload, payload_at)
    if min(sizes) < 0 or PAGE + table + sums > payload_at or payload_at + rows_of(payload) * ROW > size or sums != 8 * rows_of(payload):
        raise TornCopy("its description was changed since it was written")
    content = read(table, at + PAGE), read(sums, at + PAGE + table)
    if digest != _digest((stamp, sequence, step, *sizes), *content) or stamp != step + 1:
        raise TornCopy("its description or its table was changed since it was written (digest)")
    return SlotContent(slot, step, sequence, *content, at + payload_at, payload)


class SegmentFile:
    """A segment of which another process is the writer, read without a mapping: nothing that is done to the file can end this process."""

    def __init__(self, path: Path) -> None:
        """Raises OSError: it is gone, another user's, or no segment of this version."""
        self.path = path
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        self.content = os.fdopen(file, "rb", buffering=0)
        try:
            refuse_foreign(file, path)
            head = os.pread(file, _HEADER.size, 0)
            magic, version, size, *_, slots = _HEADER.unpack(head) if len(head) == _HEADER.size else (b"", 0, 0, 0)
            if not _is_possible(magic, version, size, slots, os.fstat(file).st_size):
                raise OSError(errno.EINVAL, "it is no segment of this version of Eagle Eye", os.fspath(path))
        except OSError:
            self.content.close()
            raise
        self.slot_bytes, self.slots = int(size), int(slots)

    def is_current(self) -> bool:
        """Its name still leads to it, and it is this user's alone."""
        try:
            found = self.path.lstat()
            return not found.st_mode & 0o077 and os.path.samestat(found, os.fstat(self.content.fileno()))
        except OSError:
            return False

    def stamp(self, slot: int) -> SlotStamp | None:
        """None: nothing whole is there, or the file was cut short."""
        words = os.pread(self.content.fileno(), _STAMPED.size, PAGE + slot * self.slot_bytes)
        stamp, sequence, step = _STAMPED.unpack(words) if len(words) == _STAMPED.size else (0, 0, 0)
        return SlotStamp(step, sequence) if stamp > 0 else None

    def read(self, slot: int) -> SlotContent:
        """As `MemorySegment.read`. Raises TornCopy."""
        try:
            return read_slot(lambda count, at: os.pread(self.content.fileno(), count, at), self.slot_bytes, slot)
        except struct.error as error:
            raise TornCopy("it is cut short") from error

    def hold(self, slot: int, sequence: int, seconds: float, why: SlotHold = SlotHold.SENT) -> None:
        """Its worker leaves this copy as it is for so long; 0: no longer. Held for each reason is one slot, the last one that was asked for."""
        os.pwrite(self.content.fileno(), _HOLD.pack(slot + 1, sequence, time.monotonic_ns() + int(seconds * 1e9)), _HOLD_AT + _HOLD.size * why)

    def close(self) -> None:
        self.content.close()


def fetched_beside(path: Path) -> Path:
    """Where the launcher puts what another node has kept for this worker while the worker's own segment is there."""
    return path.with_name(f"{path.name.removesuffix(SUFFIX)}-fetched{SUFFIX}")


def segment_of(path: Path) -> Segment:
    """What the header says, for whoever looks for leftovers. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
        head = os.pread(file, PAGE, 0)
    finally:
        os.close(file)
    if len(head) < PAGE or head[:8] != MAGIC:
        raise OSError(errno.EINVAL, "it is no segment of Eagle Eye", os.fspath(path))
    _, _, _, pid, start_time, length, _ = _HEADER.unpack_from(head)
    return Segment(head[_WORKER : _WORKER + max(0, min(length, PAGE - _WORKER))].decode(errors="replace"), pid, start_time)


def free_memory() -> int:
    """Bytes that this process may take before something is killed for want of memory: of the node, and of the cgroups around it."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    for cgroup in memory_cgroups_of(os.getpid()):
        limit, used = cgroup.limit_bytes(), cgroup.used_bytes()
        if limit is not None and used is not None:
            free.append(max(0, limit - used))
    return min(free, default=1 << 62)


def _is_possible(magic: bytes, version: int, size: int, slots: int, length: int) -> bool:
    return magic == MAGIC and version == VERSION and size >= PAGE and SLOTS <= slots <= MOST_SLOTS and length >= PAGE + slots * size


def _remove_unfinished(path: Path) -> None:
    """What a predecessor has left that was killed while it reserved memory."""
    for left in path.parent.glob(f"{path.name}.*{UNFINISHED}"):
        left.unlink(missing_ok=True)


def refuse_foreign(file: int, path: Path) -> None:
    """Raises OSError for what is no regular file of this user alone."""
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(errno.EPERM, "it is another user's, or no file", os.fspath(path))
    if found.st_mode & 0o077:
        raise OSError(errno.EPERM, f"others may use it (mode {stat.S_IMODE(found.st_mode):04o}), so nothing in it is believed: chmod 600 it, or delete it", os.fspath(path))


def _digest(fields: tuple[int, ...], table: bytes, sums: bytes) -> bytes:
    found = hashlib.blake2b(struct.pack("<7q", *fields), digest_size=32)
    found.update(table)
    found.update(sums)
    return found.digest()


def _pages(count: int) -> int:
    return -(-count // PAGE) * PAGE
