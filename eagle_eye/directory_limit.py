"""A directory to which files are added without end: the oldest go, lest a disk fills up that others need."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class _File(NamedTuple):
    path: Path
    size: int
    changed: float


def delete_oldest(directory: Path, pattern: str, max_bytes: int, keep: Collection[Path] = ()) -> None:
    """Delete the oldest files of this pattern until they have at most so many bytes, those to `keep` included, which stay. Raises OSError."""
    files = sorted(_files(directory, pattern), key=lambda each: each.changed)
    size = sum(each.size for each in files)
    for each in files:
        if size <= max_bytes:
            return
        if each.path not in keep:
            each.path.unlink(missing_ok=True)
            size -= each.size


def _files(directory: Path, pattern: str) -> Iterator[_File]:
    """One that another process deletes meanwhile is left out."""
    for path in directory.glob(pattern):
        with suppress(FileNotFoundError):
            status = path.stat()
            yield _File(path, status.st_size, status.st_mtime)
