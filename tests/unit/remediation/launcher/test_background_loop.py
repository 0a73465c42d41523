"""What nobody foresaw in a loop beside the workers ends a round of it, never the job."""

import asyncio

import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.errors import LaunchError
from remediation.launcher import background_loop
from remediation.launcher.background_loop import BackgroundLoop


class Loop:
    """Raises what it is given, one after the other; then it runs for ever."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.said: list[tuple[str, str]] = []
        self.runs = asyncio.Event()

    async def begin(self) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.runs.set()
        await asyncio.Event().wait()

    def tell(self, name: str, why: str) -> None:
        self.said.append((name, why))
        if why == "OSError: the stream is full":
            raise RuntimeError("this cannot be told")


async def until_it_runs(loop: Loop, recovered: bool = False) -> list[tuple[str, str]]:
    task = asyncio.create_task(BackgroundLoop("the watch", loop.begin, loop.tell, FakeClock()).run())
    running = asyncio.create_task(loop.runs.wait())
    await asyncio.wait((task, running), return_when=asyncio.FIRST_COMPLETED)
    while recovered and not task.done() and loop.said[-1][1]:
        await asyncio.sleep(0.001)
    running.cancel()
    if not task.done():
        task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
    return loop.said


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_loop, "FIRST_PAUSE_S", 0.0)


def test_a_loop_that_raises_begins_again_and_the_same_reason_is_told_once() -> None:
    async def run() -> list[tuple[str, str]]:
        return await until_it_runs(Loop(KeyError("present"), KeyError("present"), ValueError("epoch")))

    assert asyncio.run(run()) == [("the watch", "KeyError: 'present'"), ("the watch", "ValueError: epoch")]


def test_a_loop_that_works_again_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_loop, "SOUND_S", 0.01)

    async def run() -> list[tuple[str, str]]:
        return await until_it_runs(Loop(KeyError("present")), recovered=True)

    assert asyncio.run(run())[-1] == ("the watch", "")


def test_what_cannot_be_told_ends_no_loop() -> None:
    async def run() -> list[tuple[str, str]]:
        return await until_it_runs(Loop(OSError("the stream is full")))

    assert len(asyncio.run(run())) == 1


def test_twin_a_loop_that_says_that_the_job_cannot_go_on_here_ends_the_launcher() -> None:
    async def run() -> list[tuple[str, str]]:
        return await until_it_runs(Loop(LaunchError("n1 could not be reached for 600 s")))

    with pytest.raises(LaunchError):
        asyncio.run(run())
