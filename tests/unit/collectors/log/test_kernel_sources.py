"""/dev/kmsg, the journal and files as sources of kernel messages."""

import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
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


def test_the_next_agent_of_the_same_boot_takes_up_what_came_meanwhile(clock: FakeClock, device: tuple[socket.socket, socket.socket]) -> None:
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


def drain(device: int) -> None:
    """Take a device to its end."""
    with suppress(BlockingIOError):
        while os.read(device, 8192):
            pass


@pytest.fixture
def seekable(device: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch) -> tuple[socket.socket, socket.socket]:
    """Behind an opened one all records that are left can be read, or passed over."""
    monkeypatch.setattr(kernel_sources, "_seek_end", drain)
    monkeypatch.setattr(kernel_sources, "_boot_id", lambda: "this boot")
    return device


def test_after_a_reboot_all_of_the_new_boot_is_read_and_what_was_overwritten_is_counted(clock: FakeClock, seekable: tuple[socket.socket, socket.socket]) -> None:
    reader, writer = seekable
    for record in (b"4,2,1,-;early", b"4,3,2,-;before the agent"):
        writer.send(record)
    source = kmsg(clock, reader, SourcePosition(boot="the boot before", sequence=500))
    assert ([line.text for line in source.read()], source.lost) == (["early", "before the agent"], 2)
    assert source.position == SourcePosition(boot="this boot", sequence=3)
    source.close()


@pytest.mark.parametrize("position", [SourcePosition(), SourcePosition(boot="this boot")])
def test_twin_without_a_place_in_a_boot_what_is_older_than_the_agent_is_not_told(
    clock: FakeClock, seekable: tuple[socket.socket, socket.socket], position: SourcePosition
) -> None:
    reader, writer = seekable
    writer.send(b"4,2,1,-;old")
    source = kmsg(clock, reader, position)
    writer.send(b"4,9,2,-;new")
    assert ([line.text for line in source.read()], source.lost) == (["new"], 0)
    source.close()


JOURNALCTL = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
if (here / "fails").exists() and any(word.startswith("--after-cursor=") for word in sys.argv):
    sys.exit("Failed to seek to cursor")
entries = [json.loads(line) for line in (here / "journal").read_text().splitlines()]
assert sys.argv[-1] == "_TRANSPORT=kernel", sys.argv
for word in sys.argv:
    if word.startswith("--after-cursor="):
        entries = [entry for entry in entries if entry["__CURSOR"] > word.partition("=")[2]]
    if word.startswith("--since=@"):
        entries = [entry for entry in entries if int(entry["__REALTIME_TIMESTAMP"]) >= float(word[9:]) * 1e6]
for word in sys.argv:
    if word.startswith("--lines="):  # behind a cursor the first, else the newest
        most = int(word[8:])
        entries = entries[:most] if any(each.startswith("--after-cursor=") for each in sys.argv) else entries[-most:]
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

    def add(self, cursor: str, message: object, time: float = 1.5) -> None:
        entry = {"__CURSOR": cursor, "__REALTIME_TIMESTAMP": str(round(1e6 * time)), "MESSAGE": message}
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


def test_a_cursor_that_fails_is_told_and_is_still_the_place_where_it_stopped(journal: Journal, clock: FakeClock) -> None:
    journal.add("a", "before")
    source = JournalSource(clock, SourcePosition(), journal.command)
    journal.add("b", "behind it")
    (journal.folder / "fails").touch()
    with pytest.raises(OSError, match="Failed to seek to cursor"):
        source.read()
    (journal.folder / "fails").unlink()
    assert source.read() == [], "journalctl is a process: it is not asked all the time"
    clock.advance(JOURNAL_S)
    assert [line.text for line in source.read()] == ["behind it"]


def test_a_position_without_a_cursor_begins_behind_its_time(journal: Journal, clock: FakeClock) -> None:
    for cursor, time in (("a", 1.5), ("b", 2.5), ("c", 2.500001)):
        journal.add(cursor, cursor, time)
    source = JournalSource(clock, SourcePosition(time=2.5), journal.command)
    assert [line.text for line in source.read()] == ["c"]
    assert source.position == SourcePosition(cursor="c", time=2.500001)


def test_a_backlog_is_taken_in_parts_of_which_none_is_lost(journal: Journal, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_sources, "MOST_RECORDS", 2)
    journal.add("a", "before")
    source = JournalSource(clock, SourcePosition(), journal.command)
    for word in "bcdef":
        journal.add(word, word)
    taken = []
    for _ in range(3):
        clock.advance(JOURNAL_S)
        taken.append([line.text for line in source.read()])
    assert taken == [["b", "c"], ["d", "e"], ["f"]]


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
