"""What several workers of a node read of an object is fetched once; whatever cannot be shared is fetched all the same."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle_eye.training.checkpoint import shared_chunks
from eagle_eye.training.checkpoint.memory_segment import VARIABLE
from eagle_eye.training.checkpoint.shared_chunks import SharedChunks

CONTENT = bytes(range(256)) * 16
Fetch = Callable[[], bytes]


class Store:
    """Counts what is asked of it."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content, self.asked = content, 0
        self.begun, self.go_on = threading.Event(), threading.Event()

    def at_once(self) -> bytes:
        self.asked += 1
        return self.content

    def when_told(self) -> bytes:
        self.asked += 1
        self.begun.set()
        assert self.go_on.wait(30)
        return self.content


def worker(folder: Path, workers: int = 4) -> SharedChunks:
    return SharedChunks(folder, "eagle-eye-0-run-node-", workers)


def read(chunks: SharedChunks, fetch: Fetch, begin: int = 0) -> bytes:
    return chunks.read("s3://bucket/gpt/step", begin, len(CONTENT), fetch)


def test_who_comes_while_another_worker_fetches_waits_for_it_and_the_last_one_leaves_nothing(tmp_path: Path) -> None:
    store = Store()
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(read, worker(tmp_path), store.when_told)
        assert store.begun.wait(30)
        others = [threads.submit(read, worker(tmp_path), store.when_told) for _ in range(3)]
        store.go_on.set()
        assert [each.result() for each in (first, *others)] == [CONTENT] * 4
    assert store.asked == 1
    assert list(tmp_path.iterdir()) == []


def test_each_part_is_a_chunk_of_its_own(tmp_path: Path) -> None:
    store = Store()
    for chunks in (worker(tmp_path), worker(tmp_path)):
        assert [read(chunks, store.at_once, begin) for begin in (0, 4096, 8192)] == [CONTENT] * 3
    assert store.asked == 3
    assert {oct(path.stat().st_mode & 0o777) for path in tmp_path.iterdir()} == {"0o600"}


def test_what_cannot_be_fetched_is_tried_by_each_and_leaves_nothing(tmp_path: Path) -> None:
    def refused() -> bytes:
        raise ConnectionRefusedError("store is away")

    for _ in range(2):
        with pytest.raises(ConnectionRefusedError, match="store is away"):
            read(worker(tmp_path), refused)
        assert list(tmp_path.iterdir()) == []
    short = Store(CONTENT[:-1])
    assert read(worker(tmp_path), short.at_once) == CONTENT[:-1]
    assert list(tmp_path.iterdir()) == []


def test_behind_a_worker_that_stands_still_each_fetches_for_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = Store(), Store()
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(read, worker(tmp_path), store.when_told)
        assert store.begun.wait(30)
        monkeypatch.setattr(shared_chunks, "WAIT_S", 0.0)
        assert read(worker(tmp_path), other.at_once) == CONTENT
        store.go_on.set()
        assert first.result() == CONTENT
    assert (store.asked, other.asked) == (1, 1)


def test_a_chunk_of_a_worker_that_was_killed_while_it_wrote_is_fetched_again(tmp_path: Path) -> None:
    store = Store()
    read(worker(tmp_path), store.at_once)
    [left] = tmp_path.iterdir()
    os.truncate(left, len(CONTENT) - 100)
    assert read(worker(tmp_path), store.at_once) == CONTENT
    assert store.asked == 2
    assert read(worker(tmp_path), store.at_once) == CONTENT
    assert store.asked == 2


@pytest.mark.parametrize("mode", [0o644, 0o620])
def test_a_file_that_others_may_use_is_not_believed(tmp_path: Path, mode: int) -> None:
    read(worker(tmp_path), Store(b"x" * len(CONTENT)).at_once)
    [left] = tmp_path.iterdir()
    left.chmod(mode)
    assert read(worker(tmp_path), Store().at_once) == CONTENT


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    read(worker(tmp_path), Store().at_once)
    [left] = tmp_path.iterdir()
    left.unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"kept")
    left.symlink_to(elsewhere)
    assert read(worker(tmp_path), Store().at_once) == CONTENT
    assert elsewhere.read_bytes() == b"kept"
    left.unlink()
    os.mkfifo(left, 0o600)
    assert read(worker(tmp_path), Store().at_once) == CONTENT


def test_no_more_than_a_bound_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_chunks, "MOST_BYTES", 3 * (len(CONTENT) + 8))
    for number in range(10):
        read(worker(tmp_path), Store().at_once, number * len(CONTENT))
    assert len(list(tmp_path.iterdir())) == 3


def test_where_nothing_can_be_written_each_fetches_for_itself(tmp_path: Path) -> None:
    store = Store()
    for _ in range(2):
        assert read(worker(tmp_path / "gone"), store.at_once) == CONTENT
    assert store.asked == 2


@pytest.mark.parametrize(
    ("memory", "workers", "shares"),
    [
        ("/dev/shm/eagle-eye-0-run-node-abcd-3.memory", "8", True),
        ("/dev/shm/eagle-eye-0-run-node-abcd-3.memory", "1", False),
        ("/dev/shm/eagle-eye-0-run-node-abcd-3.memory", "", False),
        ("/dev/shm/eagle-eye-0-run-node-abcd-3.memory", "many", False),
        ("/dev/shm/other", "8", False),
        ("", "8", False),
    ],
)
def test_workers_that_are_alone_share_nothing(monkeypatch: pytest.MonkeyPatch, memory: str, workers: str, shares: bool) -> None:
    monkeypatch.setattr(shared_chunks, "free_memory", lambda: 1 << 40)
    monkeypatch.setenv(VARIABLE, memory)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", workers)
    assert (SharedChunks.here() is not None) == shares
    monkeypatch.setattr(shared_chunks, "free_memory", lambda: shared_chunks.MOST_BYTES)
    assert SharedChunks.here() is None
