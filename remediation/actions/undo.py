"""Roll back an action that did not help: an evicted node takes part again, workers and shares are as they were."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import (
    RESIZE_TIMEOUT_S,
    RESTART_TIMEOUT_S,
    Commander,
    CordonLedger,
    done,
    intended,
    rebalance,
    resize,
)

WHO = "eagle-eye"
"""Who releases the node, in the place of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undo:
    """`undoes` names the plan that evicted the nodes in `exclude` (one that another plan evicted stays cordoned), or that
    changed `workers_per_node`, or shares."""

    commander: Commander
    ledger: CordonLedger
    clock: Clock
    timeout_s: Seconds = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator's answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError or PermanentError; epoch 0 of a target means whatever epoch the job is in."""
        for target in plan.targets:
            if target.workers_per_node:
                yield from resize(plan, target, commander=self.commander, clock=self.clock, timeout=RESIZE_TIMEOUT_S)
            elif not target.exclude:
                yield from rebalance(plan, target, commander=self.commander, clock=self.clock, timeout=self.timeout_s)
            for node in target.exclude:
                step = f"lift the cordon of {node}"
                yield intended(step, plan.reason, self.clock)
                mine = any(cordon.node == node and cordon.plan == plan.undoes for cordon in self.ledger.cordoned())
                if mine:
                    self.ledger.release(node, WHO, self.clock.now())
                yield done(step, "lifted" if mine else "not lifted: another plan's cordon, or none", self.clock)
                step = f"release {node} {target.job}"
                yield intended(step, plan.reason, self.clock)
                self.commander.command(
                    target.job, "release", {"node": node}, plan=plan, step=step, epoch=target.epoch, timeout=self.timeout_s
                )
                yield done(step, f"{node} takes part again", self.clock)
