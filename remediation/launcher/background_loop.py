"""A loop that a launcher runs beside its workers, for as long as the job lasts: an exception that nobody foresaw ends a round of it, never the job.

Without it the launcher would end, and its workers with it. It is told, and the loop begins again after a pause that grows.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from eagle_eye.clock import Clock
from eagle_eye.errors import LaunchError
from eagle_eye.writable_text import words_of

log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 30.0
"""Doubled each time."""
SOUND_S = 60.0
"""A loop that has run for so long works again."""

TellLoop = Callable[[str, str], None]
"""(name of the loop, what it failed of; '' once it works again)"""


class BackgroundLoop:
    """`begin` runs until cancelled, and may be called again after it has raised."""

    def __init__(self, name: str, begin: Callable[[], Awaitable[None]], tell: TellLoop, clock: Clock) -> None:
        self._name = name
        self._begin = begin
        self._tell = tell
        self._clock = clock
        self._failures = 0
        self._told = ""

    async def run(self) -> None:
        """Until cancelled. Raises LaunchError: a loop that raises it says that the job cannot go on here."""
        while await self._failed():
            await asyncio.sleep(min(FIRST_PAUSE_S * 2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE_S))

    async def _failed(self) -> bool:
        """Run it: True once it has raised."""
        began = self._clock.monotonic()
        recovery = asyncio.get_running_loop().call_later(SOUND_S, self._recovered)
        try:
            await self._begin()
        except LaunchError:
            raise
        except Exception as error:
            log.exception("%s failed; it begins again", self._name)
            self._failures = 1 if self._clock.monotonic() - began >= SOUND_S else self._failures + 1
            why = words_of(error)
            if why != self._told:
                self._told = why
                self._say(why)
            return True
        finally:
            recovery.cancel()
        return False

    def _recovered(self) -> None:
        if self._told:
            self._told = ""
            self._say("")

    def _say(self, why: str) -> None:
        try:
            self._tell(self._name, why)
        except Exception:  # boundary: what cannot be told must not end the loop either
            log.exception("that %s failed cannot be told", self._name)
