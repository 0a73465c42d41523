"""A small deployment on disk, as the dashboard finds one: a history through the real writer, and a ledger."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eagle_eye import wire
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.partition_writer import PartitionWriter
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.types import Batch, Block, Kind, Reading, StepReading

from .sample_values import JOB

T0 = 1_700_000_100.0
"""Where a window of 30 s begins."""
STEP_NAMES = ("step_s", "forward_s", "communication_s", "loss", "tokens")
RUN = JOB.rpartition("/")[2]


def worker(node: str, slot: int) -> str:
    return f"{RUN}/{node}/{slot}"


@dataclass
class RecordedJob:
    """A job that does a step a second on nodes with two workers and two GPUs each; the second half of a step is waiting.

    `slow`: worker → factor of its compute; the others wait for it. `rest`: seconds in which nothing is done.
    """

    state: Path
    nodes: tuple[str, ...] = ("node-a", "node-b")
    job: str = JOB
    slow: dict[str, float] = field(default_factory=dict)
    mfu_percent: float | None = None
    """None: no worker tells it."""
    _messages: list[Message] = field(default_factory=list)
    _schemas: wire.Schemas = field(default_factory=wire.Schemas)
    _numbers: dict[str, int] = field(default_factory=dict)

    def run(self, seconds: int, begin: int = 0, *, step: int | None = None, epoch: int = 1, silent: tuple[str, ...] = (), idle: bool = False) -> "RecordedJob":
        """One batch a second and node from T0 + begin on; the first does `step`, by default that of its second. idle: no steps."""
        for second in range(begin, begin + seconds):
            number = second if step is None else step + second - begin
            for node in self.nodes:
                if node not in silent:
                    self._batch(node, second, [*self._readings(node, second), *([] if idle else [self._steps(node, second, number, epoch)])])
        return self

    def tell(self, node: str, second: int, *readings: Reading | StepReading) -> "RecordedJob":
        """One batch of a node, of what it really measured."""
        self._batch(node, second, list(readings))
        return self

    def write(self) -> "RecordedJob":
        """Everything so far into files."""
        last = self._messages[-1].time
        self._add(b"the window is over", last + 60.0)
        PartitionWriter(ObjectStore.of(self.state / "history"), 0, file_s=30.0).take(self._messages)
        return self

    def _readings(self, node: str, second: int) -> list[Reading]:
        power = np.array([[100 + second], [200 + second]], np.float32)
        cpu = np.array([[50 if node == "node-a" else 10]], np.float32)
        return [
            Reading(source="gpu", kind=Kind.GPU, entities=(f"GPU-{node}-0", f"GPU-{node}-1"), names=("power_watts",), matrix=power, time=T0 + second),
            Reading(source="host", kind=Kind.NODE, entities=(node,), names=("cpu_percent",), matrix=cpu, time=T0 + second),
        ]

    def _steps(self, node: str, second: int, number: int, epoch: int) -> StepReading:
        workers = (worker(node, 0), worker(node, 1))
        compute = np.array([0.5 * self.slow.get(name, 1.0) for name in workers])
        step_s = max(0.5 * max(self.slow.values(), default=1.0), 0.5) + 0.5
        values = np.stack([np.full(2, step_s), compute, step_s - compute, np.full(2, 10.0 / (number + 1)), np.full(2, 512.0)], axis=1)
        names = STEP_NAMES if self.mfu_percent is None else (*STEP_NAMES, "mfu_percent")
        values = values if self.mfu_percent is None else np.hstack([values, np.full((2, 1), self.mfu_percent)])
        return StepReading(
            source="training", workers=workers, names=names, numbers=np.array([number]), epochs=np.array([epoch]),
            ends=np.full((1, 2), T0 + second + 0.9), values=values[None],
        )  # fmt: skip

    def _batch(self, node: str, second: int, readings: list[Reading | StepReading]) -> None:
        time = T0 + second + 1.0
        blocks = []
        for reading in readings:
            schema = self._schemas.schema_of(reading)
            if not any(message.value == wire.encode(schema) for message in self._messages[:20]):
                self._add(wire.encode(schema), time)
            blocks.append(Block(schema_id=schema.id, reading=reading))
        number = self._numbers[node] = self._numbers.get(node, 0) + 1
        self._add(wire.encode(Batch(node=node, incarnation="b", job=self.job, number=number, time=time, blocks=tuple(blocks))), time)

    def _add(self, value: bytes, time: float) -> None:
        self._messages.append(Message(OBSERVATIONS, 0, len(self._messages), self.job, value, time))
