"""A checkpoint that storage refused: tried again, given up for a newer one, waited for at the end."""

import errno
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eagle_eye.training.save_retry import SaveRetry
from eagle_eye.training.storage_failure import StorageFailure

PATIENCE_S = 20.0
HOME = Path("/kept")


@dataclass(frozen=True)
class Unsaved:
    """A checkpoint of a step."""

    step: int
    home: Path = HOME
    needed_bytes: int = 5


@dataclass
class Disk:
    """Refuses as often as it is told to; lets a test wait for what it does."""

    refusals: int
    tried: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    told: list[tuple[int, str, int]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def write(self, checkpoint: Unsaved) -> Path:
        with self.changed:
            self.tried.append(checkpoint.step)
            self.changed.notify_all()
            if len(self.tried) <= self.refusals:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.written.append(checkpoint.step)
        return checkpoint.home / str(checkpoint.step)

    def report(self, checkpoint: Unsaved, failure: StorageFailure, attempt: int, _retry_s: float) -> None:
        self.told.append((checkpoint.step, failure.errno, attempt))

    def wait_for(self, attempts: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.tried) >= attempts, PATIENCE_S), self.tried


RetryOn = Callable[..., SaveRetry[Unsaved]]


@pytest.fixture
def retry_on() -> Iterator[RetryOn]:
    made = []

    def retry_on(disk: Disk, *, first_s: float = 0.001, end_s: float = PATIENCE_S) -> SaveRetry[Unsaved]:
        made.append(SaveRetry(disk.write, disk.report, first_s=first_s, end_s=end_s))
        return made[-1]

    yield retry_on
    for retry in made:
        with retry.turn():
            """What still waits gives way, and its thread ends."""


def save(retry: SaveRetry[Unsaved], step: int) -> Path | None:
    with retry.turn():
        return retry.save(Unsaved(step))


def test_a_refused_one_is_written_as_soon_as_there_is_room(retry_on: RetryOn) -> None:
    disk = Disk(refusals=4)
    assert save(retry_on(disk), 10) is None
    disk.wait_for(5)
    assert disk.written == [10]
    assert disk.told == [(10, "ENOSPC", 1)], "a failure that goes on is told once in a while"


def test_where_no_thread_may_be_started_a_refusal_is_still_no_error_of_the_training(retry_on: RetryOn, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    disk = Disk(refusals=3)
    retry = retry_on(disk)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        assert save(retry, 10) is None
    assert save(retry, 20) is None
    disk.wait_for(4)
    assert disk.written == [20], "in the background again, as soon as that is possible"


def test_the_attempts_become_rarer_and_a_success_ends_that(retry_on: RetryOn) -> None:
    disk = Disk(refusals=3)
    retry = retry_on(disk, first_s=60.0)
    delays = []
    for step in (10, 20, 30):
        save(retry, step)
        delays.append(retry.delay_s)
    assert delays == [60.0, 60.0, 60.0], "never above the longest"
    assert save(retry, 40) == HOME / "40"
    retry.finish()
    assert disk.tried == [10, 20, 30, 40], "a newer one takes the place of one that waits"
    slow = retry_on(Disk(refusals=3), first_s=1.0, end_s=0.0)
    seen = []
    for step in (10, 20, 30):
        save(slow, step)
        seen.append(slow.delay_s)
    assert seen == [1.0, 2.0, 4.0]


def test_a_process_that_ends_tries_at_once_and_waits(retry_on: RetryOn) -> None:
    disk = Disk(refusals=1)
    retry = retry_on(disk, first_s=60.0)
    save(retry, 10)
    retry.finish()
    assert disk.written == [10]


def test_a_process_that_ends_does_not_wait_for_ever(retry_on: RetryOn) -> None:
    disk = Disk(refusals=10**6)
    retry = retry_on(disk, end_s=0.05)
    save(retry, 10)
    retry.finish()
    assert disk.written == []


def test_twin_a_save_that_is_slow_is_not_tried_twice() -> None:
    disk = Disk(refusals=0)
    entered, go_on = threading.Event(), threading.Event()

    def slow(checkpoint: Unsaved) -> Path:
        entered.set()
        go_on.wait(PATIENCE_S)
        return disk.write(checkpoint)

    retry = SaveRetry(slow, disk.report, first_s=0.001)
    saving = threading.Thread(target=save, args=(retry, 10))
    saving.start()
    entered.wait(PATIENCE_S)
    go_on.set()
    saving.join(PATIENCE_S)
    retry.finish()
    assert (disk.tried, disk.told) == ([10], [])


def test_training_does_not_wait_for_an_attempt_on_storage_that_does_not_answer() -> None:
    disk = Disk(refusals=1)
    hangs, answers = threading.Event(), threading.Event()

    def write(checkpoint: Unsaved) -> Path:
        if disk.tried:
            hangs.set()
            answers.wait(PATIENCE_S)
        return disk.write(checkpoint)

    retry = SaveRetry(write, disk.report, first_s=0.001)
    assert save(retry, 10) is None
    assert hangs.wait(PATIENCE_S)
    with retry.turn(0.001) as free:
        assert not free
    retry.leave_out(HOME, 20)
    assert disk.told[1:] == [(20, "", 0)]
    answers.set()
    with retry.turn(PATIENCE_S) as free:
        assert free, "it answers again"
        assert retry.save(Unsaved(30)) == HOME / "30"
