"""What a person needs to know of a file that storage refused: which error, where, and how much room is left."""

import errno
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType

from .object_path import SCHEME

STORAGE_ERRNOS = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EIO, errno.EFBIG, errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG, errno.ENOMEDIUM}
)
"""Of an OSError that the script's own code raises: with these it is the storage that failed, not the script. The last four tell of damage on a disk, its
checksums, and a disk that is gone; a write to an open file raises them without a path."""
STORAGE_ERRNOS_OF_A_PATH = frozenset(
    {
        errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED, errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTDOWN,
        errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOLINK, errno.EKEYEXPIRED,
    }
)  # fmt: skip
"""The same, where the error names a file: a FUSE process that is gone, an evicted Lustre client, a server that does not answer, an expired
Kerberos ticket. Without a file most of them are a socket's. EACCES is none: a path to which the user has no right is the script's mistake, first of all."""
UNKNOWN = -1
"""Free bytes that could not be found out."""
_WRITERS = {("torch/serialization.py", "save"): "f", ("safetensors/torch.py", "save_file"): "filename"}
"""(file, function) of libraries that write for the script and raise without a path → the argument that is the path."""
_LONGEST_CHAIN = 32


@dataclass(frozen=True, slots=True)
class StorageFailure:
    """One refusal."""

    path: str
    errno: str
    """Its name, such as ENOSPC; '' if the system gave none."""
    reason: str
    free_bytes: int
    """Of the file system, for users other than root; -1 if unknown."""


def storage_failure(error: OSError, path: str | os.PathLike[str]) -> StorageFailure:
    """What the system said, and the room at `path` at this moment; an object store does not say how much it has."""
    name = errno.errorcode.get(error.errno or 0, "")
    return StorageFailure(os.fspath(path), name, error.strerror or str(error), UNKNOWN if SCHEME in os.fspath(path) else free_bytes(Path(path)))


def failure_raised(error: BaseException | None, trace: TracebackType | None) -> StorageFailure | None:
    """The refusal of which an uncaught exception tells, itself or by what it was raised from; None if it tells of none."""
    chain = tuple(islice(_chain(error), _LONGEST_CHAIN))
    for number_of in (_errno_of, _errno_in_words, _errno_of_torch):
        found = next(((raised, number) for raised in chain if (number := number_of(raised)) is not None), None)
        if found is not None:
            return _failure(*found, trace if found[0] is error else found[0].__traceback__)
    for raised in chain:
        at = trace if raised is error else raised.__traceback__
        if isinstance(raised, OSError) and raised.errno in STORAGE_ERRNOS_OF_A_PATH and _path_of(raised, at):
            return _failure(raised, raised.errno, at)
    return None


def _failure(raised: BaseException, number: int, trace: TracebackType | None) -> StorageFailure:
    path = _path_of(raised, trace)
    reason = os.strerror(number) if number else str(raised)
    return StorageFailure(path, errno.errorcode.get(number, ""), reason, free_bytes(Path(path)) if path else UNKNOWN)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, what it was raised from as a traceback prints it, and the members of a group."""
    waiting, seen = [error], set[int]()
    while waiting:
        raised = waiting.pop(0)
        if raised is None or id(raised) in seen:
            continue
        seen.add(id(raised))
        yield raised
        if isinstance(raised, BaseExceptionGroup):
            waiting += raised.exceptions
        waiting.append(raised.__context__ if raised.__cause__ is None and not raised.__suppress_context__ else raised.__cause__)


def _errno_of(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) and error.errno in STORAGE_ERRNOS else None


def _errno_in_words(error: BaseException) -> int | None:
    """Libraries in C++ and Rust keep of the errno only its words; those of EBADMSG are anybody's, those of EREMOTEIO also the network's (libfabric)."""
    if isinstance(error, OSError) and error.errno:
        return None
    told = _words(error).lower()
    return next((number for number in STORAGE_ERRNOS - {errno.EBADMSG, errno.EREMOTEIO} if os.strerror(number).lower() in told), None)


def _errno_of_torch(error: BaseException) -> int | None:
    """torch.save to a file that ends too early: its writer in C++ does not say why, which is 0."""
    told = _words(error)
    return 0 if "inline_container.cc" in told and ("unexpected pos" in told or "failed writing" in told) else None


def _words(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the __str__ of a user's class
        return ""


def _path_of(error: BaseException, trace: TracebackType | None) -> str:
    """'' if nobody knows it."""
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        named = os.fsdecode(error.filename)
        return "" if "://" in named else named  # urllib gives a URL
    for frame, _ in traceback.walk_tb(trace):
        for (file, function), argument in _WRITERS.items():
            if frame.f_code.co_name == function and frame.f_code.co_filename.endswith(file):
                path = frame.f_locals.get(argument)
                return os.fspath(path) if isinstance(path, str | Path) else str(getattr(path, "name", ""))
    return ""


def free_bytes(path: Path) -> int:
    """The free bytes of the file system that holds `path`, or would hold it; UNKNOWN if it does not answer."""
    for place in (path, *path.absolute().parents):
        try:
            room = os.statvfs(place)
        except FileNotFoundError:
            continue
        except OSError:
            break
        return room.f_bavail * room.f_frsize
    return UNKNOWN


def size_text(count: int) -> str:
    """In bytes, kB, MB or GB.

    >>> size_text(1234567)
    '1.23 MB'
    """
    size = float(count)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
