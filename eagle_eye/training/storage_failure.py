"""What a person needs to know of a file that storage refused: which error, where, and how much room is left."""

import errno
import os
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

STORAGE_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EIO, errno.EFBIG})
"""Of an OSError that the script's own code raises: with these it is the storage that failed, not the script."""
UNKNOWN = -1
"""Free bytes that could not be found out."""
_WRITERS = {("torch/serialization.py", "save"): "f", ("safetensors/torch.py", "save_file"): "filename"}
"""(file, function) of libraries that write for the script and raise without a path → the argument that is the path."""
_LONGEST_CHAIN = 8


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
    """What the system said, and the room at `path` at this moment."""
    name = errno.errorcode.get(error.errno or 0, "")
    return StorageFailure(os.fspath(path), name, error.strerror or str(error), free_bytes(Path(path)))


def failure_raised(error: BaseException | None, trace: TracebackType | None) -> StorageFailure | None:
    """The refusal of which an uncaught exception tells, itself or by what it was raised from; None if it tells of none."""
    known = ((raised, _errno_of(raised)) for raised in _chain(error))
    raised, number = next(((raised, number) for raised, number in known if number in STORAGE_ERRNOS), (error, 0))
    if raised is None or (not number and not _is_torch_writers(str(raised))):
        return None
    path = _path_of(raised, trace)
    reason = os.strerror(number) if number else str(raised)
    return StorageFailure(path, errno.errorcode.get(number, ""), reason, free_bytes(Path(path)) if path else UNKNOWN)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def _errno_of(error: BaseException) -> int:
    """0 if it has none. Libraries in C++ and Rust keep of the errno only its words."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    told = str(error).lower()
    return next((number for number in STORAGE_ERRNOS if os.strerror(number).lower() in told), 0)


def _is_torch_writers(text: str) -> bool:
    """torch.save to a file that ends too early: its writer in C++ does not say why."""
    return "inline_container.cc" in text and ("unexpected pos" in text or "failed writing" in text)


def _path_of(error: BaseException, trace: TracebackType | None) -> str:
    """'' if nobody knows it."""
    if isinstance(error, OSError) and isinstance(error.filename, str):
        return error.filename
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
