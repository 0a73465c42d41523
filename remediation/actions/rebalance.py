"""SEV3: micro-batches move away from a straggler, between two steps; nothing is restarted."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import RESTART_TIMEOUT_S, Commander, rebalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """`speeds` of each target: worker → its speed, 1 being healthy; none: even shares again."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator's answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError, PermanentError (the job is not elastic) or Stale."""
        for target in plan.targets:
            yield from rebalance(plan, target, commander=self.commander, clock=self.clock, timeout=self.timeout_s)
