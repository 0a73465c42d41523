"""Release a node: the job may use it again, as an operator has decided."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import RESTART_TIMEOUT_S, Commander, done, intended


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseNode:
    """`exclude` of each target names the nodes; the coordinator takes them back when there is room."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = RESTART_TIMEOUT_S
    """Seconds to wait for the coordinator\'s answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError or PermanentError; epoch 0 of a target means whatever epoch the job is in."""
        for target in plan.targets:
            for node in target.exclude:
                step = f"release {node} {target.job}"
                yield intended(step, plan.reason, self.clock)
                self.commander.command(
                    target.job, "release", {"node": node}, plan=plan, step=step, epoch=target.epoch, timeout=self.timeout_s
                )
                yield done(step, plan.reason, self.clock)
