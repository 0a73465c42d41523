"""Agents that exist on paper: each has a connection of its own to the broker, writes a real record a second and asks what was confirmed.

One process, one thread, one epoll. The bytes are those of the Kafka protocol, made here: ten thousand clients of kafka-python would be ten thousand
threads. What is written is what `collectors/agent` writes: a batch with the numbers of eight GPUs and of the collectives of eight workers.
"""

import heapq
import random
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from collectors.agent.agent import CONFIRM_S
from eagle_eye import wire
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.open_file_limit import raise_open_file_limit
from eagle_eye.stream import OBSERVATIONS, RUNNER_GROUP
from eagle_eye.types import Batch, Block, Floats, Kind, Layout, RankPlacement, Reading, SchemaRecord, StepReading

GPUS, METRICS, GROUPS = 8, 60, 8
GPU_NAMES = tuple(f"metric_{index}" for index in range(METRICS))
GROUP_NAMES = tuple(f"group_{group}_{name}" for group in range(GROUPS) for name in ("collectives", "collectives_over", "collective_age_s"))
SCHEMAS = (
    SchemaRecord(id="paper-gpu", source="gpu", kind=Kind.GPU, names=GPU_NAMES),
    SchemaRecord(id="paper-groups", source="collective", kind=Kind.WORKER, names=GROUP_NAMES),
)
STEP_NAMES = ("step_s", "forward_s", "backward_s", "communication_s", "optimizer_s", "tokens", "loss")
STEP_VALUES = (1.0, 0.3, 0.5, 0.1, 0.1, 4096.0, 2.0)
STEPS_SCHEMA = SchemaRecord(id="paper-steps", source="training", kind=Kind.WORKER, names=STEP_NAMES, steps=True)
PRODUCE, FETCH, OFFSET_FETCH = 0, 1, 9
LZ4 = 3
CONNECT_AT_ONCE = 200
REST_S = 0.002


@dataclass(frozen=True, slots=True)
class PaperNode:
    """A node, the job that it works for, and the partition of the job."""

    index: int
    job: str
    partition: int

    @property
    def name(self) -> str:
        return f"node-{self.index}"

    @property
    def gpus(self) -> tuple[str, ...]:
        """Names as long as a UUID."""
        return tuple(f"GPU-{self.index:08x}-0000-4000-8000-{slot:012x}" for slot in range(GPUS))

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(f"{self.job.rpartition('/')[2]}/{self.name}/{slot}" for slot in range(GPUS))


