"""Ends elastic workers that are no part of the job any more: those that do not end as they were asked to, and those that were left out
and do not come back. A worker that was left out only for its silence may be at work: it is proved to hang before it is ended."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path

import msgspec

from eagle_eye.activity.hang_verdict import Activity, ActivityKind
from eagle_eye.clock import Clock
from eagle_eye.config import StallConfig
from eagle_eye.writable_text import words_of

from .death_watch import process_stat
from .stall_detector import WorkerSample, patience
from .worker_dump import dump_workers
from .worker_process import Worker

log = logging.getLogger(__name__)

POLL_S = 0.05

ActivityOf = Callable[[str], Activity | None]
"""Worker → what its process was last seen to do."""


class WorkerExpiry:
    """One at most for each worker, until it is called off."""

    def __init__(self, stall: StallConfig, clock: Clock, logs: Path, activity_of: ActivityOf, end: Callable[[Worker], None]) -> None:
        """`logs`: where the stacks of those that are ended are kept."""
        self._stall = stall
        self._clock = clock
        self._logs = logs
        self._activity_of = activity_of
        self._end = end
        self._waiting: dict[str, asyncio.Task[None]] = {}

    def after_leave(self, worker: Worker) -> None:
        """It was asked to end."""
        if worker.name not in self._waiting:
            self._begin(worker, self._after(worker, self._stall.leave_s, "end"))

    def after_exclusion(self, worker: Worker, *, proved: bool) -> None:
        """It was left out, and may enter again. `proved`: that it hangs, or its end was ordered."""
        self.call_off(worker.name)
        self._begin(worker, self._after(worker, self._stall.return_s, "come back", proved=proved))

    def call_off(self, name: str) -> None:
        """It has entered again, or ended."""
        waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.cancel()

    async def close(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        await asyncio.gather(*self._waiting.values(), return_exceptions=True)

    def _begin(self, worker: Worker, waiting: Coroutine[None, None, None]) -> None:
        self._waiting[worker.name] = asyncio.create_task(waiting)

    async def _after(self, worker: Worker, seconds: float, does_not: str, *, proved: bool = True) -> None:
        began = self._clock.monotonic()
        await asyncio.sleep(seconds)
        while not proved:
            await asyncio.sleep(POLL_S)
            proved = self._clock.monotonic() - began > max(seconds, patience(self._seen(worker), self._stall))
        log.warning("worker %s does not %s: %s, and it is killed", worker.name, does_not, await self._keep_stack(worker))
        self._waiting.pop(worker.name, None)
        self._end(worker)

    async def _keep_stack(self, worker: Worker) -> str:
        """Where it is, or why it is not: a full disk, logs that were tidied up or a process that cannot be started must not leave the slot empty for good."""
        file = self._logs / f"{worker.place.local_rank}-excluded-{worker.epoch}.json"
        try:
            dump = await dump_workers([worker])
            await asyncio.to_thread(file.write_bytes, msgspec.json.encode(dump))
        except Exception as error:  # noqa: BLE001 -- whatever stands in the way of the evidence
            return f"its stack cannot be kept in {file} ({words_of(error)})"
        return f"its stack is in {file}"

    def _seen(self, worker: Worker) -> WorkerSample:
        """It was told that it is left out and has not moved since: if it still waits for its peers, it does so for ever."""
        activity = self._activity_of(worker.name)
        deaf = activity is not None and activity.kind is ActivityKind.AWAITS_PEERS
        return WorkerSample(worker=worker.name, marks=0, phase="", stopped=is_stopped(worker), deaf=deaf, activity=activity)


def is_stopped(worker: Worker) -> bool:
    """By a signal: state T. In the state t somebody looks into it."""
    seen = process_stat(worker.pid)
    return seen is not None and seen.state == "T"
