"""Nodes that a person lets take part again."""

from dataclasses import dataclass, field

from eagle_eye.errors import ControlError
from eagle_eye.types import Plan, Severity, Target, digest_of

from .desk import Desk
from .execution import Report

EXPIRES_S = 60.0


@dataclass(slots=True)
class Releases:
    """Tells the jobs that leave a released node out, one command at a time and job."""

    desk: Desk
    _waiting: list[tuple[float, Plan]] = field(default_factory=list)
    """(not before, plan)."""

    def ask(self, node: str, person: str) -> list[str]:
        """Written down at once; returns the jobs that will be told. Raises ControlError for a node that nobody leaves out."""
        now = self.desk.clock.now()
        jobs = [job for job in self.desk.jobs.values() if job.layout is not None and node in job.layout.excluded]
        out = {cordon.node for cordon in self.desk.ledger.cordoned()}
        if not jobs and node not in out:
            raise ControlError(f"nobody leaves {node!r} out; out now: {', '.join(sorted(out)) or 'no node'}")
        self.desk.ledger.release(node, person, now)
        for job in jobs:
            target = Target(job=job.name, epoch=0, basis=job.basis, exclude=(node,))
            plan = Plan(
                id=digest_of("release", node, person, job.name, now), incident="", action="release", targets=(target,),
                made=now, expires=now + EXPIRES_S, severity=Severity.INFO, reason=f"{person} released {node}",
            )
            self._waiting.append((now, plan))
            self.desk.keep(plan)
            self.desk.note_plan(plan, "intended")
        return [job.name for job in jobs]

    def advance(self) -> None:
        """Begin what is due for jobs that nothing else is done to."""
        now, later = self.desk.clock.now(), []
        for due, plan in self._waiting:
            job = plan.targets[0].job
            if now >= due and not self.desk.execution.busy(job):
                self.desk.execution.begin(plan)
            else:
                later.append((due, plan))
        self._waiting = later

    def ended(self, report: Report) -> None:
        """Done, or tried again until it expires."""
        now, plan = self.desk.clock.now(), report.plan
        if report.ending == "retry" and now + report.delay < plan.expires:
            self._waiting.append((now + report.delay, plan))
            return
        self.desk.note_plan(plan, "done" if report.ending == "done" else "failed", report.detail, report.progress)
