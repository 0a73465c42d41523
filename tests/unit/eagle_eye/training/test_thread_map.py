"""Work in several threads, and where no thread may be started."""

import threading

import pytest

from eagle_eye.training.thread_map import thread_map


def test_threads_work_at_the_same_time_and_results_are_in_order() -> None:
    together = threading.Barrier(3)  # breaks where fewer than three come

    def work(item: int) -> int:
        together.wait(60)
        return item * item

    assert thread_map(work, [3, 1, 2], threads=3) == [9, 1, 4]
    assert thread_map(work, [], threads=3) == []


def test_what_one_raises_is_raised_and_nothing_further_is_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 0"):
        thread_map(work, range(100), threads=1)
    assert begun == [0]


def test_without_another_thread_the_caller_does_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    assert thread_map(str, [1, 2, 3], threads=8) == ["1", "2", "3"]
