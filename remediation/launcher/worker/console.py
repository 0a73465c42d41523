"""Prints what rank 0 writes, each line with its worker's name in front.

In a thread of its own, and straight to the descriptor: a terminal that is held (Ctrl-S), a pager that waits, a pipe whose reader is gone or a full
disk behind `>` costs lines on the terminal, and must neither stop the launcher nor keep it waiting. The log has all of them.
"""

import contextlib
import errno
import logging
import os
import select
import threading
from collections.abc import Callable
from pathlib import Path

from .worker_process import Worker

log = logging.getLogger(__name__)

POLL_S = 0.25
CHUNK = 1 << 16
LAST_S = 1.0
"""How long the last lines may take to be printed."""


class Console:
    """Follows the log of the worker of this node that is rank 0."""

    def __init__(self, workers: Callable[[], tuple[Worker, ...]], out: int) -> None:
        """`out`: a descriptor."""
        self._workers = workers
        self._out = out
        self._at: dict[Path, int] = {}
        self._over = threading.Event()
        self._told = False
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)

    def start(self) -> None:
        """Print until `close`."""
        self._thread.start()

    def close(self) -> None:
        """Print the last lines; where they are not taken in time, they stay in the log."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(LAST_S)

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            self.look()
        self.look()

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
        prefix = f"[{worker.place.node}/{worker.place.local_rank}] ".encode()
        self._print(b"".join(prefix + line + b"\n" for line in text[:end].splitlines()), worker.log)

    def _print(self, text: bytes, file: Path) -> None:
        try:
            while text:
                with contextlib.suppress(BlockingIOError):  # whoever shares the descriptor has set it so
                    select.select([], [self._out], [])
                    text = text[os.write(self._out, text) :]
            self._told = False
        except OSError as error:
            if not self._told:
                log.warning("what the workers write is not printed here (%s); it is in %s", os.strerror(error.errno or errno.EIO), file)
            self._told = True
