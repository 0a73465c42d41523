"""Paths of objects: what they have in common with pathlib's, and what a store's refusal looks like."""

import errno
import os
import sys
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from eagle_eye.training.object_path import ObjectPath, StoragePath, storage_path
from eagle_eye.training.storage_failure import UNKNOWN, storage_failure

HOME = ObjectPath("memory://gpt/run")


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})


@pytest.mark.parametrize("home", [Path("/data/gpt"), ObjectPath("s3://models/gpt")])
def test_names_are_made_as_pathlib_makes_them(home: StoragePath) -> None:
    assert isinstance(home, StoragePath)
    path = home / "step-1.json"
    assert (path.name, path.suffix, path.parent, os.fspath(path)) == ("step-1.json", ".json", home, f"{os.fspath(home)}/step-1.json")
    assert path.with_name("x.part") == home / "x.part"
    assert path.absolute() == path


def test_a_path_stays_a_path_and_a_file_url_becomes_one() -> None:
    assert storage_path("gpt/s3:/odd") == Path("gpt/s3:/odd")
    assert storage_path("file:///data/gpt") == Path("/data/gpt")
    assert storage_path(HOME) == HOME
    assert storage_path("s3://models/gpt/") == ObjectPath("s3://models/gpt")
    assert ObjectPath("s3://models").parent == ObjectPath("s3://models"), "a bucket is in nothing"


def test_an_object_is_put_found_read_in_part_renamed_and_deleted() -> None:
    assert (HOME.is_dir(), list(HOME.glob("*"))) == (False, [])
    path = HOME / "step-1.json"
    path.put(b"content")
    (HOME / "deeper" / "step-2.json").put(b"")
    assert (HOME.is_dir(), path.exists(), (HOME / "deeper").exists()) == (True, True, False)
    assert (list(HOME.glob("step-*.json")), list(HOME.glob("*.part"))) == ([path], [])
    assert (path.read_bytes(), path.read_range(2, 4), path.stat().st_size, (HOME / "deeper" / "step-2.json").read_bytes()) == (b"content", b"nt", 7, b"")
    aside = path.replace(path.with_name("aside"))
    assert (path.exists(), aside.read_bytes()) == (False, b"content")
    aside.unlink()
    aside.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError, match="memory://gpt/run/aside"):
        aside.unlink()


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(OSError, match=r"pip install 'eagle-eye\[s3\]'") as raised:
        ObjectPath("s3://models/gpt").mkdir()
    assert raised.value.errno == errno.ENOPKG


def test_a_protocol_that_nobody_knows_is_refused() -> None:
    with pytest.raises(OSError, match=r"Protocol not known: nothing.*give a path, or a URL such as s3://"):
        ObjectPath("nothing://gpt").read_bytes()


@pytest.mark.parametrize(
    ("raised", "number", "words"),
    [
        (PermissionError("Access Denied"), errno.EACCES, "Access Denied"), (FileNotFoundError("/gpt/run"), errno.ENOENT, "No such file or directory"),
        (FileNotFoundError("The specified bucket does not exist"), errno.ENOENT, "The specified bucket does not exist"), (TimeoutError(), errno.ETIMEDOUT, "TimeoutError"),
        (OSError(errno.EBUSY, "Please reduce your request rate."), errno.EBUSY, "Please reduce your request rate."), (RuntimeError("Unable to locate credentials"), errno.EREMOTEIO, "Unable to locate credentials"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_whatever_a_driver_raises_is_told_as_what_a_disk_refuses(monkeypatch: pytest.MonkeyPatch, raised: Exception, number: int, words: str) -> None:
    def refused(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refused)
    with pytest.raises(OSError, match=words) as found:
        HOME.put(b"")
    assert (found.value.errno, found.value.filename) == (number, HOME.url)
    failure = storage_failure(found.value, HOME)
    assert (failure.path, failure.errno, failure.reason, failure.free_bytes) == (HOME.url, errno.errorcode[number], words, UNKNOWN), "not the room of this disk"


def test_an_upload_that_is_given_up_is_no_object(monkeypatch: pytest.MonkeyPatch) -> None:
    (HOME / "a").upload(3, lambda index: b"abc"[index : index + 1])
    assert (HOME / "a").read_bytes() == b"abc"

    def part_of(index: int) -> bytes:
        if index:
            raise InterruptedError("the launcher ends")
        return b"a"

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFile.discard", lambda file: file.fs.rm(file.path))  # its own leaves what was written
    with pytest.raises(InterruptedError):
        (HOME / "b").upload(2, part_of)
    assert not (HOME / "b").exists()
