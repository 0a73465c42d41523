"""What the launcher tells of the newest checkpoints that are safe: seldom, and at once where something begins or ends to keep them from being newer.

`look` is called with what the thread that watches the copies has just read, and reads nothing itself but what it tells.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from eagle_eye.checkpoint_safety import TIER_NAMES, TIERS, SafeStep, safety_attributes

from .copy_states import Copies, Place

PERIOD_S = 10.0
"""Between two that tell of steps alone ..."""
AT_ONCE_S = 1.0
"""... between two of which the second tells what has begun, or is over, or of the first step that is on another node ..."""
NODES_PER_S = 100.0
"""... and so long that a large job does not tell more often than that in all."""
STEPS_KEPT = 64


class Whereabouts(NamedTuple):
    """Who keeps the copies of this node; '': nobody does."""

    kept_by: str
    epoch: int
    shared: str
    """What both nodes share that may fail, in words."""
    nodes: int
    """Of the job."""
    agreed: int = -1
    """The newest step that all nodes have on a second one; -1: there is none."""


NOWHERE = Whereabouts("", 0, "", 1)


class SafetyReport:
    """Of one launcher. Under the lock of the cache."""

    def __init__(self, wall: Callable[[], float], *, stores: bool) -> None:
        """`wall`: the time of day. `stores`: copies go to storage."""
        self._wall, self._stores = wall, stores
        self._taken: dict[int, float] = {}
        """Step → when all workers of this node had it whole in memory."""
        self._stored = SafeStep()
        self._refused: dict[str, tuple[int, str]] = {}
        """File of a worker whose memory was refused → sequence of its newest copy then, and why."""
        self._not_stored: tuple[int, str] | None = None
        """Newest step in storage when a worker's save was refused there, and why."""
        self._told: dict[str, str] = {}
        self._news_at = self._due_at = float("-inf")

    def memory_refused(self, file: str, sequence: int, why: str) -> None:
        """Until a newer copy of that worker is whole."""
        self._refused[file] = sequence, why

    def storage_refused(self, why: str) -> None:
        """A save of a worker's own; until one succeeds."""
        self._not_stored = self._stored.step, why

    def look(
        self, copies: Copies, usable: Callable[[Place], bool], where: Whereabouts, stored_step: int, failures: Mapping[str, str], now: float
    ) -> dict[str, str] | None:  # fmt: skip
        """Attributes of the event that is due; None: none is. `usable`: whether a whole copy may be loaded; `failures`: tier → what keeps it from being newer."""
        newest = _newest(copies)
        steps = {copy_step for copy_step, _ in newest.values()}
        if len(steps) == 1:
            self._note(steps.pop())
        if stored_step > self._stored.step:
            self._stored = SafeStep(step=stored_step, time=self._taken.get(stored_step) or self._wall())
        elif stored_step < self._stored.step:  # the training went back: what is there above that step is put aside
            self._take_back(stored_step)
        known = self._failures(newest, failures)
        is_first = where.agreed >= 0 and self._told.get("backup_step") == "-1"
        is_news = is_first or self._is_overstated() or any(known.get(tier, "") != self._told.get(f"{tier}_failure", "") for tier in TIERS)
        if now < (self._news_at if is_news else self._due_at):
            return None
        attributes = safety_attributes(self._tiers(copies, usable, where, known), where.kept_by, where.shared)
        if attributes == self._told or not (self._told or any(known.values()) or self._has_any(newest)):
            return None
        self._told = attributes
        self._news_at, self._due_at = now + AT_ONCE_S, now + max(PERIOD_S, where.nodes / NODES_PER_S)
        return attributes

    def _take_back(self, stored_step: int) -> None:
        """So much of what was stored counts still, and what is taken from here on is of another history."""
        self._stored = SafeStep(step=stored_step, time=self._taken.get(stored_step, 0.0))
        self._taken = {step: at for step, at in self._taken.items() if step <= stored_step}
        if self._not_stored is not None:
            self._not_stored = stored_step, self._not_stored[1]

    def _is_overstated(self) -> bool:
        """What was told last says more of storage than is known now."""
        return self._stored.step < int(self._told.get("storage_step", -1))

    def _has_any(self, newest: Mapping[str, tuple[int, int]]) -> bool:
        """A job whose script saves nothing has nothing to tell."""
        return self._stored.step >= 0 or any(step >= 0 for step, _ in newest.values())

    def _note(self, step: int) -> None:
        if step >= 0 and step not in self._taken:
            self._taken[step] = self._wall()
            if len(self._taken) > STEPS_KEPT:
                del self._taken[next(iter(self._taken))]

    def _failures(self, newest: Mapping[str, tuple[int, int]], failures: Mapping[str, str]) -> dict[str, str]:
        self._refused = {file: refused for file, refused in self._refused.items() if newest.get(file, (-1, -1))[1] <= refused[0]}
        if self._not_stored is not None and self._stored.step > self._not_stored[0]:
            self._not_stored = None
        known = dict(failures)
        if self._refused:
            known["memory"] = next(iter(self._refused.values()))[1]
        if self._not_stored is not None and not known.get("storage"):
            known["storage"] = self._not_stored[1]
        return known

    def _tiers(self, copies: Copies, usable: Callable[[Place], bool], where: Whereabouts, known: Mapping[str, str]) -> dict[str, SafeStep]:
        whole: dict[str, tuple[int, int]] = {place.file: (-1, -1) for place in copies}
        for place, copy in copies.items():
            if copy.sequence > whole[place.file][1] and usable(place):
                whole[place.file] = copy.step, copy.sequence
        steps = {"memory": min((step for step, _ in whole.values()), default=-1)}
        if where.kept_by:
            steps["backup"] = where.agreed
        found = {tier: SafeStep(step=step, time=self._taken.get(step, 0.0), failure=known.get(tier, "")) for tier, step in steps.items()}
        if self._stores or self._stored.step >= 0 or known.get("storage"):
            found["storage"] = SafeStep(step=self._stored.step, time=self._stored.time, failure=known.get("storage", ""))
        return found


def _newest(copies: Copies) -> dict[str, tuple[int, int]]:
    """File → (step, sequence) of its newest whole copy; -1: it has none."""
    found: dict[str, tuple[int, int]] = {place.file: (-1, -1) for place in copies}
    for place, copy in copies.items():
        if copy.sequence > found[place.file][1]:
            found[place.file] = copy.step, copy.sequence
    return found


def safety_text(attributes: Mapping[str, str]) -> str:
    """Of the event.

    >>> safety_text({"memory_step": "12", "backup_step": "-1", "backup_failure": "n1 has not asked for the copies for 30 s"})
    'the newest safe checkpoint: step 12 in memory, none on another node (n1 has not asked for the copies for 30 s)'
    """
    return "the newest safe checkpoint: " + ", ".join(_tier_text(tier, attributes) for tier in TIER_NAMES if f"{tier}_step" in attributes)


def _tier_text(tier: str, attributes: Mapping[str, str]) -> str:
    step, failure = int(attributes[f"{tier}_step"]), attributes.get(f"{tier}_failure", "")
    return f"{f'step {step}' if step >= 0 else 'none'} {TIER_NAMES[tier]}" + (f" ({failure})" if failure else "")
