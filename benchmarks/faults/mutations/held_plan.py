"""A leader with one plan that waits for an operator's approval: what requests over HTTP and gRPC can decide about."""

from pathlib import Path

from eagle_eye.clock import FakeClock
from eagle_eye.ledger import Ledger
from eagle_eye.types import Culprit, Entity, Evidence, Incident, JobSnapshot, Kind, Mode, Severity, SnapshotStep
from remediation.engine.engine import Engine

from .leadership import engine_over
from .sample_job import JOB, WORKERS, SampleJob

SETTLED = 200
"""Ticks until the incident has settled and its plan is held."""


class HeldPlan:
    """Over a ledger in a folder. Time stands still once the plan waits."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.ledger = Ledger.open(folder / "ledger.sqlite")
        self.layout = SampleJob().layout(self.clock.now())
        self.engine: Engine = engine_over(self.ledger, self.clock, Mode.RECOMMEND)
        self.ledger.save_job(JOB, self.layout, "node-a:7000", "restart:3", 2)
        self._run(1, SETTLED // 4)
        now = self.clock.now()
        culprit = Culprit(entity=Entity(kind=Kind.WORKER, name=WORKERS[2]), confidence=0.99)
        found = Incident(
            id="incident-held", revision=1, job=JOB, cause="ecc error", culprits=(culprit,), severity=Severity.SEV1, findings=(), evidence=(Evidence(text="Xid 48"),), since=now, time=now,
        )  # fmt: skip
        self.engine.receive_incidents([found])
        self._run(SETTLED, 2 * SETTLED)
        waiting = self.engine.status()["waiting"]
        if not waiting:
            raise RuntimeError("no plan waits for approval: the engine's rules have changed, and so must this sample")
        self.plan = self.ledger.plan(waiting[0])

    def _run(self, first: int, last: int) -> None:
        for number in range(first, last):
            self.clock.advance(0.1)
            now = self.clock.now()
            step = SnapshotStep(number=number, epoch=1, end=now, workers=4, tokens=4096.0, loss=2.0, step_s=0.1)
            layout = self.layout if number == first else None
            self.engine.receive_snapshot(JobSnapshot(job=JOB, generation=1, number=number, time=now, tick=True, heard=now, steps=(step,), layout=layout))
            self.engine.tick()

    def close(self) -> None:
        """Release the ledger."""
        self.ledger.close()
