"""Where the history is kept: a directory, or any store that fsspec knows. A file is there whole, or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import fsspec

from eagle_eye.errors import ConfigError, HistoryError

from .file_names import HOUR_S, HistoryFile, hour_folder, parse

NEW = ".new"
"""Folder of files that are still being written, in a directory."""


class ObjectStore:
    """A folder of history files. Every method may raise HistoryError."""

    def __init__(self, filesystem: Any, root: str, name: str) -> None:
        self.filesystem = filesystem
        """fsspec's."""
        self.root = root.rstrip("/")
        self.name = name
        """The store that the configuration names."""
        self.local = filesystem.protocol[0] in ("file", "local") if isinstance(filesystem.protocol, tuple) else filesystem.protocol == "file"

    @classmethod
    def of(cls, name: str | Path) -> Self:
        """A path, or a URL such as s3://bucket/folder. Raises ConfigError for one that fsspec does not know."""
        try:
            filesystem, root = fsspec.url_to_fs(str(name), use_listings_cache=False)
        except (ValueError, ImportError) as error:
            raise ConfigError(f"history.location {str(name)!r} cannot be used: {error}. Give a directory, or install fsspec's driver for it") from error
        return cls(filesystem, root, str(name))

    def new(self, name: str) -> Path:
        """Path of a local file to write before it is `put`."""
        try:
            if not self.local:
                number, path = tempfile.mkstemp(prefix="eagle-eye-history-", suffix=f"-{name}")
                os.close(number)
                return Path(path)
            folder = Path(self.root) / NEW
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise HistoryError(f"{self.name} cannot be written: {error.strerror}") from error
        return folder / f"{os.getpid()}-{name}"

    def put(self, written: Path, file: HistoryFile) -> int:
        """Move a local file to its place, whole and durable; returns its bytes. What has the name already is replaced."""
        target = self.url(file)
        try:
            size = written.stat().st_size
            if self.local:
                _move(written, Path(target))
            else:
                self.filesystem.makedirs(target.rpartition("/")[0], exist_ok=True)
                self.filesystem.put_file(str(written), target)
                written.unlink()
        except Exception as error:  # boundary: every driver of fsspec raises errors of its own
            raise HistoryError(f"{target} cannot be written: {error}") from error
        return size

    def remove(self, file: HistoryFile) -> None:
        """Nothing happens if it is gone already."""
        try:
            self.filesystem.rm_file(self.url(file))
        except FileNotFoundError:
            pass
        except Exception as error:  # boundary: as above
            raise HistoryError(f"{self.url(file)} cannot be removed: {error}") from error

    def url(self, file: HistoryFile) -> str:
        """Full path within the file system."""
        return f"{self.root}/{file.path}"

    def tables(self) -> list[str]:
        """Those that have any file."""
        found = [f"{kind}/{source}" for kind in self._folders("") for source in self._folders(kind)]
        return sorted(found)

    def files(self, table: str = "", since: float = 0.0) -> Iterator[HistoryFile]:
        """All files of a table ('' = of all) whose hour is not over before `since`; each may be gone when it is looked at."""
        oldest = hour_folder("", since - HOUR_S).split("/")
        for name in [table] if table else self.tables():
            for date in self._folders(name):
                if date < oldest[1]:
                    continue
                for hour in self._folders(f"{name}/{date}"):
                    if [date, hour] >= oldest[1:]:
                        yield from self._files(f"{name}/{date}/{hour}")

    def delete_unfinished(self, older_than: float) -> None:
        """Take files away that were never finished, and folders that are empty."""
        if self.local:
            for path in (Path(self.root) / NEW).glob("*"):
                if path.stat().st_mtime < older_than:
                    path.unlink(missing_ok=True)
            for path in sorted(Path(self.root).glob("*/*/date=*/**/"), reverse=True):
                if path.is_dir() and path.stat().st_mtime < older_than and not any(path.iterdir()):
                    path.rmdir()

    def _folders(self, path: str) -> list[str]:
        return sorted(name for name, entry in self._ls(path) if entry["type"] == "directory" and not name.startswith("."))

    def _files(self, path: str) -> Iterator[HistoryFile]:
        for name, entry in sorted(self._ls(path)):
            file = parse(f"{path}/{name}", int(entry.get("size") or 0)) if entry["type"] == "file" else None
            if file is not None:
                yield file

    def _ls(self, path: str) -> list[tuple[str, dict[str, Any]]]:
        try:
            entries = self.filesystem.ls(f"{self.root}/{path}".rstrip("/"), detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except Exception as error:  # boundary: as above
            raise HistoryError(f"{self.name} cannot be listed: {error}") from error
        return [(str(entry["name"]).rstrip("/").rpartition("/")[2], entry) for entry in entries]


def _move(written: Path, target: Path) -> None:
    """Durable before it is seen."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with written.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        written.replace(target)
    except OSError:
        shutil.move(written, target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
