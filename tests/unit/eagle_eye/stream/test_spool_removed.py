"""The spool's directory is deleted under its writer: it is told, made anew, and nothing that waited is lost."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle_eye.clock import SystemClock
from eagle_eye.errors import StreamError
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.stream.spool_file import SpooledRecord, SpoolFile
from eagle_eye.types import Notice

DEADLINE_S = 20.0


class Spooling:
    """A writer whose records wait on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stream, self.notices = folder / "spool", MemoryStream(), list[Notice]()
        self.stream.away = True
        self.writer = SpooledWriter(self.stream, self.folder, clock=SystemClock(), retry_s=0.002, on_notice=self.notices.append)
        self.written = 0

    def write(self, count: int) -> None:
        """So many more, which have come to the disk when this returns."""
        for _ in range(count):
            self.writer.write("t", "k", b"%d" % self.written)
            self.written += 1
        self.until(lambda: self.writer.status().spooled == self.written)

    def remove(self) -> None:
        """Its folder, all at once: the writer makes it anew as soon as it looks."""
        gone = self.folder.rename(self.folder.with_name("gone"))
        shutil.rmtree(gone)

    def until(self, condition: Callable[[], object]) -> None:
        clock = SystemClock()
        deadline = clock.monotonic() + DEADLINE_S
        while not condition():
            assert clock.monotonic() < deadline, "waited in vain"
            clock.sleep(0.002)

    def told(self) -> list[str]:
        return [notice.message for notice in self.notices if notice.name == "spool.removed"]


@pytest.fixture
def spooling(tmp_path: Path) -> Iterator[Spooling]:
    made = Spooling(tmp_path)
    yield made
    made.writer.close()


def test_fault_a_deleted_spool_is_told_once_and_made_anew_with_what_waits(spooling: Spooling) -> None:
    spooling.write(5)
    spooling.remove()
    spooling.until(spooling.told)
    spooling.write(3)
    (told,) = spooling.told()
    assert str(spooling.folder / "records.spool") in told
    assert "5 records" in told
    spooling.writer.close()
    left = SpoolFile(spooling.folder / "records.spool")
    assert [record.value for record in left.peek(100, 1 << 20)[0]] == [b"%d" % number for number in range(8)], "another process would find them"
    left.close()


def test_what_waited_goes_to_the_stream_in_order_when_that_is_back(spooling: Spooling) -> None:
    spooling.write(4)
    spooling.remove()
    spooling.write(4)
    spooling.stream.away = False
    assert spooling.writer.flush(DEADLINE_S)
    assert [message.value for message in spooling.stream.read("t", 0, 0)] == [b"%d" % number for number in range(8)]


def test_where_it_cannot_be_made_anew_it_is_told_once_and_what_waits_is_kept(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "real")
    spooling = Spooling(tmp_path)
    request.addfinalizer(spooling.writer.close)
    spooling.write(4)
    (tmp_path / "file").touch()
    (tmp_path / "file").replace(spooling.folder)  # at once: nobody can make a folder there
    spooling.write(4)
    spooling.until(lambda: len(spooling.told()) == 1)
    assert "cannot be made anew" in spooling.told()[0]
    spooling.folder.unlink()
    spooling.until(lambda: len(spooling.told()) == 2)
    assert "8 records" in spooling.told()[1]


def test_twin_a_spool_that_is_there_is_left_alone(spooling: Spooling) -> None:
    (spooling.folder / "another.spool").touch()
    spooling.write(3)
    (spooling.folder / "another.spool").unlink()
    spooling.write(3)
    assert spooling.told() == []


def test_one_that_another_process_has_put_there_meanwhile_is_not_taken_from_it(tmp_path: Path) -> None:
    """A file of the same name whose records wait, too: ours go behind them."""
    path = tmp_path / "a.spool"
    ours = SpoolFile(path)
    ours.append([SpooledRecord("t", "k", b"ours", 2.0)])
    path.rename(tmp_path / "moved")
    theirs = SpoolFile(path)
    theirs.append([SpooledRecord("t", "k", b"theirs", 1.0)])
    theirs.close()
    both = ours.renewed()
    assert ([record.value for record in both.peek(9, 1 << 20)[0]], both.count, both.oldest) == ([b"theirs", b"ours"], 2, 1.0)
    both.close()


def test_a_spool_that_cannot_be_made_anew_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.spool"
    ours = SpoolFile(path)
    ours.append([SpooledRecord("t", "k", b"ours", 2.0)])
    shutil.rmtree(path.parent)
    path.parent.touch()
    with pytest.raises((OSError, StreamError)):
        ours.renewed()
    assert [record.value for record in ours.peek(9, 1 << 20)[0]] == [b"ours"]
    ours.close()
