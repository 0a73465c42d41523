"""Paths of objects in a store that fsspec has a driver for (`s3://bucket/prefix/name`), with what checkpoints need of pathlib.

On a disk a checkpoint is safe by fsync, a rename in one piece, and a folder of mode 0700. An object store has none of them. In their places:

- a name that appears with all of its content: an object is put whole, or uploaded in parts and completed last. What is cut off is no object.
- durability: the store says that it has the object.
- a rename (of a manifest that is put aside): a copy, then a deletion. Cut off in between both are there, and it is done again.
- a folder: none. There is one as soon as an object lies in it; who may read it is decided by the rules of the bucket.

No driver is imported before it is used. Whatever a driver raises becomes an OSError that names the URL, so that a store which refuses something is
treated as a disk that does.
"""

import contextlib
import errno
import fnmatch
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

from eagle_eye.training import atomic_file
from eagle_eye.training.thread_map import thread_map

SCHEME = "://"
PART_BYTES = 8 << 20
"""Of an upload, and read at once. So much, times THREADS, is in memory."""
MOST_PARTS = 10_000
"""Of one upload to S3; a larger object has larger parts."""
THREADS = 8
"""Requests under way for one object."""
_S3 = ("s3", "s3a")
_OPTIONS = {"config_kwargs": {"retries": {"max_attempts": 1}}}
"""Of S3: who saves tries again by itself, later; botocore alone would hold training up by a quarter of a minute for a store that is gone."""
_ERRNOS = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES, TimeoutError: errno.ETIMEDOUT, FileExistsError: errno.EEXIST}


class FileStatus(Protocol):
    """Part of what os.stat gives."""

    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime(self) -> float: ...


@runtime_checkable
class StoragePath(Protocol):
    """A file or folder of checkpoints: pathlib.Path, or ObjectPath. Its methods are pathlib's, and raise OSError."""

    @property
    def name(self) -> str: ...
    @property
    def suffix(self) -> str: ...
    @property
    def parent(self) -> Self: ...
    def __truediv__(self, key: str, /) -> Self: ...
    def with_name(self, name: str) -> Self: ...
    def absolute(self) -> Self: ...
    def __fspath__(self) -> str: ...
    def exists(self) -> bool: ...
    def is_dir(self) -> bool: ...
    def stat(self) -> FileStatus: ...
    def glob(self, pattern: str) -> Iterator[Self]: ...
    def read_bytes(self) -> bytes: ...
    def mkdir(self, mode: int = ..., parents: bool = ..., exist_ok: bool = ...) -> None: ...
    def unlink(self, missing_ok: bool = ...) -> None: ...
    def replace(self, target: Self) -> Self: ...


def storage_path(name: str | os.PathLike[str]) -> StoragePath:
    """A path, or for a URL an ObjectPath; `file://` is a path.

    >>> storage_path("s3://models/gpt/").name
    'gpt'
    >>> storage_path("file:///data/gpt")
    PosixPath('/data/gpt')
    """
    text = os.fspath(name)
    protocol, scheme, rest = text.partition(SCHEME)
    if protocol in ("file", "local") and scheme:
        return Path(rest)
    return ObjectPath(text.rstrip("/")) if scheme else Path(text)


