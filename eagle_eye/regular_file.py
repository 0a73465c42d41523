"""Reads files that another user may have put there: a FIFO, a device or a file without end must not stop the reader; and the kernel's own, quickly."""

import errno
import os
import stat
from pathlib import Path

KERNEL_FILE_MOST = 1 << 16
"""Bytes that are read of a file of the kernel: those of /sys end at a page, and memory.stat, the longest of a cgroup, has some 5,000 on a node with two NUMA nodes."""


def open_regular(path: str | os.PathLike[str], *, follow: bool = True) -> int:
    """A descriptor to read from; never waits. Raises OSError, also for what is no regular file, for a link where none is followed, and for what no file can be named."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW))
    except ValueError as error:  # a NUL, or text that has no encoding
        raise OSError(errno.EINVAL, f"no file can have this name ({error})", os.fspath(path)) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return file


def read_owned(path: Path, most: int, *, follow: bool = True) -> tuple[bytes, int]:
    """The content of a file of at most so many bytes, and whose it is: a user id. Raises OSError, EFBIG for a larger one.

    `follow`: False where the owner is believed: a link to root's file is not root's word.
    """
    with open(open_regular(path, follow=follow), "rb") as file:
        data, owner = file.read(most + 1), os.fstat(file.fileno()).st_uid
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most} bytes", os.fspath(path))
    return data, owner


def read_kernel_file(path: str | os.PathLike[str]) -> bytes:
    """At most KERNEL_FILE_MOST bytes of a file of /proc or /sys, of which dozens are read a second: the buffers and the decoder of a text file cost several times the read. Raises OSError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, KERNEL_FILE_MOST)
    finally:
        os.close(file)
