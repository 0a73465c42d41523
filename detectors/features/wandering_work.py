"""Work that goes from one worker to the next, as of an expert that is chosen more often for a while: whom it comes to computes longer, and then keeps up again. That is nobody's machine."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

MANY, WITHIN = 3, 300
"""So many other workers, one after the other, of late: the work wanders, and whom it comes to next is not accused."""
LASTING = 3
"""Times as long as the work stayed with any other: who stays slow for longer is not slow for that work."""


class _Episode(NamedTuple):
    """A worker was slow, and kept up again."""

    found: int
    """In this observation."""
    lasted: int
    """Observations from then until it kept up; 0 = not known."""


@dataclass
class WanderingWork:
    """Who was found slow and kept up again, in observations of the caller, which counts them from 0."""

    apart: int
    """Those found within so many observations are one: what slows a node slows all of its workers at once."""
    _passed: dict[str, _Episode] = field(default_factory=dict, init=False, repr=False)
    """Worker → its newest episode."""

    def add(self, worker: str, found: int, lasted: int = 0) -> None:
        """It keeps up again, or is known to be slow for such work."""
        self._passed[worker] = _Episode(found, lasted)

    def drop(self, worker: str) -> None:
        """It is slow once more: its episode is not over."""
        self._passed.pop(worker, None)

    def forget(self) -> None:
        """All of them."""
        self._passed.clear()

    def found(self, worker: str) -> int | None:
        """In which observation it was found last, of those that passed."""
        episode = self._passed.get(worker)
        return episode.found if episode else None

    def why(self, worker: str, now: int) -> str:
        """Why what it computes longer is work that goes from one to the next; '' if nothing shows that."""
        times = self._times(worker, now)
        return f"other workers were slower before it, {times} times of late, and kept up again: it is work that wanders" if times >= MANY else ""

    def outlasts(self, worker: str, since: int, now: int) -> bool:
        """It has been slow for so much longer than any other that it is no such work."""
        longest = max((episode.lasted for episode in self._others(worker, now)), default=0)
        return now - since > LASTING * max(longest, self.apart)

    def _times(self, worker: str, now: int) -> int:
        """Episodes of others of which none began before the one before it was over."""
        times, over = 0, -1
        for found, lasted in sorted(self._others(worker, now)):
            if found > over:
                times, over = times + 1, found + max(lasted - 1, self.apart)
            elif not lasted:
                over = found + self.apart
        return times

    def _others(self, worker: str, now: int) -> Iterator[_Episode]:
        return (episode for name, episode in self._passed.items() if name != worker and now - episode.found <= WITHIN)
