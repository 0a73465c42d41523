"""Progress of the members of an epoch: who is at the newest step, who only has to apply it, who needs state.

The step is the highest one that any member has state for. A commit is entered by all or by none, so a member one step
behind holds all reduced segments of its step and applies them; one further behind was not a member, and receives state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from eagle_eye.types import WorkerStateReport

ENTERED = ("committing", "applying")
"""Phases in which every segment is there."""


@dataclass(frozen=True, slots=True)
class MemberProgress:
    """Ranks by what they need."""

    step: int
    working: tuple[int, ...]
    """At the step, with state."""
    applying: tuple[int, ...]
    """One step behind, with all that it takes to be there."""
    lacking: tuple[int, ...]
    """Fresh, or further behind."""
    finish: tuple[int, ...]
    """By segment: the rank that gives it; empty if no member holds a segment."""
    begun: bool
    """A member has begun the step."""

    @property
    def holders(self) -> tuple[int, ...]:
        """Ranks that have the newest state once they have applied, ascending."""
        return tuple(sorted(self.working + self.applying))


def member_progress(holdings: Sequence[WorkerStateReport], segments: int) -> MemberProgress:
    """Progress of the members. holdings: by rank; segments: of a step's gradient."""
    step = max((holding.step for holding in holdings if not holding.fresh), default=max(holding.step for holding in holdings))
    ranks = range(len(holdings))
    working = tuple(rank for rank in ranks if not holdings[rank].fresh and holdings[rank].step == step)
    applying = tuple(rank for rank in ranks if _only_applies(holdings[rank], step, segments))
    return MemberProgress(
        step=step,
        working=working,
        applying=applying,
        lacking=tuple(rank for rank in ranks if rank not in working and rank not in applying),
        finish=_finish({rank: reduced_of(holdings[rank], segments) for rank in working}, segments),
        begun=any(holdings[rank].done or holdings[rank].phase not in ("idle", "starting") for rank in working),
    )


def reduced_of(holding: WorkerStateReport, segments: int) -> frozenset[int]:
    """Segments that it holds reduced."""
    return frozenset(range(segments)) if holding.phase in ENTERED else frozenset(holding.segments)


def layers_of(holding: WorkerStateReport, layers: int) -> frozenset[int]:
    """Layers whose state it holds, of the step that it is at."""
    if holding.layers is not None:
        return frozenset(holding.layers)
    return frozenset() if holding.fresh else frozenset(range(layers))


def _only_applies(holding: WorkerStateReport, step: int, segments: int) -> bool:
    return not holding.fresh and holding.step == step - 1 and len(reduced_of(holding, segments)) == segments


def _finish(reduced: dict[int, frozenset[int]], segments: int) -> tuple[int, ...]:
    """A sender for each segment, evenly; nothing unless all are held."""
    given = dict.fromkeys(reduced, 0)
    chosen: list[int] = []
    for segment in range(segments):
        holders = [rank for rank in reduced if segment in reduced[rank]]
        if not holders:
            return ()
        sender = min(holders, key=lambda rank: (given[rank], rank))
        given[sender] += 1
        chosen.append(sender)
    return tuple(chosen)
