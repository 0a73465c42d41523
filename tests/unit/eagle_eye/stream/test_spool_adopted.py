"""What a leader that ended left in its spool goes with the next one; a leader that is only stopped keeps its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.stream.spool_file import SpooledRecord, SpoolFile

DEADLINE_S = 20.0
HOLDER = "import sys, pathlib\nfrom eagle_eye.stream.spool_file import SpoolFile\nfile = SpoolFile(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()\n"


@pytest.fixture
def holder() -> Iterator[Callable[[Path], "subprocess.Popen[bytes]"]]:
    """Another process that holds a spool."""
    held: list[subprocess.Popen[bytes]] = []

    def hold(path: Path) -> "subprocess.Popen[bytes]":
        held.append(subprocess.Popen([sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert held[-1].stdout is not None
        assert held[-1].stdout.readline() == b"held\n"
        return held[-1]

    yield hold
    for process in held:
        process.kill()
        process.communicate()


def left_in(path: Path, *values: bytes) -> None:
    """As by a process that was killed: the file is not removed."""
    file = SpoolFile(path)
    file.append([SpooledRecord("topic", "k", value, 1.0) for value in values])
    os.close(file._descriptor)


def written(directory: Path, name: str, stream: MemoryStream) -> list[bytes]:
    """What the stream has once a writer of that name has begun and ended."""
    writer = SpooledWriter(stream, directory, clock=SystemClock(), name=name, adopts="leader*.spool")
    writer.write("topic", "k", b"own")
    assert writer.flush(DEADLINE_S)
    writer.close()
    return [message.value for message in stream.read("topic", 0, 0)]


def test_what_several_processes_left_goes_once(tmp_path: Path) -> None:
    for name, values in {"leader": (b"1",), "leader-a": (b"2", b"3"), "leader-b": (b"4",), "agent": (b"another's",)}.items():
        left_in(tmp_path / f"{name}.spool", *values)
    log = MemoryLog()
    assert sorted(written(tmp_path, "leader-c", MemoryStream(log))) == [b"1", b"2", b"3", b"4", b"own"]
    assert [path.name for path in tmp_path.iterdir()] == ["agent.spool"]
    assert len(written(tmp_path, "leader-d", MemoryStream(log))) == 6, "the next one has nothing to repeat"


def test_a_process_that_lives_keeps_its_spool_and_stops_nobody(tmp_path: Path, holder: Callable[[Path], "subprocess.Popen[bytes]"]) -> None:
    path = tmp_path / "leader-a.spool"
    left_in(path, b"1")
    process = holder(path)
    log = MemoryLog()
    assert written(tmp_path, "leader-b", MemoryStream(log)) == [b"own"]
    process.kill()
    process.communicate()
    assert written(tmp_path, "leader-c", MemoryStream(log)) == [b"own", b"1", b"own"]


def test_what_is_left_waits_on_where_the_stream_is_away(tmp_path: Path) -> None:
    left_in(tmp_path / "leader-a.spool", b"1")
    log = MemoryLog()
    away = MemoryStream(log)
    away.away = True
    SpooledWriter(away, tmp_path, clock=SystemClock(), name="leader-b", adopts="leader*.spool").close()
    assert [path.name for path in tmp_path.iterdir()] == ["leader-b.spool"]
    assert written(tmp_path, "leader-c", MemoryStream(log)) == [b"1", b"own"]


def test_a_file_that_cannot_be_read_stays_and_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "leader-a.spool").mkdir(parents=True)
    assert written(tmp_path, "leader-b", MemoryStream()) == [b"own"]
