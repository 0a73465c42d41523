"""SEV1: workers change jobs. The job that gives does so first; if the other cannot take, the first gets back what it gave.

Coordinators answer a step of a plan once, and repeat that answer: a plan that began to give back is never run again, since
its donors would answer that they have given. What could not be given back is undone by a plan of its own (the engine's).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError, PermanentError, Stale, TemporaryError
from eagle_eye.ranges import Seconds
from eagle_eye.types import Plan, Progress, Target
from remediation.job_commands.action_commands import GIVE_BACK, RESIZE_TIMEOUT_S, Commander, done, intended, resize


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """`workers_per_node` of each target: node → workers that the job is to have there. The targets are in order: donors before recipients."""

    commander: Commander
    clock: Clock
    timeout_s: Seconds = RESIZE_TIMEOUT_S
    """Seconds to wait for a coordinator's answer: a worker that comes has to start."""

    def run(self, plan: Plan, /) -> Iterator[Progress]:
        """Raises PermanentError or Stale; TemporaryError only as long as no job has given a worker."""
        changed: list[Target] = []
        for target in plan.targets:
            try:
                yield from resize(plan, target, commander=self.commander, clock=self.clock, timeout=self.timeout_s)
            except (EagleEyeError, TimeoutError) as error:
                if not changed:
                    raise
                why = str(error) or type(error).__name__
                yield Progress(step=f"resize {target.job}", state="failed", time=self.clock.now(), detail=why)
                unknown = [target] if isinstance(error, TimeoutError | TemporaryError) else []  # it may have been done all the same
                yield from self._back(plan, [*changed, *unknown], f"{target.job}: {why}")
                if isinstance(error, Stale):
                    raise
                raise PermanentError(f"{target.job} could not be resized ({why}); what others gave was given back") from error
            changed.append(target)

    def _back(self, plan: Plan, changed: list[Target], why: str) -> Iterator[Progress]:
        """The last one first, in whatever epoch the job is by now. Raises PermanentError at the first one that cannot: a donor
        that took its workers back while the recipient still had them would have the node run more than it has room for."""
        for target in reversed(changed):
            step = f"{GIVE_BACK} {target.job}"
            yield intended(step, why, self.clock)
            try:
                self.commander.command(
                    target.job, "resize", {"workers": target.workers_per_node_before}, plan=plan, step=step, epoch=0, timeout=self.timeout_s
                )
            except (EagleEyeError, TimeoutError) as error:
                raise PermanentError(f"{why}; and {target.job} could not be given back what it had ({error}): that is undone later") from error
            yield done(step, f"{target.job} has what it had before", self.clock)
