"""Whoever reads the log, or does not, keeps nobody who logs waiting."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

import pytest

from eagle_eye.app import log_writer
from eagle_eye.app.log_writer import LogWriter


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with contextlib.suppress(OSError):
            os.close(end)


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("room", logging.INFO, "room.py", 1, text, None, None)


def test_lines_are_written_in_their_order_whatever_they_hold(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = LogWriter(writer)
    for text in ("step 1", "损失", "caf\udce9"):
        handler.emit(record(text))
    handler.close()
    assert os.read(reader, 1000) == "step 1\n损失\n".encode() + b"caf\\udce9\n"


def test_nothing_in_a_line_steers_the_terminal_of_who_reads_it(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    handler = LogWriter(writer)
    handler.emit(record("worker raised \x1b]52;c;cm0gLXJm\x07\x9b2J\rall is well\u202e\n\ttwin: a traceback has lines"))
    handler.close()
    assert os.read(reader, 1000).decode() == "worker raised  ]52;c;cm0gLXJm  2J all is well \n\ttwin: a traceback has lines\n"


def test_who_does_not_read_keeps_nobody_waiting_and_hears_how_much_is_lost(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = pipe
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"y" * 4096)
    os.set_blocking(writer, True)
    monkeypatch.setattr(log_writer, "MOST", 3)
    monkeypatch.setattr(log_writer, "LAST_S", 0.01)
    handler = LogWriter(writer)

    def log_all() -> None:
        for number in range(100):
            handler.emit(record(f"line {number}"))
        handler.flush()

    logging_ = threading.Thread(target=log_all, daemon=True)
    logging_.start()
    logging_.join(30)
    assert not logging_.is_alive()
    read = b""
    while b"nobody took them" not in read:
        read += os.read(reader, 65536)
    assert b"line 0\n" in read
    monkeypatch.setattr(log_writer, "LAST_S", 30.0)
    handler.close()


def test_a_reader_that_is_gone_ends_nothing(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "LAST_S", 30.0)
    reader, writer = pipe
    os.close(reader)
    handler = LogWriter(writer)
    for _ in range(3):
        handler.emit(record("line"))
    handler.flush()
    reader, other = os.pipe()
    os.set_blocking(reader, False)
    os.dup2(other, writer)
    handler.emit(record("one that is read again"))
    handler.close()
    assert os.read(reader, 1000) == b"one that is read again\n"
    os.close(reader)
    os.close(other)
