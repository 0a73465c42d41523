"""A checkpoint of a directory, as its manifest tells it."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

from eagle_eye.training.object_path import ObjectPath, StoragePath

from .manifest import Manifest


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint whose manifest can be read; whether its tensors are whole is found when they are loaded."""

    path: StoragePath
    """Of the manifest."""
    manifest: Manifest

    @property
    def step(self) -> int:
        """The first step still to do."""
        return self.manifest.step

    @property
    def finite(self) -> bool:
        """Whether no tensor holds NaN or an infinite value."""
        return self.manifest.finite

    @property
    def shards(self) -> list[StoragePath]:
        """Their files."""
        return [self.path.parent / shard.name for shard in self.manifest.shards]

    @property
    def missing(self) -> str:
        """Why it cannot be whole, as far as the sizes of its files tell; '' if they are as they were written.

        Raises OSError where storage does not say (EIO, ESTALE, EACCES, ...): then it may well be whole, and nothing is to be deleted for it.
        """
        size_of = _sizes_of(self.path.parent)
        for path, shard in zip(self.shards, self.manifest.shards, strict=True):
            try:
                size = size_of(path)
            except FileNotFoundError as error:
                return f"{path} cannot be read: {error.strerror}"
            if size != shard.bytes:
                return f"{path} has {size} of {shard.bytes} bytes"
        return ""

    @property
    def unusable(self) -> str:
        """Why it cannot be loaded now, for a person: what is missing, or why storage does not say; '' if nothing is known to be in the way."""
        try:
            return self.missing
        except OSError as error:
            return f"{error.filename or self.path.parent} cannot be read now: {error.strerror or error}"


def _sizes_of(home: StoragePath) -> Callable[[StoragePath], int]:
    """Of its files. An object store is asked once for all of them. Raises OSError, as what it returns does."""
    if not isinstance(home, ObjectPath):
        return lambda path: path.stat().st_size
    sizes = home.sizes()

    def size_of(path: StoragePath) -> int:
        if path.name not in sizes:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return sizes[path.name]

    return size_of
