"""The leader's intake and engine over a ledger on disk: what mutated findings, incidents and snapshots come to."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from eagle_eye.clock import FakeClock
from eagle_eye.errors import UNREADABLE, TemporaryError
from eagle_eye.ledger import Ledger
from eagle_eye.plugins import available, build, load
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, JOB_SNAPSHOTS
from eagle_eye.types import Finding, Incident, JobSnapshot, Mode
from remediation.engine.engine import Engine
from remediation.engine.execution import at_once
from remediation.engine.intake import Intake
from remediation.guards import POLICY
from remediation.policy.engine_settings import EngineSettings

from .detection import Logged
from .mutation import Mutation
from .rolling_stream import RollingStream
from .sample_findings import SampleFindings, tree_of
from .sample_job import JOB, SampleJob
from .target import Fault, Tally, Target

SECOND = 20
KEPT = 6_000
"""Records of each topic: three share what is written, and ten minutes of it are read again. All of them are full before growth is judged."""
LIFE = 9_000
"""Records after which another leader takes over, and reads the ledger and the last ten minutes again."""
TYPES: dict[str, type] = {FINDINGS: Finding, INCIDENTS: Incident, JOB_SNAPSHOTS: JobSnapshot}


class Coordinators:
    """Answer every second command, as jobs that have trouble do."""

    def __init__(self) -> None:
        self._asked = 0

    def command(self, job: str, action: str, _arguments: dict[str, Any], *, epoch: int, **_: Any) -> dict[str, Any]:
        """An answer without anything in it, or none."""
        self._asked += 1
        if self._asked % 2:
            raise TemporaryError(f"{job} did not answer", delay=0.5)
        return {"epoch": epoch + 1} if action == "restart" else {}


def engine_over(ledger: Ledger, clock: FakeClock, mode: Mode) -> Engine:
    """With every action and guard, over the sample job; actions are carried out at once."""
    services = {"commander": Coordinators(), "clock": clock, "ledger": ledger}
    actions = {name: build(load("remediation.actions", name), {}, services) for name in available("remediation.actions")}
    guards = [build(load("remediation.guards", name), {}, {}) for name in POLICY]
    engine = Engine(ledger=ledger, actions=actions, guards=guards, clock=clock, settings=EngineSettings(mode=mode), start=at_once)
    engine.resume()
    engine.declare_job(JOB, heal="restart:3", budget_left=2)
    return engine


class Leadership:
    """One leader after the other on one stream and one ledger."""

    def __init__(self, folder: Path, logged: Logged) -> None:
        self._clock = FakeClock()
        self._stream = RollingStream(self._clock, KEPT)
        self._ledger = Ledger.open(folder / "ledger.sqlite")
        self._logged = logged
        self._findings = SampleFindings(SampleJob())
        self._others: list[Any] = []
        self._taken = self._unreadable = 0
        self._intake, self._engine = self._next_leader()

    def take(self, random: Random) -> None:
        self._taken += 1
        if self._taken % LIFE == 0:
            self._intake.commit()
            self._intake, self._engine = self._next_leader()
        topic = random.choice(list(TYPES))
        record = self._mutated(self._tree(topic, random), Mutation(random))
        self._unreadable += _is_unreadable(topic, record)
        self._stream.append(topic, [(JOB, record)])
        self._clock.advance(1.0 / SECOND)
        if self._taken % SECOND == 0:
            for valid in TYPES:
                self._stream.append(valid, [(JOB, msgspec.json.encode(self._sample(valid, random)))])
        while self._intake.step():
            pass
        self._engine.tick()
        if self._logged.faults:
            faults, self._logged.faults = self._logged.faults, []
            raise Fault("\n".join(faults))

    def tally(self) -> Tally:
        kept = self._stream.end(DEAD_LETTERS, 0)
        return Tally(self._unreadable, kept, kept)

    def close(self) -> None:
        self._ledger.close()

    def _next_leader(self) -> tuple[Intake, Engine]:
        engine = engine_over(self._ledger, self._clock, Mode.AUTO)
        return Intake(self._stream, self._ledger, engine, self._clock), engine

    def _mutated(self, tree: Any, mutation: Mutation) -> bytes:
        if tree.get("events") and mutation.random.random() < 0.5:
            return msgspec.json.encode(tree | {"events": [mutation.attribute(tree["events"][0])]})
        return mutation.encoded(tree, "json", self._others)

    def _tree(self, topic: str, random: Random) -> Any:
        tree = tree_of(self._sample(topic, random))
        if len(self._others) < 64:
            self._others.append(tree)
        return tree

    def _sample(self, topic: str, random: Random) -> Finding | Incident | JobSnapshot:
        now = self._clock.now()
        if topic == FINDINGS:
            return self._findings.finding(random, now)
        return self._findings.incident(random, now) if topic == INCIDENTS else self._findings.snapshot(random, now)


def _is_unreadable(topic: str, record: bytes) -> bool:
    try:
        msgspec.json.decode(record, type=TYPES[topic])
    except UNREADABLE:
        return True
    return False


@contextmanager
def leadership(folder: Path) -> Iterator[Leadership]:
    """A ledger in the folder, everything else in the memory of this process."""
    logged = Logged()
    logging.getLogger().addHandler(logged)
    subject = Leadership(folder, logged)
    try:
        yield subject
    finally:
        subject.close()
        logging.getLogger().removeHandler(logged)


TARGET = Target("leader", "findings, incidents and snapshots through the leader's intake and engine", leadership)
