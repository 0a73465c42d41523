"""What detectors, diagnosis and engine write of the sample job: findings, incidents, snapshots, outcomes. What mutations begin from."""

from random import Random
from typing import Any

import msgspec

from eagle_eye.types import (
    SNAPSHOT_EVENTS,
    Culprit,
    Entity,
    Evidence,
    Finding,
    Incident,
    JobSnapshot,
    Kind,
    Outcome,
    Progress,
    Rival,
    SnapshotStep,
)
from remediation.policy.escalation import ESCALATIONS, SEVERITIES

from .sample_job import JOB, NODES, WORKERS, SampleJob

OPEN = 40
"""Incidents and findings that are revised in turn: so many are open at a time."""
_SEVERITIES = sorted(set(SEVERITIES.values()))


class SampleFindings:
    """Valid ones, one after the other."""

    def __init__(self, job: SampleJob) -> None:
        self._job = job
        self._number = 0

    def finding(self, random: Random, now: float) -> Finding:
        """A new one, or a revision."""
        number = self._next()
        entity = Entity(kind=Kind.WORKER, name=random.choice(WORKERS))
        line = Evidence(text="it exited", event="node-a/launcher/3", metric="exit_code", value=1.0, threshold=0.0, status="killed")
        return Finding(
            id=f"finding-{number % OPEN}", revision=number, detector="exits", digest="d", job=JOB, entity=entity, kind="worker.exited", score=0.9, since=now - 1.0,
            time=now, evidence=(line,), active=random.random() < 0.7,
        )  # fmt: skip

    def incident(self, random: Random, now: float) -> Incident:
        """A new one, or a revision."""
        number, finding = self._next(), self.finding(random, now)
        entity = random.choice((finding.entity, Entity(kind=Kind.NODE, name=random.choice(NODES))))
        return Incident(
            id=f"incident-{number // OPEN}-{number % OPEN}", revision=1 + number % 3, job=JOB, cause=random.choice(list(ESCALATIONS)), culprits=(Culprit(entity=entity, confidence=0.9),),
            severity=random.choice(_SEVERITIES), findings=(finding.id,), evidence=finding.evidence, rivals=(Rival(cause="node lost", entity=entity, apart="its batches"),),
            since=now - 1.0, time=now, bill_gpu_hours=0.1, active=random.random() < 0.5, more={"worker.exited": 3}, parts=(finding,),
        )  # fmt: skip

    def snapshot(self, random: Random, now: float, generation: int = 1) -> JobSnapshot:
        """Of a tick, with an event now and then."""
        number = self._next()
        step = SnapshotStep(number=number, epoch=1, end=now, workers=4, tokens=4096.0, loss=2.0, step_s=0.9)
        events = (self._job.event(random.choice(sorted(SNAPSHOT_EVENTS)), now),) if random.random() < 0.4 else ()
        return JobSnapshot(
            job=JOB, generation=generation, number=number, time=now, tick=True, heard=now - 0.5, steps=(step,), events=events,
            layout=self._job.layout(now) if random.random() < 0.3 else None, entities={"worker": 4}, behind_s=0.3, late={"node-b": 4.0},
        )  # fmt: skip

    def outcome(self, random: Random, now: float) -> Outcome:
        """Of a plan."""
        step = Progress(step="restart", state="done", time=now, detail="epoch 2")
        return Outcome(
            plan=f"plan-{self._next()}", incident="incident-1", action="restart_worker", state=random.choice(("intended", "done", "failed", "stale")), time=now, progress=(step,),
            detection_s=1.0, transition_s=2.0, sub_healthy_s=3.0, predicted={"downtime_s": 4.0}, actual={"downtime_s": 5.0}, detail="healed",
        )  # fmt: skip

    def _next(self) -> int:
        self._number += 1
        return self._number


def tree_of(noun: Any) -> Any:
    """As JSON holds it."""
    return msgspec.to_builtins(noun)
