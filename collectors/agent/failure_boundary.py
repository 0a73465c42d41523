"""What a collector does for each worker, job or file of many: what one of them raises costs that one alone.

A job file, a ring and a log are what some user of the node has written: whatever is wrong with one of them must not end the looking after all others.
"""

import logging
from collections.abc import Iterator, Set
from contextlib import contextmanager

from eagle_eye.writable_text import words_of

log = logging.getLogger(__name__)

TOLD_MOST = 1000
"""Things that are remembered, so that each is told once."""


class FailureBoundary:
    """Around each of many: what fails is counted, told once for each thing, and left out of this round."""

    def __init__(self, collector: str) -> None:
        self.failed = 0
        """How often something was left out."""
        self._collector = collector
        self._told: set[str] = set()
        self._news: list[str] = []

    @contextmanager
    def around(self, thing: str) -> Iterator[None]:
        """`thing`: what it is and whose, as the report names it: `worker r1/n1/0 of team/gpt/r1`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a user's file must not end the looking after those of others
            self.failed += 1
            if thing not in self._told:
                self._tell(thing, error)

    @property
    def standing(self) -> bool:
        """Something has failed that is still there."""
        return bool(self._told)

    def keep(self, things: Set[str]) -> None:
        """Forget all others: they are gone."""
        self._told &= things

    def news(self) -> list[str]:
        """What has failed for the first time since the call before."""
        news, self._news = self._news, []
        return news

    def _tell(self, thing: str, error: Exception) -> None:
        if len(self._told) >= TOLD_MOST:
            self._told.clear()
        self._told.add(thing)
        reason = f"{thing} is left out by the collector {self._collector}, the others are not: {words_of(error)}"
        log.warning("%s", reason, exc_info=error)
        self._news.append(reason)
