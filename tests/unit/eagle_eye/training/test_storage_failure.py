"""What an exception tells of storage that refused a file."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle_eye.error_statuses import classify
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


OF_A_PATH = [
    errno.ENOTCONN, errno.ESHUTDOWN, errno.ECONNABORTED, errno.ECONNRESET, errno.ECONNREFUSED, errno.ETIMEDOUT, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOLINK, errno.EKEYEXPIRED,
]  # fmt: skip


@pytest.mark.parametrize("code", [errno.EREMOTEIO, errno.EUCLEAN, errno.EBADMSG, errno.ENOMEDIUM])
def test_damage_on_a_disk_is_storage_also_where_a_write_to_an_open_file_tells_of_it(code: int) -> None:
    error = OSError(code, os.strerror(code))
    found = failure_of(error)
    assert found is not None
    assert (found.path, found.errno) == ("", errno.errorcode[code])
    assert classify(f"OSError: {error}").name == "storage error"


def test_twin_a_bad_message_of_the_script_is_no_storage() -> None:
    assert failure_of(ValueError("Bad message: no header")) is None
    assert classify("ValueError: Bad message: no header").name != "storage error"


@pytest.mark.parametrize("code", OF_A_PATH)
@pytest.mark.parametrize("path", ["/mnt/fuse/x.pt", b"/mnt/fuse/x.pt"])
def test_an_errno_of_a_server_or_a_fuse_process_that_is_gone_is_storage_where_it_names_a_file(code: int, path: str | bytes) -> None:
    error = OSError(code, os.strerror(code), path)
    found = failure_of(error)
    assert found is not None
    assert (found.path, found.errno) == ("/mnt/fuse/x.pt", errno.errorcode[code])
    assert classify(f"{type(error).__name__}: {error}").name == "storage error", "also by its words in a log"


@pytest.mark.parametrize("code", OF_A_PATH)
def test_twin_the_same_errno_without_a_file_is_a_sockets(code: int) -> None:
    words = os.strerror(code)
    for error in (OSError(code, words), OSError(code, f"Connect call failed ('10.0.0.1', {code})"), OSError(code, words, "https://data/x"), OSError(code, words, 3)):
        assert failure_of(error) is None
        assert classify(f"{type(error).__name__}: {error}").name != "storage error"


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT, errno.ENXIO, errno.ENOTDIR])
def test_twin_a_path_that_the_script_may_not_or_cannot_open_is_its_own_mistake(code: int) -> None:
    assert failure_of(OSError(code, os.strerror(code), "/ckpt/x.pt")) is None


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


def raised_by(act: Callable[[], object]) -> BaseException:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        act()
    return raised.value


def save() -> None:
    raise OSError(errno.ENOSPC, "Kein Platz mehr", "/ckpt/x.pt")


def save_wrapped() -> None:
    try:
        save()
    except OSError as error:
        raise RuntimeError("could not save") from error


def save_wrapped_twice() -> None:
    try:
        save_wrapped()
    except RuntimeError:
        raise ValueError("the callback failed")  # noqa: B904


def save_and_say_why() -> None:
    try:
        save()
    except OSError as full:
        try:
            raise KeyError("of the fallback")
        except KeyError:
            raise RuntimeError("could not save") from full


def save_in_groups() -> None:
    raise ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("5"), ExceptionGroup("of the writers", [OSError(errno.ENOSPC, "voll", "/ckpt/x.pt")])])


@pytest.mark.parametrize("act", [save, save_wrapped, save_wrapped_twice, save_and_say_why, save_in_groups])
def test_a_full_disk_is_found_below_other_exceptions_and_in_any_language(act: Callable[[], object]) -> None:
    found = failure_of(raised_by(act))
    assert found is not None
    assert (found.errno, found.path, found.reason) == ("ENOSPC", "/ckpt/x.pt", "No space left on device")


def survive_and_fail_later() -> None:
    with contextlib.suppress(OSError):
        save()
    raise ValueError("negative length")


def survive_and_say_that_it_was_not_it() -> None:
    try:
        save()
    except OSError:
        raise ValueError("negative length") from None


def fail_of_another_cause() -> None:
    try:
        save()
    except OSError:
        raise ValueError("negative length") from FileNotFoundError(errno.ENOENT, "No such file or directory", "data.bin")


def read_wrong_path() -> None:
    try:
        Path("/nowhere/data.bin").read_bytes()
    except OSError as error:
        raise RuntimeError("could not read") from error


@pytest.mark.parametrize("act", [survive_and_fail_later, survive_and_say_that_it_was_not_it, fail_of_another_cause, read_wrong_path])
def test_twin_a_full_disk_that_was_survived_and_a_wrong_path_are_no_matter_of_storage(act: Callable[[], object]) -> None:
    assert failure_of(raised_by(act)) is None


def test_an_exception_that_cannot_be_printed_hides_nothing() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise ValueError

    odd = Odd()
    odd.__cause__ = OSError(errno.EDQUOT, "quota", "/home/a/x")
    found = failure_of(odd)
    assert found is not None
    assert found.errno == "EDQUOT"


def test_exceptions_that_are_raised_from_one_another_in_a_circle_are_read_once() -> None:
    one, other = ValueError("1"), ValueError("2")
    one.__cause__, other.__cause__ = other, one
    assert failure_of(one) is None


def save_with_torch(path: Path) -> None:
    with file_size_limit(4096):
        torch.save({"a": torch.zeros(100_000)}, path)


def save_with_torch_wrapped(path: Path) -> None:
    try:
        save_with_torch(path)
    except RuntimeError as error:
        raise ValueError("could not save") from error


@pytest.mark.parametrize("act", [save_with_torch, save_with_torch_wrapped])
def test_torch_save_without_room_is_named_with_its_path(act: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    found = failure_of(raised_by(lambda: act(path)))
    assert found is not None
    assert found.path == str(path)
    assert found.free_bytes > 0


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "No such file or directory", "data.bin"), ConnectionResetError(104, "reset"), ValueError("5"), None])
def test_twin_other_errors_are_no_matter_of_storage(error: Exception | None) -> None:
    assert failure_raised(error, None) is None


def test_free_bytes_of_a_folder_that_is_not_there_yet_are_those_of_its_parent(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "a" / "b") > 0