def nodes_of(jobs: Sequence[tuple[str, int]], nodes: int) -> list[PaperNode]:
    """Shared evenly by (job, partition)."""
    return [PaperNode(index, *jobs[index * len(jobs) // nodes]) for index in range(nodes)]


def layout_of(job: str, nodes: Sequence[PaperNode], now: float) -> Layout:
    """Every worker of a job at its place."""
    places = tuple(
        RankPlacement(worker=worker, node=node.name, rank=place * GPUS + slot, local_rank=slot, gpu=node.gpus[slot])
        for place, node in enumerate(nodes)
        for slot, worker in enumerate(node.workers)
    )
    first = nodes[0].name
    return Layout(job=job, epoch=1, time=now, coordinator=first, launchers={first: "127.0.0.1:1"}, placements=places, reason="start")


def numbers(rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Of one node and second: telemetry in steps of a half, which compresses as such; counters and ages of its collectives."""
    metrics = (rng.normal(60, 5, (GPUS, METRICS)) // 0.5 * 0.5).astype(np.float32)
    counters = rng.integers(1000, 1010, (GPUS, len(GROUP_NAMES))).astype(np.float32)
    return metrics, counters


def record(node: PaperNode, number: int, now: float, values: tuple[Floats, Floats], *, step: int = -1) -> bytes:
    """What its agent writes each second; `step`: which one its workers have done, -1: none is told."""
    readings = [
        Reading(source="gpu", kind=Kind.GPU, entities=node.gpus, names=GPU_NAMES, matrix=values[0], time=now),
        Reading(source="collective", kind=Kind.WORKER, entities=node.workers, names=GROUP_NAMES, matrix=values[1], time=now),
    ]
    blocks = [Block(schema_id=schema.id, reading=reading) for schema, reading in zip(SCHEMAS, readings, strict=True)]
    if step >= 0:
        steps = StepReading(
            source="training", workers=node.workers, names=STEP_NAMES, numbers=np.array([step]), epochs=np.array([1]),
            ends=np.full((1, GPUS), now), values=np.tile(np.array(STEP_VALUES), (1, GPUS, 1)),
        )  # fmt: skip
        blocks.append(Block(schema_id=STEPS_SCHEMA.id, reading=steps))
    return wire.encode(Batch(node=node.name, incarnation="paper", job=node.job, number=number, time=now, blocks=tuple(blocks)))


# --- the protocol ------------------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _request(api: int, version: int, body: bytes) -> bytes:
    header = struct.pack(">hhi", api, version, 1) + _text("paper")
    return struct.pack(">i", len(header) + len(body)) + header + body


def _produce(partition: int, key: bytes, value: bytes, now: float) -> bytes:
    from kafka.record import MemoryRecordsBuilder

    records = MemoryRecordsBuilder(2, LZ4, 1 << 20)
    records.append(timestamp=int(now * 1000), key=key, value=value, headers=[])
    records.close()
    data = bytes(records.buffer())
    body = struct.pack(">hhi", -1, -1, 10_000) + struct.pack(">i", 1) + _text(OBSERVATIONS)
    return _request(PRODUCE, 3, body + struct.pack(">iii", 1, partition, len(data)) + data)


def _questions(partition: int, offset: int) -> bytes:
    """What `UncommittedRecords.check` asks: is the newest record there, and how far has the group come?"""
    place = struct.pack(">i", 1) + _text(OBSERVATIONS) + struct.pack(">ii", 1, partition)
    fetch = _request(FETCH, 4, struct.pack(">iiiib", -1, 1, 0, 8 << 10, 0) + place + struct.pack(">qi", offset, 8 << 10))
    return fetch + _request(OFFSET_FETCH, 2, _text(RUNNER_GROUP) + place)


_ANSWERED = 4 + 4 + 4 + 2 + len(OBSERVATIONS) + 4 + 4
"""Of an answer to Produce, where the error and the offset stand."""


# --- the agents ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Agent:
    node: PaperNode
    socket: socket.socket
    asks_at: float
    awaited: list[str] = field(default_factory=list)
    """What it waits for, oldest first."""
    received: bytes = b""
    written: int = 0
    newest: int = 0
    """Offset of its newest record."""


@dataclass
class Told:
    """What the agents saw."""

    written: int = 0
    acknowledged: int = 0
    refused: int = 0
    late_s: float = 0.0
    """By how much the writer itself fell behind its clock."""
    asks: int = 0
    """Looks at what is confirmed; each is two requests."""
    most_asks: int = 0
    """In one second."""
    processor_s: float = 0.0
    seconds: float = 0.0


class PaperAgents:
    """All of them. `run` writes for so many seconds."""

    def __init__(self, broker: str, nodes: Sequence[PaperNode], clock: Clock, *, seed: int = 1) -> None:
        """Connects each. Raises OSError where the limit of open files is too low."""
        raise_open_file_limit()
        host, _, port = broker.rpartition(":")
        self.told = Told()
        self._clock = clock
        self._random = random.Random(seed)
        self._epoll = select.epoll()
        self._agents: dict[int, _Agent] = {}
        self._order: list[_Agent] = []
        rng = np.random.default_rng(seed)
        self._values = [numbers(rng) for _ in range(64)]
        for place, node in enumerate(nodes):
            connection = socket.create_connection((host, int(port)), timeout=30.0)
            connection.setblocking(False)
            self._epoll.register(connection, select.EPOLLIN)
            agent = self._agents[connection.fileno()] = _Agent(node, connection, CONFIRM_S * self._random.uniform(0.0, 1.0))
            self._order.append(agent)
            if place % CONNECT_AT_ONCE == 0:
                clock.sleep(0.01)

    def close(self) -> None:
        for agent in self._order:
            agent.socket.close()
        self._epoll.close()

    def run(self, seconds: float, period_s: float = 1.0) -> Told:
        """Each agent writes once in `period_s`, spread evenly over it."""
        import time

        began, used = self._clock.monotonic(), time.process_time()
        asking = [(agent.asks_at, index) for index, agent in enumerate(self._order)]
        heapq.heapify(asking)
        sent, asked_in = 0, dict[int, int]()
        while (passed := self._clock.monotonic() - began) < seconds:
            due = int(passed / period_s * len(self._order))
            for place in range(sent, min(due, sent + 500)):
                self._write(self._order[place % len(self._order)], began + place * period_s / len(self._order))
            sent = min(due, sent + 500)
            while asking and asking[0][0] <= passed:
                _, index = heapq.heappop(asking)
                self._ask(self._order[index])
                asked_in[int(passed)] = asked_in.get(int(passed), 0) + 1
                heapq.heappush(asking, (passed + CONFIRM_S * self._random.uniform(0.5, 1.5), index))
            self._receive(0.0 if sent < due else REST_S)
        end = self._clock.monotonic() + 10.0
        while self.told.acknowledged + self.told.refused < self.told.written and self._clock.monotonic() < end:
            self._receive(0.1)
        self.told.most_asks = max(asked_in.values(), default=0)
        self.told.processor_s, self.told.seconds = time.process_time() - used, seconds
        return self.told

    def _write(self, agent: _Agent, planned: float) -> None:
        now = self._clock.now()
        value = record(agent.node, agent.written, now, self._values[(agent.node.index + agent.written) % len(self._values)])
        agent.written += 1
        self.told.written += 1
        self.told.late_s = max(self.told.late_s, self._clock.monotonic() - planned)
        agent.awaited.append("record")
        self._send(agent, _produce(agent.node.partition, agent.node.job.encode(), value, now))

    def _ask(self, agent: _Agent) -> None:
        self.told.asks += 1
        agent.awaited += ["question", "question"]
        self._send(agent, _questions(agent.node.partition, agent.newest))

    def _send(self, agent: _Agent, data: bytes) -> None:
        while data:
            try:
                data = data[agent.socket.send(data) :]
            except BlockingIOError:  # the broker reads slowly: it is waited for, and the others are late
                self._receive(0.01)

    def _receive(self, wait_s: float) -> None:
        for number, _ in self._epoll.poll(wait_s):
            agent = self._agents[number]
            data = agent.socket.recv(1 << 16)
            if not data:
                raise ConnectionError(f"the broker closed the connection of {agent.node.name}; it waited for {agent.awaited[:3]}")
            agent.received += data
            for answer in self._answers(agent):
                if agent.awaited.pop(0) == "record":
                    error, offset = struct.unpack_from(">hq", answer, _ANSWERED - 4)
                    self.told.acknowledged += not error
                    self.told.refused += bool(error)
                    agent.newest = max(agent.newest, offset)

    @staticmethod
    def _answers(agent: _Agent) -> Iterator[bytes]:
        while len(agent.received) >= 4 and len(agent.received) >= 4 + (size := int.from_bytes(agent.received[:4])):
            answer, agent.received = agent.received[4 : 4 + size], agent.received[4 + size :]
            yield answer


def write(broker: str, nodes: Sequence[PaperNode], seconds: float, period_s: float, told: Any) -> None:
    """In a process of its own: says "ready" when all are connected, waits for "go", and sends what they saw."""
    agents = PaperAgents(broker, nodes, SystemClock())
    told.send("ready")
    told.recv()
    told.send(agents.run(seconds, period_s))
    agents.close()
