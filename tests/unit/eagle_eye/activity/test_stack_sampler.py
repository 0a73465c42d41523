"""Several looks at several processes: how many at once, and what happens to one that does not end."""

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from eagle_eye.activity import stack_sampler
from eagle_eye.activity.awaited_call import AwaitedCall
from eagle_eye.activity.kernel_state import KernelState
from eagle_eye.activity.stack_sampler import ChildPrograms, StackSample, StackSampler
from eagle_eye.activity.thread_wait import RUNS
from eagle_eye.clock import SystemClock
from fakes.process_looks import TRAIN, look

SAMPLE = StackSample(look(TRAIN), KernelState("S", ""), AwaitedCall(), RUNS)


def test_each_process_is_looked_at_so_often_and_so_many_at_once() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def take(pid: int) -> StackSample:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.001)
        with lock:
            now[0] -= 1
        return SAMPLE

    found = Counter(result.pid for result in StackSampler(SystemClock(), take, 3, 0.0, parallel=2).run(range(5)))
    assert found == dict.fromkeys(range(5), 3)
    assert most[0] <= 2


def test_a_look_that_does_not_end_is_left_behind_and_the_others_go_on() -> None:
    end = threading.Event()

    def take(pid: int) -> StackSample:
        if pid == 1:
            end.wait()
        return SAMPLE

    try:
        results = list(StackSampler(SystemClock(), take, 2, 0.0, parallel=1, limit_s=0.05).run([1, 2]))
    finally:
        end.set()
    assert [result for result in results if result.pid == 1] == [(1, None, True)]
    assert sum(result.sample is SAMPLE for result in results if result.pid == 2) == 2


def test_who_is_gone_is_not_looked_at_again() -> None:
    def take(pid: int) -> StackSample | None:
        if pid == 1:
            raise ProcessLookupError
        return None

    assert sorted(StackSampler(SystemClock(), take, 3, 0.0, parallel=2).run([1, 2])) == [(1, None, False), (2, None, False)]


@pytest.fixture
def programs() -> Iterator[ChildPrograms]:
    found = ChildPrograms()
    yield found
    found.close()


def test_what_a_program_prints_comes_back(programs: ChildPrograms) -> None:
    done = programs.run([sys.executable, "-S", "-c", "import sys; print(1); sys.exit(3)"])
    assert (done.stdout, done.returncode) == (b"1\n", 3)


def test_a_program_that_does_not_end_is_ended(programs: ChildPrograms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_sampler, "PY_SPY_S", 0.05)
    with pytest.raises(subprocess.TimeoutExpired):
        programs.run(["sleep", "600"])


def test_nothing_runs_after_the_end() -> None:
    programs = ChildPrograms()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(programs.run(["sleep", "600"]).returncode))
    thread.start()
    while not programs.running:
        threading.Event().wait(0.001)
    programs.close()
    thread.join()
    assert codes == [-9]
    with pytest.raises(OSError, match="closed"):
        programs.run(["true"])
