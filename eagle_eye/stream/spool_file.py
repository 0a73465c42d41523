"""Records that wait on disk while the stream is away: one append-only file per writer.

    header   8 bytes magic, 8 bytes: where the oldest record that still waits begins, 4 bytes CRC-32 of both (little endian)
    frame    mark, length, CRC-32 of the rest, time, lengths of topic and key | topic | key | value

What was written survives kill -9 of the writer. A frame that was being written then is cut off when
the file is opened again. A frame that the disk gives back wrong is passed over: the next whole one begins with
the mark again. At least once is promised, no more: a kill between an append to the stream and the new position
repeats that one batch.
"""

import fcntl
import math
import os
import struct
import zlib
from pathlib import Path
from typing import NamedTuple

from eagle_eye.errors import StreamError

_MAGIC = b"EESPOOL2"
_POSITION = struct.Struct("<8sQ")
_HEADER = struct.Struct("<8sQI")
_MARK = b"\xeeREC"
_FRAME = struct.Struct("<4sII")
_BODY = struct.Struct("<dHI")
_LARGEST_FRAME = 32 << 20
_SEARCHED_FIRST, _SEARCHED = 1 << 12, 1 << 20
"""Bytes that are searched for a mark at once: at first, and at most."""
_COPIED = 1 << 20
"""Bytes that are copied at once to a file that takes the place of a deleted one."""
_WASTED_MOST = 1 << 30
"""Bytes whose checksum was taken in vain: a file full of marks that lie would keep its reader busy for hours."""


class SpooledRecord(NamedTuple):
    """One record that waits."""

    topic: str
    key: str
    value: bytes
    time: float
    """When it was written."""


