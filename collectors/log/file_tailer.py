"""Follows a growing file: whole lines, over rotation, from where it stopped.

A file that is rotated by renaming is read to its end before the new one is begun; one that was truncated begins anew, also
where it has grown beyond its old size since, or is another one with the number (inode) of the old: what stands before the place
where the reader stopped is then other than it was. A backlog beyond `most_backlog` bytes is passed over and counted. What is no
regular file (a FIFO, a device) is refused.
"""

import errno
import hashlib
import os
from pathlib import Path

import msgspec

from eagle_eye.regular_file import open_regular

CHUNK = 1 << 20
"""Bytes of one read."""
LONGEST_LINE = 1 << 20
"""A line without an end is given out in pieces of so many bytes: a progress bar may never end one."""
MOST_BACKLOG = 64 << 20
BEFORE = 64
"""Bytes before the place where the reader stopped, by which it knows the file again."""


class FilePosition(msgspec.Struct, frozen=True):
    """How far a file has been read."""

    inode: int = 0
    offset: int = 0
    digest: str = ""
    """Of the last bytes before it; '' = not known, as an older agent saved it."""


class FileTailer:
    """One path. `read` as often as wanted; it never waits."""

    def __init__(self, path: Path, position: FilePosition | None = None, *, from_end: bool = True, most_backlog: int = MOST_BACKLOG, owner: int | None = None) -> None:
        """`position`: where another tailer stopped; None begins at the end of the file, or at its beginning without `from_end`.

        `owner`: user id; a file of another user is refused, so that nobody has us read what is not theirs through a link.
        """
        self.path = path
        self._owner = owner
        self.skipped_bytes = 0
        """Passed over, because the file grew faster than it was read."""
        self.rewritten = 0
        """How often the file had other content than before where the reader stopped, and was begun anew."""
        self._saved, self._from_end, self._most_backlog = position, from_end, most_backlog
        self._file = -1
        self._inode = 0
        self._offset = 0
        self._before = b""
        """The last bytes that were given out."""
        self._rest = b""

    @property
    def position(self) -> FilePosition:
        """Up to where lines have been given out."""
        if self._file < 0:
            return self._saved or FilePosition()
        return FilePosition(self._inode, self._offset - len(self._rest), _digest(self._before))

    @property
    def unread_bytes(self) -> int:
        """What the file has beyond what `read` took in; 0 also where it is not open. Raises OSError."""
        return max(0, os.fstat(self._file).st_size - self._offset) if self._file >= 0 else 0

    def read(self, most: int = CHUNK) -> bytes:
        """The next whole lines (and what a progress bar has drawn over meanwhile), about `most` bytes at once; b"" = there are none yet, or the end of a long one was not reached (`unread_bytes`). Raises OSError where the file cannot be read."""
        if self._file < 0 and not self._open():
            return b""
        data = self._more(most)
        if not data and self._is_rotated():
            rest = self._rest
            self._leave()
            return rest + b"\n" if rest else self.read(most)
        whole, end, self._rest = _split(self._rest + data)
        given = whole + end
        if len(self._rest) > LONGEST_LINE:
            piece, self._rest = self._rest, b""
            self._before = piece[-BEFORE:]
            return given + piece + b"\n"
        self._before = _last(self._before, given)
        return given

    def close(self) -> None:
        """Give the file back; `read` opens it again, where it stopped."""
        if self._file >= 0:
            self._saved = self.position
            os.close(self._file)
            self._file = -1

    def _leave(self) -> None:
        """Its end is read: what has its name now is read from the beginning."""
        os.close(self._file)
        self._file, self._saved, self._from_end, self._rest = -1, None, False, b""

    def _more(self, most: int) -> bytes:
        size = os.fstat(self._file).st_size
        if size < self._offset or (size > self._offset and not self._is_as_before()):  # truncated, as by `copytruncate`
            self._begin_anew()
        if size - self._offset > self._most_backlog:
            self._pass_over(size)
        grown = max(0, size - self._offset)  # no more is asked for: a buffer of a megabyte for a few lines costs more than they do
        data = os.pread(self._file, min(most, CHUNK, grown), self._offset) if grown else b""
        self._offset += len(data)
        return data

    def _is_as_before(self) -> bool:
        expected = _last(self._before, self._rest)
        found = os.pread(self._file, len(expected), self._offset - len(expected))
        return found == expected or _is_hole(expected) or _is_hole(found)

    def _begin_anew(self) -> None:
        self.rewritten += 1
        self._offset, self._before, self._rest = 0, b"", b""

    def _pass_over(self, size: int) -> None:
        """Go on near the end, with the first whole line there."""
        start = size - self._most_backlog // 2
        self.skipped_bytes += start - self._offset + len(self._rest)
        self._offset, self._rest = start, b""
        begin = os.pread(self._file, CHUNK, start).find(b"\n") + 1
        self._offset += begin
        self.skipped_bytes += begin
        self._before = self._bytes_before()

    def _bytes_before(self) -> bytes:
        length = min(BEFORE, self._offset)
        return os.pread(self._file, length, self._offset - length)

    def _open(self) -> bool:
        """The file in which the reader stopped, which may have another name now; else the newest. False: there is none."""
        saved, self._saved = self._saved, None
        if saved is not None and saved.inode:
            for path in (self.path, *_rotated(self.path)):
                if self._opened(path, saved):
                    return True
        try:
            self._file = self._open_own(self.path)
        except FileNotFoundError:
            self._from_end = False  # what appears later is new
            self._saved = saved
            return False
        except OSError:
            self._saved = saved  # it may be read later: from where the reader stopped
            raise
        status = os.fstat(self._file)
        self._inode, self._rest = status.st_ino, b""
        self._offset = status.st_size if saved is None and self._from_end else 0
        self._before = self._bytes_before()
        self._from_end = False
        return True

    def _open_own(self, path: Path) -> int:
        """Raises OSError, EPERM for another user's file."""
        file = open_regular(path)
        if self._owner is not None and os.fstat(file).st_uid != self._owner:
            os.close(file)
            raise PermissionError(errno.EPERM, f"it is not of user {self._owner}", os.fspath(path))
        return file

    def _opened(self, path: Path, saved: FilePosition) -> bool:
        try:
            if path.stat().st_ino != saved.inode:
                return False
            self._file = self._open_own(path)
        except OSError:
            return False
        self._inode, self._offset, self._rest = saved.inode, saved.offset, b""
        self._before = self._bytes_before()
        if not saved.digest or _digest(self._before) == saved.digest or _is_hole(self._before):
            return True
        if path != self.path:  # of a file that is gone by now: rotation keeps the content
            os.close(self._file)
            self._file = -1
            return False
        self._begin_anew()
        return True

    def _is_rotated(self) -> bool:
        try:
            return self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return False  # renamed, and the new one is not there yet


