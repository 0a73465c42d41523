"""Any script that torchrun would start and that is no elastic worker: it restarts, with another world size."""

from dataclasses import dataclass
from typing import ClassVar

from eagle_eye.clock import Clock
from eagle_eye.types import Outcome, Transition
from remediation.job_commands.action_commands import RESTART_TIMEOUT_S, Commander

from .coordinator_driver import TransitionMode, carry_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """All workers end and begin again at the newest whole checkpoint, in a world of the target's nodes.

    A node takes part with all its workers or with none. The script finds its RANK and WORLD_SIZE as torchrun would give
    them, and has to share out its batch by them itself: what was computed of the step in flight is lost.
    """

    commander: Commander
    clock: Clock
    timeout_s: float = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator's answer."""
    mode: ClassVar[TransitionMode] = TransitionMode.RESTART

    def apply(self, transition: Transition, /) -> Outcome:
        """Raises TemporaryError if the coordinator cannot be reached now."""
        target = transition.target
        left_out = {*target.excluded, *target.launchers} - set(target.nodes)
        arguments = {
            "exclude": sorted(left_out), "release": list(target.nodes), "resume_step": target.resume_step,
            "skip": list(target.skipped), "reason": "command", "own": False,
        }  # fmt: skip
        return carry_out(transition, [("restart", arguments)], commander=self.commander, clock=self.clock, timeout=self.timeout_s)
