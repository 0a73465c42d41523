"""Files that people name on a command line or in the configuration: read without waiting, in bounded memory, and refused in plain words.

What is no regular file is refused: a FIFO is waited for without end where nobody writes into it, and a device may have none. A descriptor that
this process was started with is read to its end, as stdin is: `/dev/stdin`, and what a shell puts in the place of `<(command)`.
"""

import errno
import io
import os
from pathlib import Path, PurePath

from .regular_file import open_regular

LARGEST = 64 << 20
"""Bytes of a file of text, unless its reader says otherwise."""
_STDIN = PurePath("/dev/stdin")
_OWN_DESCRIPTORS = (PurePath("/dev/fd"), PurePath("/proc/self/fd"))


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    """Raises OSError, whose `strerror` says what is wrong and what to do; EFBIG for more than `most` bytes."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if _was_handed_over(path) else _open_regular(path)
    with os.fdopen(file, "rb") as source:
        data = source.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MB" if most >= 1 << 20 else f"it has more than {most} bytes", os.fspath(path))
    return data


def read_text(path: Path, most: int = LARGEST) -> str:
    """UTF-8, with line ends as Python's. Raises OSError, as `read_bytes`; EILSEQ for what is no UTF-8."""
    data = read_bytes(path, most)
    try:
        return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8").read()
    except UnicodeDecodeError:
        raise OSError(errno.EILSEQ, _not_utf8(data), os.fspath(path)) from None


def _open_regular(path: Path) -> int:
    try:
        return open_regular(path)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENXIO) and not path.is_file():
            raise OSError(errno.EINVAL, f"{error.strerror}: save it in a file first", os.fspath(path)) from error
        raise


def _was_handed_over(path: Path) -> bool:
    return path == _STDIN or (path.parent in _OWN_DESCRIPTORS and path.name.isdigit())


def _not_utf8(data: bytes) -> str:
    """Where; a reader that decodes piece by piece does not say it of the whole."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"byte {error.start} is no UTF-8 ({error.reason}): save it as UTF-8"
    return "it is no UTF-8: save it as UTF-8"
