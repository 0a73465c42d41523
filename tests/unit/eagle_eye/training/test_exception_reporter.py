"""What is told of an exception before its process dies of it."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.training import exception_reporter, messages
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter

Watched = tuple[Monitor, RingReader]


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    writer = RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0)
    with RingReader.open(tmp_path / "ring") as reader:
        yield Monitor(writer), reader


class Launcher:
    """A unix socket that keeps what it receives."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.heard: list[dict[str, Any]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        connection, _ = self._listener.accept()
        with connection, connection.makefile("rb") as file:
            self.heard += [messages.decode(line) for line in file]

    def wait(self) -> dict[str, Any]:
        self._thread.join(timeout=5)
        self._listener.close()
        return self.heard[0]


def caught(text: str) -> ValueError:
    secret = "".join(["hunt", "er2"])
    try:
        raise ValueError(text[: len(text + secret)])
    except ValueError as error:
        return error


def test_an_exception_is_sent_and_stored_without_locals(watched: Watched, tmp_path: Path) -> None:
    monitor, reader = watched
    launcher = Launcher(tmp_path / "l.sock")
    monitor.begin(12)
    error = caught("shapes do not fit")
    exception_reporter.Reporter(monitor, launcher.path, "run/a/0", 2, lambda: 77.5).report(type(error), error, error.__traceback__)
    heard = launcher.wait()
    assert (heard["kind"], heard["type"], heard["message"]) == ("exception", "ValueError", "shapes do not fit")
    assert (heard["worker"], heard["epoch"], heard["step"], heard["fatal"]) == ("run/a/0", 2, 12, True)
    assert heard["raised_s"] == 77.5, "the launcher compares it with the moment at which it ordered the end"
    assert "in caught" in heard["traceback"]
    assert "hunter2" not in heard["traceback"]
    stored = reader.error()
    assert stored is not None
    assert (stored["type"], stored["step"]) == ("ValueError", 12)


def test_an_exception_is_stored_when_the_launcher_is_gone(watched: Watched, tmp_path: Path) -> None:
    monitor, reader = watched
    error = caught("long " * 20_000)
    exception_reporter.Reporter(monitor, str(tmp_path / "gone"), "w", 0).report(type(error), error, None)
    stored = reader.error()
    assert stored is not None
    assert stored["message"].startswith("long long")


def test_what_was_added_to_an_exception_on_its_way_is_told_with_it() -> None:
    error = caught("negative length")
    error.add_note("in step 40, micro-batch 3")
    error.add_note("of shard 17")
    assert exception_reporter.describe(ValueError, error, None)["notes"] == "in step 40, micro-batch 3\nof shard 17"
    error.__notes__ = 7  # type: ignore[assignment]  # anybody may set it to anything
    assert exception_reporter.describe(ValueError, error, None)["notes"] == ""


def test_an_exception_that_cannot_even_be_printed_is_told() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "RuntimeError" in exception_reporter.describe(Broken, Broken(), None)["message"]
