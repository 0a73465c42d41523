"""Threads that end together: the first that fails stops the others, and its error is kept."""

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

JOIN_S = 5.0
"""How long each may take to end, seconds."""


class ThreadGroup:
    """The threads of one role. Their work must check `stop` regularly."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        """The first error that ended one of them."""
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Run `work` until it returns. Raises RuntimeError where the process may have no further thread."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # boundary: without this a thread could die unseen (threads swallow SystemExit), and the process would do nothing
                log.exception("the %s failed", name)
                self.fail(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        self._threads = [*(known for known in self._threads if known.is_alive()), thread]
        return thread

    def fail(self, error: BaseException) -> None:
        """End them all because of this."""
        self.failed = self.failed or error
        self.stop.set()

    async def join(self) -> None:
        """Stop them and wait until they have ended."""
        self.stop.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, JOIN_S)