def as_ascii(piece: bytes) -> bytes:
    """Output in UTF-16, as PowerShell's `>` writes it, without the zeros that stand beside each ASCII character; anything else as it is.

    >>> as_ascii("CUDA error".encode("utf-16-le")), as_ascii(b"a hole: " + bytes(99))[:6]
    (b'CUDA error', b'a hole')
    """
    zeros = piece.count(0)
    if not len(piece) / 3 < zeros < len(piece) * 0.6 or max(piece[::2].count(0), piece[1::2].count(0)) < zeros * 0.9:
        return piece
    return piece.removeprefix(b"\xff\xfe").removeprefix(b"\xfe\xff").replace(b"\0", b"")


def _last(before: bytes, data: bytes) -> bytes:
    return data[-BEFORE:] if len(data) >= BEFORE else (before + data)[-BEFORE:]


def _is_hole(data: bytes) -> bool:
    """Zeros say nothing of the content: a network file system shows them where the writer's bytes have not come yet, and so does a truncated file whose writer goes on where it was."""
    return b"\0" in data


def _digest(data: bytes) -> str:
    return "" if _is_hole(data) else hashlib.blake2b(data, digest_size=8).hexdigest()


def _split(data: bytes) -> tuple[bytes, bytes, bytes]:
    """Whole lines, the last end of one, and the rest. A progress bar ends no line for hours: what its carriage returns have ended is whole."""
    whole, end, rest = data.rpartition(b"\n")
    if b"\r" not in rest[:-1]:
        return whole, end, rest
    drawn, again, rest = rest.rpartition(b"\r")
    return whole + end + drawn, again, rest


def _rotated(path: Path) -> list[Path]:
    """Names that logrotate gives to the file before: log.1, log-20260101."""
    try:
        return sorted(path.parent.glob(f"{path.name}[.-]*"))
    except OSError:
        return []
