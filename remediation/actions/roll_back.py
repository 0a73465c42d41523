"""Go back to a good checkpoint, and past the batch that spoils the model if it comes back at the same step."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.errors import PermanentError
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import RESTART_TIMEOUT_S, Commander, restart


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Restarts from the checkpoint at or before each target's `resume_step`; its `skip` is drawn and thrown away."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator\'s answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError, PermanentError or Stale."""
        for target in plan.targets:
            if target.resume_step < 0:
                raise PermanentError(f"plan {plan.id} names no checkpoint of {target.job} to go back to")
        yield from restart(plan, commander=self.commander, clock=self.clock, timeout=self.timeout_s)
