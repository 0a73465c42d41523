"""A worker's standard streams: what the log's storage refuses is lost and told, and every other error is the script's."""

import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.training.worker_output import LogFile


@pytest.fixture
def descriptor() -> Iterator[int]:
    full = os.open("/dev/full", os.O_WRONLY)
    yield full
    os.close(full)


def point(descriptor: int, path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, descriptor)
    os.close(file)


def test_what_is_lost_is_told_once_the_log_takes_something_again(descriptor: int, tmp_path: Path) -> None:
    stream = io.TextIOWrapper(io.BufferedWriter(LogFile(descriptor)), encoding="utf-8", line_buffering=True)
    print("größer", file=stream)
    print("x" * 100_000, file=stream)
    point(descriptor, tmp_path / "log")
    print("said", file=stream)
    print("more", file=stream)
    lost = len("größer\n".encode()) + 100_001
    assert (tmp_path / "log").read_text() == f"\neagle-eye: {lost} bytes that this worker said here are lost: No space left on device\nsaid\nmore\n"
    point(descriptor, Path("/dev/full"))
    print("again", file=stream)
    point(descriptor, tmp_path / "second")
    print("said", file=stream)
    assert (tmp_path / "second").read_text().startswith("\neagle-eye: 6 bytes")


def test_what_the_script_itself_has_put_there_fails_as_it_would_without_us(descriptor: int) -> None:
    reader, writer = os.pipe()
    os.dup2(writer, descriptor)
    os.close(writer)
    os.close(reader)
    with pytest.raises(BrokenPipeError):
        LogFile(descriptor).write(b"to a reader that is gone")
