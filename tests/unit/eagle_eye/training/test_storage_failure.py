"""What an exception tells of storage that refused a file."""

import errno
import os
from pathlib import Path

import pytest
import torch

from eagle_eye.training.storage_failure import StorageFailure, failure_raised, free_bytes
from fakes.full_disk import file_size_limit


def failure_of(error: BaseException) -> StorageFailure | None:
    return failure_raised(error, error.__traceback__)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.ESTALE, errno.EIO])
def test_an_errno_of_storage_is_named_with_path_and_room(tmp_path: Path, code: int) -> None:
    path = tmp_path / "made" / "later" / "x.pt"
    found = failure_of(OSError(code, os.strerror(code), str(path)))
    assert found is not None
    assert (found.path, found.errno, found.reason) == (str(path), errno.errorcode[code], os.strerror(code))
    assert found.free_bytes > 0


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("write(): fd 3 failed with No space left on device"),
        ValueError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_libraries_that_keep_only_the_words_are_understood(error: Exception) -> None:
    found = failure_of(error)
    assert found is not None
    assert (found.errno, found.path, found.free_bytes) == ("ENOSPC", "", -1)


def test_what_it_was_raised_from_counts() -> None:
    error = RuntimeError("cannot save")
    error.__cause__ = OSError(errno.EDQUOT, "Disk quota exceeded", "/home/a/x")
    found = failure_of(error)
    assert found is not None
    assert (found.errno, found.path) == ("EDQUOT", "/home/a/x")


def test_torch_save_without_room_is_named_with_its_path(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    with file_size_limit(4096), pytest.raises(RuntimeError) as raised:
        torch.save({"a": torch.zeros(100_000)}, path)
    found = failure_of(raised.value)
    assert found is not None
    assert found.path == str(path)
    assert found.free_bytes > 0


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No such file or directory", "data.bin"), ConnectionResetError(104, "reset"), ValueError("5"), None])
def test_twin_other_errors_are_no_matter_of_storage(error: Exception | None) -> None:
    assert failure_raised(error, None) is None


def test_free_bytes_of_a_folder_that_is_not_there_yet_are_those_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0
