"""One recorded run of a small job in a large cluster, written by the real engine, ledger and history: test data for the dashboard.

Three incidents are over (a worker killed, a hang with its stacks, a loss that was no number) and one waits for a
person: a slow node that the engine would evict.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np

from eagle_eye import wire
from eagle_eye.checkpoint_safety import NodeSafety, SafeStep
from eagle_eye.clock import FakeClock
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.partition_writer import PartitionWriter
from eagle_eye.ledger import LeaseHolder, Ledger
from eagle_eye.plugins import available, build, load
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.types import (
    Batch,
    Block,
    Culprit,
    Entity,
    Evidence,
    Finding,
    Incident,
    IncidentNote,
    Kind,
    Mode,
    Reading,
    Rival,
    Severity,
    StepReading,
    Telemetry,
)
from fakes.fake_commander import FakeCommander
from fakes.synthetic_job import SyntheticJob
from remediation.engine.engine import Engine
from remediation.engine.execution import at_once
from remediation.guards import POLICY
from remediation.guards.telemetry_distrust import TelemetryDistrust
from remediation.policy.engine_settings import EngineSettings

from .sample_plan import situation

BEGAN = 1_793_149_200.0
"""Start of the run, in October 2026."""
JOB = "team/gpt/run1"
NODES = tuple(f"node-{letter}" for letter in "abcdefgh")
SLOW_NODE = "node-c"
IDLE_NODES = 10_000
"""Idle nodes beside them."""
SLOTS = 2
STEP_S = 0.5
WAITING = "4f1c9a02e7b1"
HUNG = "a81d22c07f3e"
KILLED = "19c04be5d2aa"
KILLED_AGAIN = "6be1f38c0d57"
NOT_FINITE = "c7702f9e1b46"
RING = 'File "/train/gpt.py", line 212, in train_step\n    loss.backward()\nFile "torch/autograd/graph.py", line 823, in _engine_run_backward\nFile "torch/distributed/distributed_c10d.py", line 2906, in all_reduce'
ALONE = 'File "/train/data.py", line 88, in __next__\n    batch = self.queue.get()\nFile "/usr/lib/python3.11/queue.py", line 171, in get\n    self.not_empty.wait()\nFile "/usr/lib/python3.11/threading.py", line 327, in wait'
DETECTORS = {"worker.exited": "exits", "worker.stalled": "stall", "loss.not_finite": "loss", "node.slow": "straggler"}
STEP_NAMES = ("step_s", "tokens", "loss", "forward_s", "backward_s", "communication_s", "data_s")


@dataclass
class SampleRun:
    """Writes the run into `folder`, a state directory."""

    folder: Path
    waits: bool = True
    """False: all is over in the end."""
    clock: FakeClock = field(default_factory=lambda: FakeClock(BEGAN))

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.ledger = Ledger.open(self.folder / "ledger.sqlite")
        self.job = SyntheticJob(clock=self.clock, name=JOB, nodes=NODES, slots=SLOTS, step_s=STEP_S)
        self.commander = FakeCommander(answers=self.job.answers() | {"dump": lambda _sent: self._stacks()})
        self.slow_since = math.inf
        self.engine = self._engine(Mode.AUTO)

    def run_all(self) -> "SampleRun":
        """Everything, in order."""
        self.run(60)
        self._killed(KILLED, "run1/node-b/1")
        self.run(90)
        self._killed(KILLED_AGAIN, "run1/node-b/1")
        self.run(90)
        self._hung()
        self.run(90)
        self._not_finite()
        self.run(90)
        if self.waits:
            self._slow()
        self.end = self.clock.now()
        self._keep_job()
        self._write_history()
        self.ledger.close()
        return self

    def run(self, seconds: float) -> None:
        """Let time pass."""
        for _ in range(round(seconds * 5)):
            for snapshot in self.job.advance(0.2):
                self.engine.receive_snapshot(snapshot)
            self.engine.tick()

    # --- what happens --------------------------------------------------------------------------------------------

    def _killed(self, name: str, accused: str) -> None:
        worker = Entity(kind=Kind.WORKER, name=accused)
        event = self.job.die(worker.name)
        proof = (Evidence(text=f"exit of {accused}: SIGKILL", event=event.id), Evidence(text="its last words: step 118 loss 2.031", event=event.id))
        self.find(name, "worker killed", worker, "worker.exited", proof, rivals=(("out of memory on the host", "a line of the kernel's out-of-memory killer; memory of the node before"),))

    def _hung(self) -> None:
        self.job.stalled = True
        self.run(8)
        worker = Entity(kind=Kind.WORKER, name="run1/node-b/0")
        proof = (Evidence(text="no mark of run1/node-b/0 for 7.6 s, others wait for it in communication", metric="progress_age_s", value=7.6, threshold=5.0),)
        rivals = (("a hung call into a driver or a file system", "the stacks of the worker: in Python, or below it"), ("a step that takes this long", "whether its marks move again"))
        self.find(HUNG, "python hang", worker, "worker.stalled", proof, rivals=rivals, before=7.6)

    def _not_finite(self) -> None:
        self.job.bad_batch = self.job.step + 2
        self.run(3)
        culprit = Entity(kind=Kind.WORKER, name="run1/node-a/1")
        proof = (Evidence(text=f"loss of step {self.job.bad_batch} is NaN on run1/node-a/1", metric="loss", value=math.nan),)
        self.find(NOT_FINITE, "loss not finite", culprit, "loss.not_finite", proof, before=1.5)

    def _slow(self) -> None:
        self.engine = self._engine(Mode.RECOMMEND)
        self.run(60)  # it has to know what is usual
        self.slow_since = self.clock.now()
        self.job.slow = lambda nodes: 1.8 if SLOW_NODE in nodes else 1.0
        self.run(20)
        node = Entity(kind=Kind.NODE, name=SLOW_NODE)
        proof = (
            Evidence(text="workers of node-c take 1.80 times the compute of the others, 0.90 s beside 0.50 s", metric="compute_ratio", value=1.8, threshold=1.2),
            Evidence(text="14 others wait in communication", metric="waiting", value=14.0),
            Evidence(text="clocks_mhz of both its GPUs fell from 1980 to 1095, power_watts with them", metric="clocks_mhz", value=1095.0),
        )
        rivals = (
            ("workload imbalance", "whether the slow workers change with the batch; tokens per worker"),
            ("a hot room", "temperature of its neighbours in the rack"),
        )
        self.find(WAITING, "slow node", node, "node.slow", proof, rivals=rivals, before=18.0, severity=Severity.SEV1)
        self.run(12)
        self.ledger.save_note(IncidentNote(incident=WAITING, person="ada", time=self.clock.now(), text="facility says that fan 3 of the rack is down"))

    # --- how it is written ---------------------------------------------------------------------------------------

    def find(
        self, name: str, cause: str, culprit: Entity, kind: str, proof: tuple[Evidence, ...], *,
        rivals: tuple[tuple[str, str], ...] = (), before: float = 0.4, severity: Severity = Severity.SEV2,
    ) -> None:
        """What detectors and diagnosis would report."""
        now = self.clock.now()
        finding = Finding(
            id=f"f-{name}", revision=1, detector=DETECTORS[kind], digest="0" * 12, job=JOB, entity=culprit, kind=kind, score=0.94,
            since=now - before, time=now, evidence=proof, active=True,
        )
        self.ledger.save_findings([finding])
        self.incident = Incident(
            id=name, revision=1, job=JOB, cause=cause, culprits=(Culprit(entity=culprit, confidence=0.94),), severity=severity,
            findings=(finding.id,), evidence=proof, rivals=tuple(Rival(cause=other, apart=apart) for other, apart in rivals),
            since=now - before, time=now, bill_gpu_hours=before * len(NODES) * SLOTS / 3600.0, parts=(finding,),
        )  # fmt: skip
        self.engine.receive_incidents([self.incident])

    def _engine(self, mode: Mode) -> Engine:
        services = {"commander": self.commander, "clock": self.clock, "ledger": self.ledger}
        actions = {name: build(load("remediation.actions", name), {}, services) for name in available("remediation.actions")}
        guards = [build(load("remediation.guards", name), {}, {}) for name in POLICY]
        policy = EngineSettings(mode=mode, restart_success_share=0.0, rank_swap=False)  # on these machines no slow-down ends with a restart
        engine = Engine(ledger=self.ledger, actions=actions, guards=guards, clock=self.clock, settings=policy, start=at_once)
        engine.resume()
        return engine

    def _stacks(self) -> dict[str, dict[str, str]]:
        return {place.worker: {"stack": ALONE if place.worker == "run1/node-b/0" else RING} for place in self.job.layout.placements}

    def _keep_job(self) -> None:
        self.ledger.save_job(JOB, self.job.layout, "node-a:7000", "restart:3", self.job.budget_left)
        self.ledger.save_safety(self._safety(node) for node in self.job.layout.nodes)

    def _safety(self, node: str) -> NodeSafety:
        """Of a job whose checkpoints reach another node, and no storage any more."""
        now, step = self.clock.now(), self.job.step
        full = "No space left on device" if node == "node-a" else ""
        tiers = {"memory": SafeStep(step=step, time=now - 5.0), "backup": SafeStep(step=step - 8, time=now - 15.0), "storage": SafeStep(step=step - 400, time=now - 610.0, failure=full)}
        return NodeSafety(job=JOB, node=node, time=now, tiers=tiers, kept_by="another")

    def _write_history(self) -> None:
        writer = PartitionWriter(ObjectStore.of(self.folder / "history"), 0, file_s=30.0)
        writer.take(list(self._messages()))

    def _messages(self) -> Iterator[Message]:
        schemas, offset = wire.Schemas(), 0
        known: set[str] = set()
        randomness = np.random.default_rng(7)
        for second in range(int(BEGAN), int(self.end) + 31):
            for node in NODES:
                blocks = []
                for reading in (self._gpus(node, second, randomness), self._steps(node, second, randomness)):
                    schema = schemas.schema_of(reading)
                    blocks.append(Block(schema_id=schema.id, reading=reading))
                    if schema.id not in known:
                        known.add(schema.id)
                        yield Message(OBSERVATIONS, 0, offset, JOB, wire.encode(schema), float(second))
                        offset += 1
                if second <= self.end:
                    batch = Batch(node=node, incarnation="incarnation", job=JOB, number=second - int(BEGAN), time=float(second), blocks=tuple(blocks))
                    yield Message(OBSERVATIONS, 0, offset, JOB, wire.encode(batch), float(second))
                    offset += 1
        yield Message(OBSERVATIONS, 0, offset, JOB, b"no record", self.end + 60.0)

    def _hot(self, node: str, second: float) -> bool:
        return node == SLOW_NODE and second >= self.slow_since

    def _gpus(self, node: str, second: float, randomness: np.random.Generator) -> Reading:
        hot = self._hot(node, second)
        row = (250.0, 86.0, 1095.0) if hot else (420.0, 61.0, 1980.0)
        matrix = np.array([row] * SLOTS, dtype=np.float32) * randomness.normal(1.0, 0.01, (SLOTS, 3)).astype(np.float32)
        gpus = tuple(f"GPU-{node[-1]}{slot}f9c2d7e-0000" for slot in range(SLOTS))
        return Reading(source="gpu", kind=Kind.GPU, entities=gpus, names=("power_watts", "temperature_celsius", "clocks_mhz"), matrix=matrix, time=float(second))

    def _steps(self, node: str, second: float, randomness: np.random.Generator) -> StepReading:
        """The steps that ended in this second; all workers end together, and the fast ones wait."""
        slow = 1.8 if second >= self.slow_since else 1.0
        length = STEP_S * slow
        first, last = math.ceil((second - BEGAN) / length), math.ceil((second + 1 - BEGAN) / length)
        numbers = np.arange(first, last, dtype=np.int64) + (0 if slow == 1.0 else 10_000)
        ends = BEGAN + np.repeat(np.arange(first, last)[:, None] * length, SLOTS, axis=1)
        values = np.empty((len(numbers), SLOTS, len(STEP_NAMES)))
        compute = 0.42 * (1.8 if self._hot(node, second) else 1.0)
        for row in range(len(numbers)):
            for slot in range(SLOTS):
                busy = compute * randomness.normal(1.0, 0.012)
                values[row, slot] = (length, 2048.0 / (len(NODES) * SLOTS), 2.0 + 0.6 * math.exp(-(second - BEGAN) / 200) + randomness.normal(0, 0.01), busy / 3, busy * 2 / 3, max(length - busy - 0.01, 0.02), 0.01)
        workers = tuple(f"run1/{node}/{slot}" for slot in range(SLOTS))
        return StepReading(source="training", workers=workers, names=STEP_NAMES, numbers=numbers, epochs=np.full(len(numbers), 1, dtype=np.int64), ends=ends, values=values)


def add_idle_nodes(folder: Path, end: float, nodes: int = IDLE_NODES) -> None:
    """Add so many idle nodes of eight GPUs, seen in the last seconds before `end`."""
    writer, schemas = PartitionWriter(ObjectStore.of(folder / "history"), 1, file_s=30.0), wire.Schemas()
    matrix = np.random.default_rng(1).normal(60.0, 2.0, (8, 2)).astype(np.float32)
    messages: list[Message] = []
    for number, second in enumerate((end - 6.0, end - 2.0)):
        for place in range(nodes):
            node, gpus = f"idle-{place:05d}", tuple(f"GPU-{place:05d}-{slot}" for slot in range(8))
            reading = Reading(source="gpu", kind=Kind.GPU, entities=gpus, names=("power_watts", "temperature_celsius"), matrix=matrix, time=second)
            schema = schemas.schema_of(reading)
            if not messages:
                messages.append(Message(OBSERVATIONS, 1, 0, "idle", wire.encode(schema), second))
            batch = Batch(node=node, incarnation="incarnation", job=f"idle/{node}", number=number, time=second, blocks=(Block(schema_id=schema.id, reading=reading),))
            messages.append(Message(OBSERVATIONS, 1, len(messages), node, wire.encode(batch), second))
    messages.append(Message(OBSERVATIONS, 1, len(messages), "idle", b"no record", end + 60.0))
    writer.take(messages)


def take_leases(folder: Path, end: float) -> None:
    """Leases of a server that leads and owns the partition, up to the end of the run."""
    ledger = Ledger.open(folder / "ledger.sqlite")
    holder = LeaseHolder(host="head-1", pid=4711, incarnation="incarnation")
    for name in ("leader", "partition/0"):
        ledger.acquire(name, holder, 600.0, end - 300.0)
    ledger.close()


def add_blind_spots(folder: Path, end: float) -> None:
    """A collector that fails on one node, and a clock that is off on the one which is accused: the guard has held the plan for it."""
    ledger = Ledger.open(folder / "ledger.sqlite")
    proof = (Evidence(text="collector gpu fails: the driver does not answer"),)
    node = Entity(kind=Kind.NODE, name=NODES[-1])
    ledger.save_findings([Finding(
        id="f-blind", revision=1, detector="collector_health", digest="0" * 12, job=JOB, entity=node, kind="collector.failing", score=1.0,
        since=end - 240.0, time=end - 238.0, evidence=proof, active=True,
    )])  # fmt: skip
    [plan] = ledger.plans(incident=WAITING)
    telemetry = {SLOW_NODE: Telemetry(node=SLOW_NODE, heard=end - 61.0, skew_s=-30.5)}
    ledger.save_verdict(plan, TelemetryDistrust()(plan, situation(now=end - 60.0, telemetry=telemetry)), end - 60.0)
    ledger.close()


def write_recorded(folder: Path, end: float) -> None:
    """Mark the state directory as a recorded run, so that a dashboard shows the time at which the run ended."""
    run = {"began": BEGAN, "ended": end, "command": "the tests' sample run"}
    (folder / "recorded.json").write_bytes(msgspec.json.encode(run))
