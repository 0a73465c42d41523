"""The ring: a ring buffer of step records in shared memory, one file per worker and epoch.

The writer is the training loop: it stores words into a mapped file and never waits, locks or calls the
kernel. The reader is another process: it reads the file with `pread` (a truncated file under a mapping would
kill it), at any time, also after the writer was killed with SIGKILL.

    0      header    magic, version, sizes, pid, start time, epoch, clock offset, worker, names of the columns
    4096   now       what the loop does at this moment: 64-bit words, each stored atomically
    8192   error     the exception that ended the loop: length, checksum, JSON
    16384  slots     512 records of 512 bytes

A record's checksum and ordinal are stored after its body: in whatever order the hardware stores them, and wherever
a SIGKILL comes, a torn record does not pass for a complete one. Times inside are CLOCK_MONOTONIC
nanoseconds, which all processes of a machine share; the header holds the offset to wall time, the reader
returns wall seconds.
"""

import json
import mmap
import os
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from eagle_eye.errors import RingError
from eagle_eye.regular_file import open_regular
from eagle_eye.writable_text import writable

from .messages import PHASES

MAGIC = b"EAGLEEYE"
VERSION = 1
COLUMNS = tuple(f"{phase}_s" for phase in PHASES)
NAMES = ("step_s", *COLUMNS, "loss", "tokens", "grad_norm")
"""The first columns of every ring; another value that a script logs is appended when it is first logged."""

WIDTH = 57
"""Columns of a record."""
SLOTS = 512
SLOT_BYTES = 512
NOW = 4096
ERROR_AT = 8192
SLOTS_AT = 16384
SIZE = SLOTS_AT + SLOTS * SLOT_BYTES

_HEADER = struct.Struct("<8s8q")
"""magic, version, slots, width, pid, start time, epoch, wall minus monotonic in ns, length of the worker's name"""
_WORKER = 128
"""Offset of the worker's name, up to 384 bytes."""
_NAMES = 512
"""Offset of the names: a count, then cells of 56 bytes."""
_NAME_BYTES = 56
_BODIES = tuple(struct.Struct(f"<5q{width}d") for width in range(WIDTH + 1))
"""step number, epoch, end in monotonic ns, bit mask of the columns that hold a value, number of values, values"""
_MARK = struct.Struct("<2q")
"""ordinal, checksum of the body and the ordinal"""
WORDS = 10
_NOW = struct.Struct(f"<{WORDS}q")

# positions of the words in the part `now`
MARKS, STEP, BEGAN, MARKED, PHASE, RUNNING, DONE, FAULTS, SCRIPT_ENDED, EXIT_CODE = range(WORDS)
"""RUNNING holds the count of marks with which the step began; once the loop is over, its negative. SCRIPT_ENDED: when the script was over, EXIT_CODE: with which exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The process that writes the ring."""

    pid: int
    start_time: int
    """Field 22 of /proc/PID/stat: with the pid it names a process for good."""
    epoch: int
    worker: str
    offset: float
    """Wall time minus CLOCK_MONOTONIC when the ring was made, seconds."""
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopState:
    """What the loop does at this moment. Times are wall seconds; NaN if it did not happen yet."""

    step: int
    """Number of the step that was begun last, -1 before the first."""
    step_began: float
    last_mark: float
    phase: str
    marks: int
    """Count of marks since the start: any change is progress."""
    step_marks: int
    """Count of marks since the step began: how far it has come in its step."""
    running: bool
    """A loop over `monitor.steps` is running."""
    completed: int
    """Steps completed since the start."""
    faults: int
    """Faults that the probe has swallowed."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A completed step. Times are wall seconds, durations seconds."""

    number: int
    epoch: int
    end: float
    values: dict[str, float]


class ScriptEnd(NamedTuple):
    """A script that is over."""

    time_s: float
    """When, by CLOCK_MONOTONIC."""
    code: int
    """Its exit code, 0 to 255."""


_ENDED = ("Z", "X")
"""States of a process that nobody has waited for yet: where PID 1 of a container waits for no child, for ever."""
_STATE, _START_TIME = 0, 19
"""Of the fields of /proc/PID/stat behind the name (proc(5)): 3 and 22 of all."""


def start_time_of(pid: int) -> int:
    """Start of a process in clock ticks since boot; 0 if there is no such process. One of which only the exit status is left still has its own."""
    fields = _stat_fields(pid)
    return int(fields[_START_TIME]) if fields else 0


def is_alive(pid: int, start_time: int) -> bool:
    """Whether the process that began then is there, and more of it than its exit status.

    One that cannot be looked at is not; agents, which are not to report a death for want of a descriptor, ask `collectors.worker.procfs.alive`.
    """
    fields = _stat_fields(pid)
    return bool(fields) and int(fields[_START_TIME]) == start_time and fields[_STATE] not in _ENDED


def _stat_fields(pid: int) -> list[str]:
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return line.rpartition(")")[2].split()