class SpoolFile:
    """An append-only queue on disk. One process, one thread at a time; OSError when the disk refuses."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; StreamError if another process uses it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # a POSIX lock: unlike flock's it does not live on in forked children of a killed owner
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise StreamError(f"another process spools into {path}: give each agent and launcher its own") from error
        self.cut = 0
        """Bytes of a torn tail that were cut off when the file was opened."""
        self.damaged = 0
        """Bytes before it that no whole frame holds."""
        self.count = 0
        """Records that wait."""
        self.lost = 0
        """Records that were there when the file was opened, and that a damaged disk gave back wrong since."""
        self.oldest: float | None = None
        """Time of the first one that waits."""
        self._wasted = 0
        self._begin = self._end = _HEADER.size
        self._recover()

    @property
    def bytes_waiting(self) -> int:
        """Bytes that wait, with their frames."""
        return self._end - self._begin

    @property
    def removed(self) -> bool:
        """Its path leads to it no more: it, or a folder above it, was deleted or moved, and what waits here ends with this process."""
        try:
            return not os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # its file system does not answer, which is no proof
            return False

    def renewed(self) -> "SpoolFile":
        """A new file at its path, with what waits in this one, which is closed. OSError or StreamError where that cannot be: nothing has changed then."""
        fresh = SpoolFile(self.path)
        try:
            fresh._take_over(self)
        except OSError:
            fresh.close()
            raise
        os.close(self._descriptor)
        return fresh

    def _take_over(self, former: "SpoolFile") -> None:
        """Copy what waits there, behind what waits here."""
        position, at = former._begin, self._end
        try:
            self._write(_header(self._begin), 0)
            while position < former._end:
                part = os.pread(former._descriptor, min(_COPIED, former._end - position), position)
                if not part:
                    break
                self._write(part, at)
                position, at = position + len(part), at + len(part)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end = at
        self.count, self.lost = self.count + former.count, self.lost + former.lost
        self.oldest = former.oldest if self.oldest is None else self.oldest

    def adopt(self, path: Path) -> None:
        """Take over what waits in the file of a process that has ended; it is removed then. A kill in between repeats it. OSError or StreamError where that cannot be, or its process lives."""
        left = SpoolFile(path)
        try:
            if left.count and not left.removed:
                self._take_over(left)
                left.drop(left.count, left._end)
        finally:
            left.close()

    def append(self, records: list[SpooledRecord]) -> None:
        """Write all of the records, or none and raise OSError."""
        data = b"".join(_framed(record) for record in records)
        try:
            if self._end == _HEADER.size:
                self._write(_header(_HEADER.size), 0)
            self._write(data, self._end)
        except OSError:
            os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(data)
        self.count += len(records)
        if self.oldest is None:
            self.oldest = records[0].time

    def peek(self, records: int, limit: int) -> tuple[list[SpooledRecord], int]:
        """The oldest records, at most so many and so many bytes (but one at least), and the position after them."""
        found: list[SpooledRecord] = []
        position, stop = self._begin, self._begin + limit
        while len(found) < records and position < self._end and (not found or position < stop):
            frame = self._next(position, self._end)
            if frame is None:
                self._cut(position)
                break
            record, _, position = frame
            found.append(record)
        return found, position

    def drop(self, count: int, position: int) -> None:
        """Forget the oldest records: the stream has them."""
        self.count -= count
        if position >= self._end:
            self.lost, self.count = self.lost + self.count, 0
            self._begin = self._end = _HEADER.size
            os.ftruncate(self._descriptor, _HEADER.size)
        else:
            self._begin = position
        self._write(_header(self._begin), 0)
        following = self._next(self._begin, self._end)
        self.oldest = following[0].time if following else None

    def close(self) -> None:
        """Release the file; an empty one is removed."""
        if self._begin == self._end and not self.removed:
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def _write(self, data: bytes, position: int) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(self._descriptor, view, position)
            view, position = view[written:], position + written

    def _recover(self) -> None:
        size = os.fstat(self._descriptor).st_size
        header = os.pread(self._descriptor, _HEADER.size, 0)
        begin = _HEADER.size
        if len(header) == _HEADER.size:
            _, told, _ = _HEADER.unpack(header)
            if header == _header(told) and _HEADER.size <= told <= size:
                begin = told
        self._begin = self._end = position = begin
        while (frame := self._next(position, size)) is not None:
            record, found, after = frame
            self.damaged += found - position
            position = after
            self.count += 1
            self.oldest = record.time if self.oldest is None else self.oldest
        self._end = position
        if size > position:
            self._cut(position)
            self.cut = size - position

    def _cut(self, position: int) -> None:
        self._end = position
        os.ftruncate(self._descriptor, position)

    def _next(self, position: int, end: int) -> tuple[SpooledRecord, int, int] | None:
        """The first whole record from a position on, where it begins and the position after it; None if there is none."""
        marks = _MarkSearch(self._descriptor, end)
        while position < end:
            frame = self._frame(position, end)
            if frame is not None:
                return frame[0], position, frame[1]
            position = marks.after(position)
        return None

    def _frame(self, position: int, end: int) -> tuple[SpooledRecord, int] | None:
        """The record at a position and the position after it; None if there is no whole one."""
        head = os.pread(self._descriptor, _FRAME.size, position)
        if len(head) < _FRAME.size:
            return None
        mark, length, checksum = _FRAME.unpack(head)
        after = position + _FRAME.size + length
        if self._wasted > _WASTED_MOST or mark != _MARK or not _BODY.size <= length <= _LARGEST_FRAME or after > end:
            return None
        body = os.pread(self._descriptor, length, position + _FRAME.size)
        if zlib.crc32(body) != checksum:
            self._wasted += length
            return None
        record = _record(body)
        return (record, after) if record is not None else None


class _MarkSearch:
    """Where the next marks of a file are; each of its bytes is read once, more and more of them at a time."""

    def __init__(self, descriptor: int, end: int) -> None:
        self._descriptor = descriptor
        self._end = end
        self._begin, self._part = 0, b""
        self._size = _SEARCHED_FIRST

    def after(self, position: int) -> int:
        """Of the first mark behind a position; the end if there is none."""
        position += 1
        while position < self._end:
            if not self._begin <= position < self._begin + len(self._part) - len(_MARK):
                self._begin, self._part = position, os.pread(self._descriptor, min(self._size + len(_MARK), self._end - position), position)
                self._size = min(4 * self._size, _SEARCHED)
            if (found := self._part.find(_MARK, position - self._begin)) >= 0:
                return self._begin + found
            position = max(position + 1, self._begin + len(self._part) - len(_MARK) + 1)
        return self._end


def _record(body: bytes) -> SpooledRecord | None:
    """None for what no spool of ours has written, though its checksum is right."""
    time, topic, key = _BODY.unpack_from(body)
    value = _BODY.size + topic + key
    if value > len(body) or not math.isfinite(time):
        return None
    try:
        names = body[_BODY.size : _BODY.size + topic].decode(), body[_BODY.size + topic : value].decode()
    except UnicodeDecodeError:
        return None
    return SpooledRecord(*names, body[value:], time)


def _header(begin: int) -> bytes:
    return _HEADER.pack(_MAGIC, begin, zlib.crc32(_POSITION.pack(_MAGIC, begin)))


def _framed(record: SpooledRecord) -> bytes:
    topic, key = record.topic.encode(), record.key.encode()
    body = _BODY.pack(record.time, len(topic), len(key)) + topic + key + record.value
    return _FRAME.pack(_MARK, len(body), zlib.crc32(body)) + body


def size_of(record: SpooledRecord) -> int:
    """Bytes that a record takes in the file, within a few."""
    return _FRAME.size + _BODY.size + len(record.topic) + len(record.key) + len(record.value)
