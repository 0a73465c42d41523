"""What a collector does for each worker, job or file of many: what one of them raises costs that one alone.

A job file, a ring and a log are what some user of the node has written: whatever is wrong with one of them must not end the looking after all others.
"""

import errno
import logging
from collections.abc import Iterator, Set
from contextlib import contextmanager

from eagle_eye.types import Event, Kind
from eagle_eye.writable_text import words_of

from .unsigned_event import unsigned_event

log = logging.getLogger(__name__)

TOLD_MOST = 1000
"""Things that are remembered, so that each is told once."""
MOST_NAMED = 3
"""Of those that stand, in one event: the newest."""
STEADY_S = 10.0
"""What was told is over once it has not failed for so long: a storage that comes and goes is told once, and not at each look."""
REMEDIES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "let the user that the agent runs as read it (root, with CAP_DAC_READ_SEARCH); what a job names has to be of the user of that job"),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENODEV), "look at the storage that it is on: the kernel's log and `df` of its folder"),
    **dict.fromkeys((errno.EINVAL, errno.EISDIR), "name a regular file: no pipe, device or folder can be read beside who else reads it"),
    errno.EMFILE: "let the agent open more files: LimitNOFILE of its unit",
}
"""Of a file that cannot be read, by the kernel's error."""


class FailureBoundary:
    """Around each of many: what fails is counted, told once for each thing, and left out of this round."""

    def __init__(self, collector: str) -> None:
        self.failed = 0
        """How often something was left out."""
        self._collector = collector
        self._told: dict[str, str] = {}
        """Thing → what was told of it."""
        self._news: list[str] = []
        self._well_since: dict[str, float] = {}
        """Of what was told and does not fail now: monotonic time."""
        self._stood = False
        """Something stood when `events` was asked last."""

    @contextmanager
    def around(self, thing: str) -> Iterator[None]:
        """`thing`: what it is and whose, as the report names it: `worker r1/n1/0 of team/gpt/r1`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # a user's file must not end the looking after those of others
            self.failed += 1
            self._well_since.pop(thing, None)
            if thing not in self._told:
                self._tell(thing, words_of(error), error)

    def unreadable(self, thing: str, error: OSError | ValueError) -> None:
        """A file that cannot be read: nothing is wrong with us, so that no traceback is logged. `thing` names the file."""
        self.failed += 1
        self._well_since.pop(thing, None)
        if thing not in self._told:
            self._tell(thing, unreadable_words(error))

    def readable(self, thing: str, monotonic: float) -> None:
        """It was read now: what was told of it is over, if that stays so."""
        if thing in self._told and monotonic - self._well_since.setdefault(thing, monotonic) >= STEADY_S:
            del self._told[thing], self._well_since[thing]

    @property
    def standing(self) -> bool:
        """Something has failed that is still there."""
        return bool(self._told)

    @property
    def problems(self) -> tuple[str, ...]:
        """What was told and stands, the newest last."""
        return tuple(self._told.values())

    @property
    def reasons(self) -> dict[str, str]:
        """Thing → what was told of it and stands."""
        return dict(self._told)

    def keep(self, things: Set[str]) -> None:
        """Forget all others: they are gone."""
        for thing in self._told.keys() - things:
            del self._told[thing]
            self._well_since.pop(thing, None)

    def news(self) -> list[str]:
        """What has failed for the first time since the call before."""
        news, self._news = self._news, []
        return news

    def events(self, node: str, wall: float, over: str) -> Iterator[Event]:
        """`collector.failing` of the node with what stands, when something new failed; `collector.recovered` when nothing stands any more, for the reason `over`."""
        if self.news() and self._told:
            *earlier, last = self.problems
            named = [last, *reversed(earlier)][:MOST_NAMED]
            rest = len(self._told) - len(named)
            yield self._health("collector.failing", node, wall, "; ".join([*named, *([f"and {rest} more, which the agent's log names"] if rest else [])]))
        before, self._stood = self._stood, self.standing
        if before and not self._stood:
            yield self._health("collector.recovered", node, wall, over)

    def _health(self, name: str, node: str, wall: float, reason: str) -> Event:
        return unsigned_event(name, Kind.NODE, node, wall, reason, collector=self._collector, reason=reason)

    def _tell(self, thing: str, why: str, error: Exception | None = None) -> None:
        if len(self._told) >= TOLD_MOST:
            self._told.clear()
            self._well_since.clear()
        self._told[thing] = reason = f"{thing} is left out by the collector {self._collector}, the others are not: {why}"
        log.warning("%s", reason, exc_info=error)
        self._news.append(reason)


def unreadable_words(error: OSError | ValueError) -> str:
    """The reason, the kernel's name of it, and what mends it.

    >>> unreadable_words(OSError(errno.EINVAL, "it is no regular file", "/x"))
    'it is no regular file (EINVAL); name a regular file: no pipe, device or folder can be read beside who else reads it'
    """
    if not isinstance(error, OSError) or error.errno is None:
        return words_of(error)
    code, remedy = errno.errorcode.get(error.errno, str(error.errno)), REMEDIES.get(error.errno, "")
    return f"{error.strerror or error} ({code}){f'; {remedy}' if remedy else ''}"