class RingWriter:
    """The writer, in the training loop. `now` is a view of 64-bit words: MARKS, STEP, BEGAN, MARKED, PHASE, RUNNING, ..."""

    def __init__(self, memory: mmap.mmap, epoch: int) -> None:
        self._memory = memory
        self._epoch = epoch
        self._columns = {name: index for index, name in enumerate(NAMES)}
        self._ordinal = 0
        self.now = memoryview(memory)[NOW : NOW + _NOW.size].cast("q")

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        pid: int | None = None,
        epoch: int = 0,
        worker: str = "",
        start_time: int | None = None,
        offset_ns: int | None = None,
    ) -> Self:
        """Make a new ring; it becomes visible under `path` once it is whole.

        Raises OSError, also when the file system has no room: the blocks are reserved, so that a later store
        cannot fail.
        """
        pid = os.getpid() if pid is None else pid
        start_time = start_time_of(pid) if start_time is None else start_time
        offset_ns = time.time_ns() - time.monotonic_ns() if offset_ns is None else offset_ns
        name = worker.encode()[: _NAMES - _WORKER]
        unfinished = f"{os.fspath(path)}.{pid}.new"
        file = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, SIZE)
            memory = mmap.mmap(file, SIZE)
        except OSError:
            Path(unfinished).unlink(missing_ok=True)  # it would keep what little room there is
            raise
        finally:
            os.close(file)
        memory[_WORKER : _WORKER + len(name)] = name
        _HEADER.pack_into(memory, 0, MAGIC, VERSION, SLOTS, WIDTH, pid, start_time, epoch, offset_ns, len(name))
        writer = cls(memory, epoch)
        for index, column in enumerate(NAMES):
            writer._name(index, column)
        writer.now[STEP] = -1
        Path(unfinished).replace(path)
        return writer

    def column(self, name: str) -> int:
        """Index of a column, appended if it is new; -1 if there is no room for another."""
        index = self._columns.get(name)
        if index is None:
            index = len(self._columns)
            if index >= WIDTH:
                return -1
            self._name(index, name)
            self._columns[name] = index
        return index

    def set_epoch(self, epoch: int) -> None:
        """The next records are of this epoch: an elastic worker goes through several."""
        self._epoch = epoch

    def append(self, number: int, end_ns: int, values: Mapping[int, float]) -> None:
        """Store a completed step: column index (of `column`) → value. NaN is a value, a missing column is none."""
        width = len(self._columns)
        row = [0.0] * width
        mask = 0
        for column, value in values.items():
            row[column] = value
            mask |= 1 << column
        ordinal = self._ordinal + 1
        memory = self._memory
        at = SLOTS_AT + (ordinal % SLOTS) * SLOT_BYTES
        body = _BODIES[width].pack(number, self._epoch, end_ns, mask, width, *row)
        memory[at + 16 : at + 16 + len(body)] = body
        _MARK.pack_into(memory, at, ordinal, zlib.crc32(body, ordinal & 0xFFFFFFFF))
        self._ordinal = ordinal
        self.now[DONE] = ordinal

    def write_error(self, error: Mapping[str, Any]) -> None:
        """Store the exception that ended the loop, as JSON of at most 8 KiB; the caller shortens its texts."""
        text = json.dumps(error).encode()[: SLOTS_AT - ERROR_AT - 16]
        self._memory[ERROR_AT + 16 : ERROR_AT + 16 + len(text)] = text
        _MARK.pack_into(self._memory, ERROR_AT, len(text), zlib.crc32(text))

    def close(self) -> None:
        """Unmap. The file stays for a reader post mortem; the launcher removes it."""
        self.now.release()
        self._memory.close()

    def _name(self, index: int, name: str) -> None:
        text = name.encode()[:_NAME_BYTES]
        at = _NAMES + 8 + index * _NAME_BYTES
        self._memory[at : at + len(text)] = text
        struct.pack_into("<q", self._memory, _NAMES, index + 1)


