"""SEV1: workers change jobs. The job that gives does so first; if the other cannot take, the first gets back what it gave."""

from collections.abc import Iterator
from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError, PermanentError, Stale
from eagle_eye.types import Plan, Progress, Target
from remediation.job_commands.action_commands import RESIZE_TIMEOUT_S, Commander, done, intended, resize


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """`workers_per_node` of each target: node → workers that the job is to have there. The targets are in order: donors before recipients."""

    commander: Commander
    clock: Clock
    timeout_s: float = RESIZE_TIMEOUT_S
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
                yield from self._back(plan, changed, f"{target.job}: {why}")
                if isinstance(error, Stale):
                    raise
                raise PermanentError(f"{target.job} could not be resized ({why}); what others gave was given back") from error
            changed.append(target)

    def _back(self, plan: Plan, changed: list[Target], why: str) -> Iterator[Progress]:
        """The last one first. In whatever epoch the job is by now."""
        for target in reversed(changed):
            step = f"give back {target.job}"
            yield intended(step, why, self.clock)
            self.commander.command(
                target.job, "resize", {"workers": target.workers_per_node_before}, plan=plan, step=step, epoch=0, timeout=self.timeout_s
            )
            yield done(step, f"{target.job} has what it had before", self.clock)
