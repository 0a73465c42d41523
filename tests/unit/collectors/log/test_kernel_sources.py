"""/dev/kmsg, the journal and files as sources of kernel messages."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.log import kernel_sources
from collectors.log.kernel_sources import JOURNAL_S, FileSource, JournalSource, KmsgSource, SourcePosition
from eagle_eye.clock import FakeClock

BOOTED = 1000.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now=BOOTED + 50.0)


@pytest.fixture
def device() -> Iterator[tuple[socket.socket, socket.socket]]:
    """As /dev/kmsg, each read gives one record, and EAGAIN where there is none."""
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader.setblocking(False)
    with reader, writer:
        yield reader, writer


def kmsg(clock: FakeClock, reader: socket.socket, position: SourcePosition = SourcePosition()) -> KmsgSource:  # noqa: B008 -- frozen
    return KmsgSource(clock, position, lambda: os.dup(reader.fileno()))


def test_records_of_the_device_have_the_time_at_which_they_were_written(clock: FakeClock, device: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = device
    source = kmsg(clock, reader)
    assert source.read() == []
    writer.send(b"4,12,1500000,-;NVRM: one\n SUBSYSTEM=pci\n")
    writer.send(b"11,13,2500000,-;by a program\n")
    started = clock.now() - clock.monotonic()
    assert [(line.time - started, line.text, line.written_by) for line in source.read()] == [(1.5, "NVRM: one", ""), (2.5, "by a program", "a program")]
    source.close()


def test_what_was_overwritten_before_it_was_read_is_counted(clock: FakeClock, device: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = device
    source = kmsg(clock, reader)
    for record in (b"4,12,1,-;a", b"not a record", b"4,20,2,-;b"):
        writer.send(record)
    assert [line.text for line in source.read()] == ["a", "b"]
    assert source.lost == 7
    source.close()


def test_the_next_agent_of_the_same_boot_takes_up_what_came_meanwhile(
    clock: FakeClock, device: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = device
    source = kmsg(clock, reader)
    writer.send(b"4,12,1,-;read")
    source.read()
    stopped = source.position
    source.close()
    for record in (b"4,12,1,-;read", b"4,13,2,-;missed"):  # the device gives all that it has
        writer.send(record)
    later = kmsg(clock, reader, stopped)
    assert ([line.text for line in later.read()], later.lost) == (["missed"], 0)
    later.close()
    writer.send(b"4,2,1,-;of another boot")
    monkeypatch.setattr(kernel_sources, "_boot_id", lambda: "another")
    other = kmsg(clock, reader, stopped)
    assert [line.text for line in other.read()] == ["of another boot"]
    other.close()


JOURNALCTL = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
if (here / "fails").exists():
    sys.exit("Failed to seek to cursor")
entries = [json.loads(line) for line in (here / "journal").read_text().splitlines()]
assert sys.argv[-1] == "_TRANSPORT=kernel", sys.argv
for word in sys.argv:
    if word.startswith("--after-cursor="):
        entries = [entry for entry in entries if entry["__CURSOR"] > word.partition("=")[2]]
    if word == "--lines=1":
        entries = entries[-1:]
print("\\n".join(json.dumps(entry) for entry in entries))
"""


class Journal:
    """A journalctl that reads a file, at the border of the real one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.command = (str(folder / "journalctl"),)
        (folder / "journalctl").write_text(JOURNALCTL.format(python=sys.executable))
        (folder / "journalctl").chmod(0o755)
        (folder / "journal").write_text("")

    def add(self, cursor: str, message: object) -> None:
        entry = {"__CURSOR": cursor, "__REALTIME_TIMESTAMP": "1500000", "MESSAGE": message}
        with (self.folder / "journal").open("a") as file:
            file.write(json.dumps(entry) + "\n")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path)


def test_the_journal_is_read_from_the_start_of_the_agent_on_and_taken_up_by_the_next(journal: Journal, clock: FakeClock) -> None:
    journal.add("a", "before")
    source = JournalSource(clock, SourcePosition(), journal.command)
    assert source.read() == []
    clock.advance(JOURNAL_S)
    journal.add("b", "NVRM: one")
    journal.add("c", [78, 86, 255])
    assert [(line.time, line.text) for line in source.read()] == [(1.5, "NVRM: one"), (1.5, "NV\ufffd")]
    journal.add("d", "later")
    assert [line.text for line in JournalSource(clock, source.position, journal.command).read()] == ["later"]


def test_a_journal_that_was_empty_loses_no_first_message(journal: Journal, clock: FakeClock) -> None:
    source = JournalSource(clock, SourcePosition(), journal.command)
    journal.add("a", "first")
    assert [line.text for line in source.read()] == ["first"]


def test_a_cursor_that_was_deleted_is_told_once_and_then_read_anew(journal: Journal, clock: FakeClock) -> None:
    journal.add("a", "before")
    source = JournalSource(clock, SourcePosition(), journal.command)
    (journal.folder / "fails").touch()
    with pytest.raises(OSError, match="Failed to seek to cursor"):
        source.read()
    (journal.folder / "fails").unlink()
    assert source.read() == [], "journalctl is a process: it is not asked all the time"
    clock.advance(JOURNAL_S)
    assert [line.text for line in source.read()] == ["before"]


def test_without_journalctl_the_source_says_so(clock: FakeClock) -> None:
    with pytest.raises(FileNotFoundError):
        JournalSource(clock, SourcePosition(), ("no-such-journalctl",))


def test_a_file_is_followed_and_its_lines_lose_their_prefix(clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    source = FileSource(path, clock, SourcePosition())
    assert source.read() == []
    with path.open("a") as file:
        file.write("[   2.5] NVRM: one\nno time\n")
        file.write("Nov 14 22:13:10 n1 watch[9]: NVRM: two\n")
    assert [(line.text, line.written_by) for line in source.read()] == [("NVRM: one", ""), ("no time", ""), ("n1 watch[9]: NVRM: two", "watch")]
    assert FileSource(path, clock, source.position).read() == []


def test_a_message_of_the_driver_in_several_lines_is_one_and_a_call_trace_is_not(clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.touch()
    source = FileSource(path, clock, SourcePosition())
    assert source.read() == []
    with path.open("a") as file:
        file.write("[ 18.3] NVRM: The NVIDIA GPU 0000:b3:00.0\n        NVRM: (PCI ID: 10de:26b5) installed in this system has\n        NVRM: fallen off the bus\n[ 19.1] x\n  <TASK>\n")
    assert [line.text for line in source.read()] == ["NVRM: The NVIDIA GPU 0000:b3:00.0 NVRM: (PCI ID: 10de:26b5) installed in this system has NVRM: fallen off the bus", "x", "  <TASK>"]