class RingReader:
    """The reader, in another process: reads at any time, never waits."""

    def __init__(self, file: int, path: str) -> None:
        self._file = file
        self._path = path
        self._names: tuple[str, ...] = ()
        self._header = self._read_header()
        self.offset = self._header.offset
        """Wall time minus CLOCK_MONOTONIC, seconds: as the writer found it. Whoever reads for long sets it to what it is now, for clocks are set."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Open a ring. Raises RingError for a missing, foreign or truncated file and for another version."""
        try:
            file = open_regular(path)
        except OSError as error:
            raise RingError(f"ring {os.fspath(path)}: {error.strerror}") from error
        try:
            return cls(file, os.fspath(path))
        except RingError:
            os.close(file)
            raise

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def header(self) -> Header:
        """The process that writes; `names` grows when the script logs something new."""
        names = self._read_names()
        if names != self._header.names:
            self._header = self._read_header()
        return self._header

    def alive(self) -> bool:
        """The writer's process is the one that lives under its pid (a pid alone is reused)."""
        return self._header.start_time > 0 and is_alive(self._header.pid, self._header.start_time)

    def now(self) -> LoopState:
        """The words of the moment, read again while the writer is changing them.

        A loop that never stops marking would never let two reads agree: after a few the last one counts,
        each word of which was true within the same microsecond.
        """
        words = self._read(NOW, _NOW.size)
        for _ in range(4):
            again = self._read(NOW, _NOW.size)
            if again == words:
                break
            words = again
        marks, step, began, marked, phase, running, done, faults, *_ = _NOW.unpack(words)
        return LoopState(
            step=step,
            step_began=self._wall(began),
            last_mark=self._wall(marked),
            phase=PHASES[phase] if 0 <= phase < len(PHASES) else PHASES[0],
            marks=marks,
            step_marks=max(0, marks - abs(running)),
            running=running > 0,
            completed=done,
            faults=faults,
        )

    def steps(self, after: int) -> list[StepRecord]:
        """Completed steps with a number above `after`, oldest first; those overwritten or torn are left out."""
        done = _NOW.unpack(self._read(NOW, _NOW.size))[DONE]
        records: list[StepRecord] = []
        for ordinal in range(done, max(0, done - SLOTS), -1):
            record = self._slot(ordinal)
            if record is None:
                continue
            if record.number <= after:
                break
            records.append(record)
        records.reverse()
        return records

    def error(self) -> dict[str, Any] | None:
        """The exception that ended the loop (type, message, traceback, step); None if there is none, or it was torn."""
        length, checksum = _MARK.unpack(self._read(ERROR_AT, _MARK.size))
        if not 0 < length <= SLOTS_AT - ERROR_AT - 16:
            return None
        text = self._read(ERROR_AT + 16, length)
        if zlib.crc32(text) != checksum:
            return None
        try:
            words = writable(json.loads(text))
        except (ValueError, RecursionError):  # cut off at the end of its place, or written by somebody else
            return None
        return words if isinstance(words, dict) else None

    def script_end(self) -> ScriptEnd | None:
        """How the script was over; None if it is not, or an exception has ended it. Its process may be at its exit handlers yet."""
        words = _NOW.unpack(self._read(NOW, _NOW.size))
        return ScriptEnd(words[SCRIPT_ENDED] / 1e9, words[EXIT_CODE]) if words[SCRIPT_ENDED] else None

    def _slot(self, ordinal: int) -> StepRecord | None:
        at = SLOTS_AT + (ordinal % SLOTS) * SLOT_BYTES
        data = self._read(at, SLOT_BYTES)
        stored, checksum = _MARK.unpack_from(data)
        number, epoch, end, mask, width = _BODIES[0].unpack_from(data, 16)
        if stored != ordinal or not 0 <= width <= WIDTH:
            return None
        body = _BODIES[width]
        if zlib.crc32(data[16 : 16 + body.size], ordinal & 0xFFFFFFFF) != checksum:
            return None
        row = body.unpack_from(data, 16)[5:]
        names = self._names if width <= len(self._names) else self._read_names()
        if width > len(names):
            return None  # the file was written to by somebody else
        values = {names[column]: row[column] for column in range(width) if mask >> column & 1}
        return StepRecord(number, epoch, self._wall(end), values)

    def _wall(self, monotonic_ns: int) -> float:
        return monotonic_ns / 1e9 + self.offset if monotonic_ns else float("nan")

    def _read_header(self) -> Header:
        size = os.fstat(self._file).st_size
        head = os.pread(self._file, NOW, 0)
        if len(head) < _HEADER.size or head[:8] != MAGIC:
            raise RingError(f"{self._path} is no ring of Eagle Eye: point EAGLE_EYE_RING at another file")
        _, version, slots, width, pid, start_time, epoch, offset, length = _HEADER.unpack_from(head)
        if version != VERSION or (slots, width) != (SLOTS, WIDTH):
            raise RingError(
                f"ring {self._path} has version {version}, this program reads {VERSION}: "
                "use the same eagle-eye in the trainer and on the node"
            )
        if size < SIZE:
            raise RingError(f"ring {self._path} is cut short: {size} of {SIZE} bytes")
        worker = head[_WORKER : _WORKER + max(0, min(length, _NAMES - _WORKER))].decode(errors="replace")
        return Header(
            pid=pid, start_time=start_time, epoch=epoch, worker=worker, offset=offset / 1e9, names=self._read_names()
        )

    def _read_names(self) -> tuple[str, ...]:
        data = self._read(_NAMES, 8 + WIDTH * _NAME_BYTES)
        count = max(0, min(struct.unpack_from("<q", data)[0], WIDTH))
        if count != len(self._names):
            cells = (data[8 + i * _NAME_BYTES : 8 + (i + 1) * _NAME_BYTES] for i in range(count))
            self._names = tuple(cell.rstrip(b"\0").decode(errors="replace") for cell in cells)
        return self._names

    def _read(self, at: int, length: int) -> bytes:
        data = os.pread(self._file, length, at)
        if len(data) != length:
            raise RingError(f"ring {self._path} is cut short at byte {at + len(data)}")
        return data
