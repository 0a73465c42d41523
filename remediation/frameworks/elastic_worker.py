"""The elastic worker (`eagle_eye.elastic`): in place, through the job's coordinator."""

from dataclasses import dataclass
from typing import ClassVar

from eagle_eye.clock import Clock
from eagle_eye.types import Outcome, Transition
from remediation.job_commands.action_commands import CommandArguments, Commander

from .coordinator_driver import TransitionMode, carry_out, workers_by_node


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticWorkers:
    """Workers go and come at the boundary of a step; the others train on meanwhile, and nothing is computed again.

    The coordinator works out the transition anew from what the workers hold when they stop: sizes and shares are what is
    taken from the one given.
    """

    commander: Commander
    clock: Clock
    timeout_s: float = 60.0
    """Seconds to wait for an answer: a new worker is answered for when it trains."""
    mode: ClassVar[TransitionMode] = TransitionMode.IN_PLACE

    def apply(self, transition: Transition, /) -> Outcome:
        """Raises TemporaryError if the coordinator cannot be reached now."""
        commands: list[tuple[str, CommandArguments]] = [("resize", {"workers": workers_by_node(transition)})]
        speeds = speeds_of(transition)
        if speeds:
            commands.append(("rebalance", {"speeds": speeds}))
        return carry_out(transition, commands, commander=self.commander, clock=self.clock, timeout=self.timeout_s)


def speeds_of(transition: Transition) -> dict[str, float]:
    """Worker → speed, the fastest being 1; nothing where the shares are as even as whole micro-batches can be."""
    sizes = [len(share) for share in transition.shares]
    even = -(-sum(sizes) // len(sizes)) if sizes else 0
    if not sizes or max(sizes) <= even:
        return {}
    workers = [place.worker for place in sorted(transition.target.placements, key=lambda place: place.rank)]
    return {worker: size / max(sizes) for worker, size in zip(workers, sizes, strict=True) if size}
