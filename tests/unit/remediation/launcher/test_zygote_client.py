"""The launcher's end of the conversation with its zygote, which is a real one."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

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
