"""Threads that end together: one that fails stops the others and is remembered."""

import asyncio
import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)

JOIN_S = 5.0
"""How long each may take to end."""


class Threads:
    """The threads of one service. Their work looks at `stop` now and then."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.failed: BaseException | None = None
        """The first error that ended one of them."""
        self._threads: list[threading.Thread] = []

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Run `work` until it returns."""

        def guarded() -> None:
            try:
                work()
            except Exception as error:  # boundary: a thread that dies in silence would leave a process that does nothing
                log.exception("the %s failed", name)
                self.fail(error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads = [*(known for known in self._threads if known.is_alive()), thread]
        thread.start()
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
