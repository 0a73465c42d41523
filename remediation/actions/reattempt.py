"""SEV3: let stopped workers go on where they are (SIGCONT, sent by their launchers)."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress
from remediation.job_commands.action_commands import Commander, send_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Reattempt:
    """Continues the workers of each target; costs nothing if it does not help."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = 2.0
    """Seconds to wait for the coordinator\'s answer."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises TemporaryError, PermanentError or Stale."""
        for target in plan.targets:
            arguments = {"workers": list(target.workers)}
            yield from send_command(
                plan, target, "reattempt", arguments, commander=self.commander, clock=self.clock, timeout=self.timeout_s
            )
