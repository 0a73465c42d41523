"""A file is followed over rotation and restarts."""

import os
from pathlib import Path

import msgspec
import pytest

from collectors.log import file_tailer
from collectors.log.file_tailer import FilePosition, FileTailer, as_ascii


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kern.log"
    path.write_bytes(b"old\n")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_the_first_start_begins_at_the_end_and_gives_whole_lines(log: Path) -> None:
    tailer = FileTailer(log)
    assert tailer.read() == b""
    append(log, b"one\ntw")
    assert tailer.read() == b"one\n"
    append(log, b"o\n")
    assert tailer.read() == b"two\n"


def test_a_file_that_appears_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    tailer = FileTailer(tmp_path / "late.log")
    assert tailer.read() == b""
    append(tmp_path / "late.log", b"first\n")
    assert tailer.read() == b"first\n"


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    tailer = FileTailer(log)
    tailer.read()
    append(log, b"one\nunfinished")
    log.rename(log.with_name("kern.log.1"))
    append(log, b"two\n")
    assert [tailer.read() for _ in range(4)] == [b"one\n", b"unfinished\n", b"two\n", b""]


def test_a_truncated_file_begins_anew(log: Path) -> None:
    tailer = FileTailer(log)
    append(log, b"a longer line\n")
    tailer.read()
    append(log, b"more\n")
    tailer.read()
    log.write_bytes(b"new\n")
    assert tailer.read() == b"new\n"


def test_the_next_one_goes_on_where_it_stopped(log: Path) -> None:
    first = FileTailer(log)
    first.read()
    append(log, b"one\nha")
    assert first.read() == b"one\n"
    append(log, b"lf\n")
    assert FileTailer(log, first.position).read() == b"half\n"


def test_the_next_one_finds_the_file_under_the_name_that_rotation_gave_it(log: Path) -> None:
    first = FileTailer(log)
    first.read()
    append(log, b"one\n")
    log.rename(log.with_name("kern.log.1"))
    append(log, b"two\n")
    later = FileTailer(log, first.position)
    assert [later.read(), later.read()] == [b"one\n", b"two\n"]


def test_a_file_that_was_replaced_meanwhile_is_read_from_its_beginning(log: Path) -> None:
    append(log.with_name("keeper"), b"")  # takes the next inode
    later = FileTailer(log, FilePosition(inode=1, offset=99))
    assert later.read() == b"old\n"


def test_a_backlog_beyond_the_limit_is_passed_over_and_counted(log: Path) -> None:
    tailer = FileTailer(log, most_backlog=1000)
    tailer.read()
    append(log, b"".join(b"line %03d\n" % number for number in range(1000)))
    assert tailer.read().startswith(b"line 945\n")
    assert tailer.skipped_bytes == 945 * 9


def test_a_line_that_never_ends_is_given_out_in_pieces(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_tailer, "LONGEST_LINE", 100)
    tailer = FileTailer(log)
    tailer.read()
    append(log, b"x" * 101)
    assert tailer.read() == b"x" * 101 + b"\n"


def test_a_fifo_is_refused_and_does_not_stop_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="no regular file"):
        FileTailer(tmp_path / "fifo").read()


def test_what_a_progress_bar_has_drawn_over_is_given_out_before_its_line_ends(log: Path) -> None:
    tailer = FileTailer(log)
    tailer.read()
    append(log, b"1 of 9\r2 of 9\r3 o")
    assert tailer.read() == b"1 of 9\r2 of 9\r"
    append(log, b"f 9\r\n")
    assert tailer.read() == b"3 of 9\r\n"


def test_twin_a_line_of_windows_is_not_torn_between_its_two_ends(log: Path) -> None:
    tailer = FileTailer(log)
    tailer.read()
    append(log, b"one\r")
    assert tailer.read() == b""
    append(log, b"\n")
    assert tailer.read() == b"one\r\n"


def test_a_file_that_was_truncated_and_has_grown_beyond_its_old_size_begins_anew(log: Path) -> None:
    tailer = FileTailer(log)
    tailer.read()
    log.write_bytes(b"the cause is in its first line\n")
    assert (tailer.read(), tailer.rewritten) == (b"the cause is in its first line\n", 1)


def test_twin_a_file_that_grows_goes_on(log: Path) -> None:
    tailer = FileTailer(log, from_end=False)
    told = [tailer.read()]
    for data in (b"x" * 100, b"\n", b"1 of 2\r2 o", b"f 2\n" + b"y" * 200 + b"\n"):
        append(log, data)
        told.append(tailer.read())
    assert (b"".join(told), tailer.rewritten) == (log.read_bytes(), 0)


def test_another_file_with_the_number_of_the_old_one_is_read_from_its_beginning(log: Path) -> None:
    first = FileTailer(log, from_end=False)
    first.read()
    log.write_bytes(b"RuntimeError: the cause\n")
    later = FileTailer(log, first.position)
    assert (later.read(), later.rewritten) == (b"RuntimeError: the cause\n", 1)


def test_what_is_left_to_read_is_told(log: Path) -> None:
    tailer = FileTailer(log, from_end=False)
    assert tailer.unread_bytes == 0  # it is not open yet
    size = log.stat().st_size
    tailer.read(1)
    assert tailer.unread_bytes == size - 1
    while tailer.unread_bytes:
        tailer.read()
    append(log, b"more\n")
    assert [tailer.unread_bytes] == [5]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_fault_output_in_utf_16_is_read_as_ascii(encoding: str) -> None:
    assert as_ascii("RuntimeError: CUDA error\r\nä 2\n".encode(encoding)).startswith(b"RuntimeError: CUDA error\r\n")


@pytest.mark.parametrize("piece", [b"", b"plain\n", bytes(999), b"a hole" + bytes(50) + b"\n", b"old\n\0\0\0\0", bytes(range(256)) * 9])
def test_twin_zeros_alone_are_no_utf_16(piece: bytes) -> None:
    assert as_ascii(piece) == piece


def test_twin_a_position_of_an_older_agent_has_no_digest_and_counts(log: Path) -> None:
    saved = msgspec.json.decode(b'{"inode": %d, "offset": 4}' % log.stat().st_ino, type=FilePosition)
    append(log, b"new\n")
    later = FileTailer(log, saved)
    assert (later.read(), later.rewritten) == (b"new\n", 0)


def test_twin_zeros_that_a_network_file_system_shows_for_a_while_are_no_other_file(log: Path) -> None:
    log.write_bytes(b"old\n" + b"\0" * 8)
    tailer = FileTailer(log)
    tailer.read()
    log.write_bytes(b"old\nlate one\nnext\n")
    tailer.read()
    assert tailer.rewritten == 0


def test_twin_a_writer_that_goes_on_where_it_was_in_a_truncated_file_is_followed(log: Path) -> None:
    tailer = FileTailer(log)
    tailer.read()
    with log.open("r+b") as file:
        file.truncate(0)
        file.seek(4)
        file.write(b"next\n")
    assert (tailer.read(), tailer.rewritten) == (b"next\n", 0)