def put(path: StoragePath, data: bytes) -> None:
    """Put `data` in the place of a file: a reader sees the old content or the new one. It is durable when this returns. Raises OSError."""
    if isinstance(path, ObjectPath):
        path.put(data)
    else:
        atomic_file.replace(Path(path), data)


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """Of one object, or of a folder of them."""

    url: str
    """Without a slash at its end."""

    @property
    def name(self) -> str:
        """What is behind the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> Self:
        """Of a bucket itself: the same."""
        folder = self.url.rpartition("/")[0]
        return type(self)(folder) if SCHEME in folder else self

    def __truediv__(self, key: str, /) -> Self:
        return type(self)(f"{self.url}/{key}")

    def with_name(self, name: str) -> Self:
        return self.parent / name

    def absolute(self) -> Self:
        return self

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return self.url

    def exists(self) -> bool:
        """Raises OSError where the store does not say."""
        with contextlib.suppress(FileNotFoundError):
            self.stat()
            return True
        return False

    def is_dir(self) -> bool:
        """Whether an object lies in it."""
        return bool(self._listed())

    def stat(self) -> FileStatus:
        with self._driver() as (store, key):
            found = store.info(key)
            if found["type"] != "file":
                raise FileNotFoundError(key)
            return _ObjectStatus(self, int(found["size"]))

    def sizes(self) -> Mapping[str, int]:
        """Of all objects in this folder, by name."""
        return {name: int(found["size"] or 0) for name, found in self._listed().items() if found["type"] == "file"}

    def glob(self, pattern: str) -> Iterator[Self]:
        """The objects in this folder whose names are like this."""
        return (self / name for name in self.sizes() if fnmatch.fnmatchcase(name, pattern))

    def _listed(self) -> dict[str, dict[str, Any]]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), self._driver() as (store, key):
            return {str(each["name"]).rstrip("/").rpartition("/")[2]: each for each in store.ls(key, detail=True) if str(each["name"]).strip("/") != key.strip("/")}
        return {}

    def read_bytes(self) -> bytes:
        return self.read_range(0, self.stat().st_size)

    def read_range(self, begin: int, end: int) -> bytes:
        """Fewer bytes where the object ends before."""
        if begin == end:
            return b""  # a range that HTTP has no words for
        with self._driver() as (store, key):
            return bytes(store.cat_file(key, start=begin, end=end))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:  # noqa: ARG002 - as pathlib has it
        """Raises OSError where there is no driver for it. Asks the store nothing: it has no folders."""
        with self._driver():
            pass

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with self._driver() as (store, key):
                store.rm_file(key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def replace(self, target: Self) -> Self:
        """Copy, then delete."""
        with self._driver() as (store, key):
            store.cp_file(key, store._strip_protocol(target.url))
            store.rm_file(key)
        return target

    def put(self, data: bytes) -> None:
        """In the place of what has the name; a reader sees the one or the other."""
        with self._driver() as (store, key):
            store.pipe_file(key, data)

    def upload(self, parts: int, part_of: Callable[[int], bytes]) -> None:
        """Put what is made piece by piece, `part_of(0)` to `part_of(parts - 1)`; all but the last have one size, of PART_BYTES at least. Nothing is there before all of it is.

        To S3 THREADS parts go at a time, and each is made when it is sent: `part_of` is called in several threads. Other drivers send one after the other.
        """
        if parts == 1:
            self.put(part_of(0))
            return
        with self._driver() as opened:
            store, key = opened
        if hasattr(store, "call_s3"):
            self._upload_to_s3(store, key, parts, part_of)
        else:
            self._upload_in_order(store, key, parts, part_of)

    def _upload_in_order(self, store: Any, key: str, parts: int, part_of: Callable[[int], bytes]) -> None:
        with self._refusals():
            file = store.open(key, "wb", block_size=PART_BYTES)
        try:
            for index in range(parts):
                part = part_of(index)
                with self._refusals():
                    file.write(part)
            with self._refusals():
                file.close()
        except BaseException:
            with contextlib.suppress(OSError), self._refusals():
                file.discard()
                file.closed = True  # else its end would put it
            raise

    def _upload_to_s3(self, store: Any, key: str, parts: int, part_of: Callable[[int], bytes]) -> None:
        """s3fs has this only for what lies in memory or in a file."""
        with self._refusals():
            bucket, name, _ = store.split_path(key)
            upload = store.call_s3("create_multipart_upload", Bucket=bucket, Key=name)["UploadId"]

        def send(index: int) -> dict[str, Any]:
            content = part_of(index)
            with self._refusals():
                answer = store.call_s3("upload_part", Bucket=bucket, Key=name, UploadId=upload, PartNumber=index + 1, Body=content)
            return {"PartNumber": index + 1, "ETag": answer["ETag"]}

        try:
            sent = thread_map(send, range(parts), THREADS)
            with self._refusals():
                store.call_s3("complete_multipart_upload", Bucket=bucket, Key=name, UploadId=upload, MultipartUpload={"Parts": sent})
        except BaseException:
            with contextlib.suppress(OSError), self._refusals():
                store.abort_mpu(bucket, name, upload)
            raise

    def delete_unfinished(self, older_s: float) -> None:
        """Take away what uploads to this folder that were begun so long ago, and cut off, have left. On S3 alone it can be seen."""
        with self._driver() as (store, key):
            if not hasattr(store, "call_s3"):
                return
            bucket, name, _ = store.split_path(f"{key}/")
            for upload in store.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=name).get("Uploads", ()):
                if time.time() - upload["Initiated"].timestamp() > older_s:
                    store.abort_mpu(bucket, upload["Key"], upload["UploadId"])

    @contextlib.contextmanager
    def _driver(self) -> Iterator[tuple[Any, str]]:
        """fsspec's file system and the key in it. Looked up anew each time: one that was made before a fork cannot be used after it."""
        with self._refusals():
            yield self._open()

    def _open(self) -> tuple[Any, str]:
        protocol = self.url.partition(SCHEME)[0]
        try:
            import fsspec

            options = {} if protocol not in _S3 or "config_kwargs" in fsspec.config.conf.get(protocol, {}) else _OPTIONS
            store, key = fsspec.core.url_to_fs(self.url, use_listings_cache=False, **options)
        except ImportError as error:
            remedy = "pip install 'eagle-eye[s3]'" if protocol in _S3 else str(error)
            raise OSError(errno.ENOPKG, f"the package that reads and writes {protocol}{SCHEME} is missing: {remedy}", self.url) from error
        except ValueError as error:
            raise OSError(errno.EPROTONOSUPPORT, f"{error}: give a path, or a URL such as s3://bucket/prefix", self.url) from error
        return store, key

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """What a driver raises, as the OSError of a disk."""
        try:
            yield
        except OSError as error:
            if error.filename == self.url:
                raise
            number = next((number for kind, number in _ERRNOS.items() if isinstance(error, kind)), error.errno or errno.EREMOTEIO)
            words = _words(error)
            raise OSError(number, os.strerror(number) if words in self.url else words, self.url) from error
        except Exception as error:  # boundary: every driver of fsspec raises errors of its own
            raise OSError(errno.EREMOTEIO, _words(error), self.url) from error


@dataclass(frozen=True, slots=True)
class _ObjectStatus:
    path: ObjectPath
    st_size: int

    @property
    def st_mtime(self) -> float:
        """When it was put, by the store's clock."""
        with self.path._driver() as (store, key):
            return float(store.modified(key).timestamp())


def _words(error: Exception) -> str:
    told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (told.strip() or type(error).__name__).splitlines()[0]
