"""SEV2: restart the processes. The workers of a job that is not elastic all restart, under a new epoch."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import RESTART_TIMEOUT_S, Commander, restart


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartWorker:
    """From the newest whole checkpoint, on the same nodes."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator\'s answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError, PermanentError (the job's own budget is spent) or Stale."""
        yield from restart(plan, commander=self.commander, clock=self.clock, timeout=self.timeout_s)
