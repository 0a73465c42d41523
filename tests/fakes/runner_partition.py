"""One partition with a runner over it: a stream in memory, a fake clock, and whatever the runner tells."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from detectors.runtime.runner import Runner
from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.frames import Frame
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import (
    Batch,
    Block,
    Claim,
    Culprit,
    Entity,
    Event,
    Evidence,
    Finding,
    Incident,
    Kind,
    Mark,
    Reading,
    Record,
    Severity,
    Topology,
)

JOB = "t/n/r"
NODE = Entity(kind=Kind.NODE, name="n")


@dataclass
class Exited:
    """Claims every exit event."""

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name == "exit":
                proof = Evidence(text="it exited", event=event.id)
                yield Claim(entity=event.entity, kind="worker.exited", score=1.0, since=event.time, evidence=(proof,))


@dataclass
class Hot:
    """Claims the node while it is hot; needs three hot ticks of its window."""

    past_s: ClassVar[float] = 600.0
    limit: float = 80.0

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick or Kind.NODE not in frame.entities:
            return
        past = frame.past(Kind.NODE, "temperature_celsius", 3.0)
        hot = len(past) == 3 and bool((past > self.limit).all())
        mean = float(past.mean()) if hot else 0.0
        proof = Evidence(text="temperature", metric="temperature_celsius", value=mean)
        yield Claim(entity=NODE, kind="node.hot", score=1.0, since=0.0, evidence=(proof,), active=hot)


class OneToOne:
    """Every finding is an incident of its own."""

    def diagnose(
        self, opened: Sequence[Incident], findings: Sequence[Finding], topology: Topology, /
    ) -> Iterator[Incident]:
        known = {incident.id: incident for incident in opened}
        for finding in findings:
            before = known.get("incident-" + finding.id)
            yield Incident(
                id="incident-" + finding.id, revision=before.revision + 1 if before else 1, job=finding.job,
                cause=finding.kind, culprits=(Culprit(entity=finding.entity, confidence=1.0),), severity=Severity.SEV2,
                findings=(finding.id,), evidence=finding.evidence, since=finding.since, time=finding.time,
                active=finding.active,
            )  # fmt: skip


class World:
    """A stream, a clock, and whatever the runner tells."""

    def __init__(self, stream: MemoryStream | None = None) -> None:
        self.clock = FakeClock(1000.0)
        self.stream = stream or MemoryStream(clock=self.clock)
        self.frames: list[Frame] = []
        self.incidents: list[Incident] = []
        self.findings: list[Finding] = []
        self.notices: list[str] = []
        self.schemas = wire.Schemas()
        self.number = 0
        self.ahead_s = 0.0
        """Of the node's clock."""
        self._runners: list[Runner] = []

    def close(self) -> None:
        """End what its runners do in threads of their own."""
        for runner in self._runners:
            runner.close()

    def runner(self, *detectors: object, generation: int = 1, **options: object) -> Runner:
        names = [(type(detector).__name__.lower(), detector) for detector in detectors]
        settings: dict[str, object] = {
            "clock": self.clock,
            "generation": generation,
            "on_incidents": self.incidents.extend,
            "on_findings": self.findings.extend,
            "on_frame": self.frames.append,
            "on_notice": lambda notice: self.notices.append(notice.name),
        }
        make: Callable[..., Runner] = Runner
        runner = make(self.stream, 0, names, OneToOne(), **(settings | options))
        self._runners.append(runner)
        settle(runner)
        return runner

    def put(self, record: Record, key: str = JOB) -> None:
        self.stream.append(OBSERVATIONS, [(key, wire.encode(record))])

    def exit(self, worker: str = "r/n/0") -> None:
        self.number += 1
        entity = Entity(kind=Kind.WORKER, name=worker)
        now = self.clock.now()
        self.put(Event(name="exit", job=JOB, entity=entity, time=now, node="n", incarnation="b", number=self.number))

    def batch(self, celsius: float, job: str = JOB) -> None:
        self.number += 1
        matrix, names, now = np.array([[celsius]], dtype=np.float32), ("temperature_celsius",), self.clock.now()
        reading = Reading(source="host", kind=Kind.NODE, entities=("n",), names=names, matrix=matrix, time=now)
        known = len(list(self.schemas))
        schema = self.schemas.schema_of(reading)
        if len(list(self.schemas)) > known:
            self.put(schema, job)
        block = Block(schema_id=schema.id, reading=reading)
        batch = Batch(node="n", incarnation="b", job=job, number=self.number, time=self.clock.now() + self.ahead_s, blocks=(block,))
        self.put(batch, job)

    def second(self, runner: Runner, celsius: float | None = 20.0) -> None:
        """One second passes, with a batch at its end."""
        self.clock.advance(1.0)
        if celsius is not None:
            self.batch(celsius)
        settle(runner)

    def records(self, topic: str = OBSERVATIONS) -> list[Record]:
        reader = wire.RecordReader()
        return [reader.read(message.value) for message in self.stream.read(topic, 0, 0, 100_000)]  # type: ignore[misc]

    def marks(self) -> list[Mark]:
        return [record for record in self.records() if isinstance(record, Mark)]


def settle(runner: Runner) -> None:
    for _ in range(4):
        runner.step()
