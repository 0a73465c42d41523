"""The launcher's end of the conversation with its zygote, which is a real one."""

import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from eagle_eye.errors import LaunchError
from eagle_eye.open_file_limit import is_shortage
from remediation.launcher.launcher import Launcher
from remediation.launcher.worker.zygote_client import ZygoteLink

PATIENCE_S = 120.0
Exit = tuple[int, int]
"""(pid, status)"""


class Zygote:
    """And what it has told."""

    def __init__(self, folder: Path, on_exit: Callable[[Exit], None]) -> None:
        self.exits: asyncio.Queue[Exit] = asyncio.Queue()
        self.lost = False
        self._folder, self._on_exit = folder, on_exit
        self.link = ZygoteLink(sys.executable, self._exited, self._lost)

    def _exited(self, pid: int, status: int, _ended_s: float | None) -> None:
        self.exits.put_nowait((pid, status))
        self._on_exit((pid, status))

    def _lost(self) -> None:
        self.lost = True

    async def fork(self, *argv: str) -> int:
        return await self.link.fork("0", argv, dict(os.environ), str(self._folder), str(self._folder / "0.log"), python=False)


@asynccontextmanager
async def zygote(folder: Path, on_exit: Callable[[Exit], None] = lambda _: None) -> AsyncIterator[Zygote]:
    made = Zygote(folder, on_exit)
    await made.link.start((), dict(os.environ), str(folder))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await made.link.ready()
            yield made
    finally:
        await made.link.close()


def test_a_worker_that_nobody_waits_for_any_more_is_ended_when_it_is_born(tmp_path: Path) -> None:
    """A launcher that turned to another coordinator while it started workers: nobody knew of them, and they kept their GPUs."""

    async def play() -> None:
        async with zygote(tmp_path) as made:
            unwanted = asyncio.create_task(made.fork("sleep", "600"))
            await asyncio.sleep(0.0)
            await asyncio.sleep(0.0)
            unwanted.cancel()
            await asyncio.gather(unwanted, return_exceptions=True)
            wanted = await made.fork("sleep", "601")
            pid, status = await made.exits.get()
            assert (pid != wanted, status) == (True, signal.SIGKILL)
            made.link.kill(wanted, signal.SIGTERM)
            assert await made.exits.get() == (wanted, signal.SIGTERM), "the answer to the one before was not taken for its own"

    asyncio.run(play())


@pytest.mark.parametrize("error", [ValueError("that is no status"), KeyError("0")], ids=["ValueError", "KeyError"])
def test_an_end_that_cannot_be_dealt_with_costs_no_other_worker(tmp_path: Path, error: Exception) -> None:
    """A ValueError was taken for the loss of the zygote, whose workers the launcher ends; after any other nothing was heard of it any more."""

    def on_exit(told: Exit) -> None:
        if told[1] != 0:
            raise error

    async def play() -> None:
        async with zygote(tmp_path, on_exit) as made:
            first = await made.fork("false")
            assert (await made.exits.get())[0] == first
            second = await made.fork("true")
            assert await made.exits.get() == (second, 0)
            assert not made.lost

    asyncio.run(play())


def no_descriptor(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("refused", ["socket.socketpair", "subprocess.Popen"])
def test_who_waits_for_a_zygote_waits_on_while_nothing_can_be_started(tmp_path: Path, refused: str) -> None:
    """EMFILE of the socket was no LaunchError, so that nobody was told; that of the process ended the launcher."""

    async def play() -> None:
        async with zygote(tmp_path) as made:
            await killed(made)
            waiting = asyncio.create_task(made.fork("true"))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(f"remediation.launcher.worker.zygote_client.{refused}", no_descriptor)
                for _ in range(3):
                    with pytest.raises(LaunchError) as raised:
                        await made.link.restart()
                    assert is_shortage(raised.value)
            assert not waiting.done()
            await made.link.restart()
            assert await made.exits.get() == (await waiting, 0)

    asyncio.run(play())


def test_who_waits_for_a_zygote_that_cannot_be_started_is_told(tmp_path: Path) -> None:
    async def play() -> None:
        async with zygote(tmp_path) as made:
            await killed(made)
            waiting = asyncio.create_task(made.fork("true"))
            await asyncio.sleep(0.0)
            made.link._interpreter = str(tmp_path / "nothing")
            with pytest.raises(LaunchError, match="check the interpreter"):
                await made.link.restart()
            with pytest.raises(LaunchError, match="check the interpreter"):
                await waiting

    asyncio.run(play())


async def killed(made: Zygote) -> None:
    os.kill(made.link.pid, signal.SIGKILL)
    while not made.lost:
        await asyncio.sleep(0.01)


class LauncherOf(Launcher):
    """As far as it starts its zygote again: one that fails so often."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.told, self.ended, self.given_up = list(errors), list[str](), list[int](), list[Exception]()
        self._zygote = self._member = self  # type: ignore[assignment]

    async def restart(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def give_up(self, error: LaunchError) -> None:
        self.given_up.append(error)

    def end(self, code: int, _why: str) -> None:
        self.ended.append(code)

    def _tell_loop(self, _name: str, why: str) -> None:
        self.told.append(why)


def shortage() -> LaunchError:
    error = LaunchError("no socket")
    error.__cause__ = OSError(errno.EMFILE, "Too many open files")
    return error


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long a launcher waited."""
    made: list[float] = []

    async def sleep(seconds: float) -> None:
        made.append(seconds)

    monkeypatch.setattr("remediation.launcher.launcher.asyncio.sleep", sleep)
    return made


def test_a_shortage_is_told_once_and_ends_no_launcher(pauses: list[float]) -> None:
    launcher = LauncherOf(*[shortage() for _ in range(10)], RuntimeError("can't start new thread"))
    asyncio.run(launcher._restart_zygote())
    assert (launcher.ended, launcher.given_up, len(launcher.told), launcher.told[-1]) == ([], [], 2, "")
    assert (pauses[:3], pauses[-1]) == ([0.25, 0.5, 1.0], 30.0)


@pytest.mark.parametrize("error", [LaunchError("check the interpreter"), KeyError("a mistake")], ids=["LaunchError", "KeyError"])
def test_what_is_no_shortage_ends_the_launcher_and_is_told_to_who_waits(error: Exception, pauses: list[float]) -> None:
    launcher = LauncherOf(error)
    asyncio.run(launcher._restart_zygote())
    assert (launcher.ended, len(launcher.given_up), launcher.told, pauses) == ([1], 1, [], [])
