"""SEV1: the job goes on without a node, which stays cordoned until an operator releases it."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import RESTART_TIMEOUT_S, Commander, CordonLedger, done, intended, restart


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictNode:
    """Restarts the job on the nodes that are left, then cordons the evicted ones."""

    commander: Commander
    ledger: CordonLedger
    clock: Clock
    timeout_s: Seconds = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator\'s answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError, PermanentError (too few nodes would be left) or Stale."""
        yield from restart(plan, commander=self.commander, clock=self.clock, timeout=self.timeout_s)
        for target in plan.targets:
            for node in target.exclude:
                step = f"cordon {node}"
                yield intended(step, target.job, self.clock)
                self.ledger.cordon(node, target.job, plan.id, self.clock.now(), plan.reason)
                yield done(step, target.job, self.clock)
