"""Releases: nodes that an operator lets take part again."""

from dataclasses import dataclass

from eagle_eye.clock import Clock
from eagle_eye.errors import ControlError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Plan, Severity, Target, digest_of
from remediation.engine.background_actions import BackgroundActions
from remediation.engine.engine_state import EngineState
from remediation.live.live_planner import LivePlanner

EXPIRES_S = 60.0


@dataclass(slots=True, kw_only=True)
class Releases:
    """Commands the jobs that a released node was evicted from, one command at a time and job. Workers of elastic jobs that
    could not be replaced there can run again: the planner assigns them."""

    state: EngineState
    ledger: Ledger
    clock: Clock
    background: BackgroundActions
    live: LivePlanner

    def ask(self, node: str, person: str) -> list[str]:
        """Recorded at once; returns the jobs that will be commanded. Raises ControlError for a node that is not cordoned."""
        now = self.clock.now()
        jobs = [job for job in self.state.jobs.values() if job.layout is not None and node in job.layout.excluded]
        out = {cordon.node for cordon in self.ledger.cordoned()}
        back = self.live.workers_repaired(node)
        if not jobs and node not in out and not back:
            raise ControlError(f"node {node!r} is not cordoned; cordoned now: {', '.join(sorted(out)) or 'none'}; and no elastic job lacks a worker there")
        self.ledger.release(node, person, now)
        for job in jobs:
            target = Target(job=job.name, epoch=0, basis=job.basis, exclude=(node,))
            plan = Plan(
                id=digest_of("release", node, person, job.name, now), incident="", action="release", targets=(target,),
                made=now, expires=now + EXPIRES_S, severity=Severity.INFO, reason=f"{person} released {node}",
            )  # fmt: skip
            self.background.add(plan)
        return [*(job.name for job in jobs), *(job for job in back if job not in {other.name for other in jobs})]
