"""What goes wrong with one incident, one record or one plugin must not stop the leader: the others go on."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from eagle_eye.clock import Clock
from eagle_eye.errors import CalledOff, LedgerError, LedgerRefused, Stale
from eagle_eye.writable_text import words_of

log = logging.getLogger(__name__)

FIRST_S, LONGEST_S = 1.0, 60.0
"""Seconds before what failed is tried again: doubled each time."""
KEPT = 1000


def ends_term(error: Exception) -> bool:
    """Whether no leader can go on after an error: another one has taken over, or the ledger cannot be read or written."""
    lost_ledger = isinstance(error, LedgerError) and not isinstance(error, LedgerRefused)
    return lost_ledger or (isinstance(error, Stale) and not isinstance(error, CalledOff))


@dataclass(slots=True)
class HandlingFailures:
    """Tries something again later and later as long as it fails. Raises what ends the leader's term, and nothing else."""

    clock: Clock
    _waits: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Name of what failed → (when it is tried again, seconds that it waits then)."""

    def contain(self, name: str, work: Callable[[], object], *, once: bool = False) -> str:
        """Do it, unless it failed a moment ago; what went wrong the first time, '' if nothing did or it was told before.

        `once`: it comes only once, so it is done now in any case.
        """
        until, wait_s = self._waits.get(name, (0.0, 0.0))
        if self.clock.monotonic() < until and not once:
            return ""
        try:
            work()
        except Exception as error:  # boundary: of the leader's one thread, which everything else needs
            if ends_term(error):
                raise
            log.exception("%s failed", name)
            following = min(LONGEST_S, 2 * wait_s) or FIRST_S
            self._waits[name] = self.clock.monotonic() + following, following
            if len(self._waits) > KEPT:
                del self._waits[next(iter(self._waits))]
            return "" if wait_s else words_of(error)
        self._waits.pop(name, None)
        return ""
