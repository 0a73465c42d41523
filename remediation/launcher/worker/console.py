"""Prints what rank 0 writes, each line with its worker's name in front."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from .worker_process import Worker

POLL_S = 0.25
CHUNK = 1 << 16


class Console:
    """Follows the log of the worker of this node that is rank 0."""

    def __init__(self, workers: Callable[[], tuple[Worker, ...]], out: TextIO) -> None:
        self._workers = workers
        self._out = out
        self._at: dict[Path, int] = {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(POLL_S)

    def look(self) -> None:
        """Print the whole lines that have come since."""
        for worker in self._workers():
            if worker.place.rank == 0:
                self._follow(worker)
            elif worker.log in self._at or worker.elastic:  # of a worker that becomes rank 0 later, the earlier lines are not printed
                self._pass_over(worker)

    def _pass_over(self, worker: Worker) -> None:
        with contextlib.suppress(OSError):
            self._at[worker.log] = worker.log.stat().st_size

    def _follow(self, worker: Worker) -> None:
        at = self._at.setdefault(worker.log, worker.log_from)
        try:
            with worker.log.open("rb") as file:
                file.seek(at)
                text = file.read(CHUNK)
        except OSError:
            return
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) == CHUNK else 0)
        self._at[worker.log] = at + end
        prefix = f"[{worker.place.node}/{worker.place.local_rank}] "
        for line in text[:end].decode(errors="replace").splitlines():
            self._out.write(f"{prefix}{line}\n")
        if end:
            self._out.flush()
