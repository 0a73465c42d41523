"""Nodes that exist on paper: real telemetry in the stream, real sessions to the leader, and jobs that break and are restarted.

One process writes a record per node and second and coordinates the jobs, another one holds the sessions of all agents.
"""

import asyncio
import contextlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # read when gRPC is imported: its handlers crash a server that is started from here

import numpy as np

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError, StreamUnavailable
from eagle_eye.rpc.control_client import ControlClient
from eagle_eye.rpc.control_messages import Body, Command, ConnectionState, Peer
from eagle_eye.stream import OBSERVATIONS, Stream
from eagle_eye.types import Batch, Block, Entity, Event, Kind, Layout, RankPlacement, Reading, StepReading
from tests.fakes.synthetic_frames import GPU_NORMALS

GPUS, METRICS = 8, 30
NAMES = (*GPU_NORMALS, *(f"site_metric_{index}" for index in range(METRICS - len(GPU_NORMALS))))
STEP_NAMES = ("step_s", "tokens", "loss")
AT_ONCE = 250
"""Records of one append."""
END_S = 20.0
WARM_UP_S = 0.5
"""From a restart to the next step's beginning."""


@dataclass(slots=True)
class PaperJob:
    """A job that does a step each second until a worker of it dies, and again once it is restarted."""

    name: str
    nodes: Sequence[str]
    clock: Clock
    write: Callable[[str, bytes], None]
    epoch: int = 1
    step: int = 0
    running: bool = True
    resumes: float = 0.0
    commands: list[tuple[float, Command]] = field(default_factory=list)
    """(time, command) of every restart."""
    _events: int = 0
    _broken: int = 0

    @property
    def run(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def layout(self) -> Layout:
        places = tuple(
            RankPlacement(worker=f"{self.run}/{node}/{slot}", node=node, rank=place * GPUS + slot, local_rank=slot, gpu=f"{node}-GPU-{slot}")
            for place, node in enumerate(self.nodes)
            for slot in range(GPUS)
        )
        return Layout(
            job=self.name, epoch=self.epoch, time=self.clock.now(), coordinator=self.nodes[0], placements=places,
            launchers=dict.fromkeys(self.nodes, "127.0.0.1:1"),
        )  # fmt: skip

    def begin(self, reason: str, plan: str = "") -> Layout:
        """A new epoch."""
        layout = self.layout
        attributes = {"epoch": str(self.epoch), "reason": reason, "cause": "", "plan": plan, "excluded": "", "budget_left": "0"}
        self.tell("epoch.started", Entity(kind=Kind.JOB, name=self.name), attributes)
        self.write(self.name, wire.encode(layout))
        self.resumes, self.running = self.clock.now() + WARM_UP_S, True
        return layout

    def hit(self) -> str:
        """A worker dies, another one each time, and the job may not heal itself. Returns its name."""
        self._broken += 1
        node = self.nodes[(7 * self._broken) % len(self.nodes)]
        worker = f"{self.run}/{node}/{self._broken % GPUS}"
        self.running = False
        attributes = {"code": "-9", "signal": "SIGKILL", "epoch": str(self.epoch)}
        self.tell("exit", Entity(kind=Kind.WORKER, name=worker), attributes)
        self.tell("budget.exhausted", Entity(kind=Kind.JOB, name=self.name), {"heal": "none"})
        return worker

    def obey(self, command: Command) -> Body:
        """What its coordinator does."""
        if command.action == "restart":
            self.commands.append((self.clock.now(), command))
            self.epoch += 1
            self.begin("command", command.plan)
        return {"epoch": self.epoch}

    def tell(self, name: str, entity: Entity, attributes: dict[str, str]) -> None:
        """An event of its coordinator."""
        self._events += 1
        event = Event(
            name=name, job=self.name, entity=entity, time=self.clock.now(), node=self.nodes[0], incarnation=f"launcher-{self.run}",
            number=self._events, attributes=attributes,
        )  # fmt: skip
        self.write(self.name, wire.encode(event))


class PaperNodes:
    """`nodes` nodes shared by some jobs: each node's agent holds a session, and the launcher that coordinates a job."""

    def __init__(self, stream: Stream, address: str, jobs: Sequence[str], nodes: int, clock: Clock) -> None:
        self._stream = stream
        self._address = address
        self._clock = clock
        self._stop = threading.Event()
        self._rng = np.random.default_rng(7)
        self._schemas = wire.Schemas()
        self._normal = np.stack([self._rng.normal(*GPU_NORMALS.get(name, (100.0, 3.0)), GPUS).astype(np.float32) for name in NAMES], axis=1)
        self.late_s = 0.0
        """By how much the writer has fallen behind its clock at worst."""
        self.jobs = {
            name: PaperJob(name, [f"node-{index:05}" for index in range(place, nodes, len(jobs))], clock, self._append)
            for place, name in enumerate(jobs)
        }
        self.agents = PaperSessions(address, [node for job in self.jobs.values() for node in job.nodes])
        self._loop = asyncio.new_event_loop()
        self._clients: list[ControlClient] = []
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._loop.run_forever)]

    def start(self) -> None:
        """Telemetry and sessions."""
        for job in self.jobs.values():
            job.begin("start")
        for thread in self._threads:
            thread.start()
        self._in_loop(self._connect())
        self.agents.start()

    def stop(self) -> None:
        """End both."""
        self._stop.set()
        self.agents.stop()
        self._threads[0].join(END_S)
        with contextlib.suppress(TimeoutError):
            self._in_loop(self._disconnect(), END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads[1].join(END_S)

    # --- telemetry -----------------------------------------------------------------------------------------------

    def _append(self, key: str, value: bytes) -> None:
        self._append_all([(key, value)])

    def _append_all(self, items: Sequence[tuple[str, bytes]]) -> None:
        """Until the stream takes them; what comes twice is dropped."""
        while not self._stop.is_set():
            try:
                self._stream.append(OBSERVATIONS, items)
            except StreamUnavailable:
                continue
            return

    def _write(self) -> None:
        number, due = 0, self._clock.monotonic()
        while not self._stop.is_set():
            number += 1
            for job in self.jobs.values():
                items: list[tuple[str, bytes]] = []
                moves = job.running and self._clock.now() >= job.resumes
                for node in job.nodes:
                    items += self._records(job, node, number, moves)
                job.step += moves
                for begin in range(0, len(items), AT_ONCE):
                    self._append_all(items[begin : begin + AT_ONCE])
            due += 1.0
            self.late_s = max(self.late_s, self._clock.monotonic() - due)
            self._stop.wait(max(0.0, due - self._clock.monotonic()))

    def _records(self, job: PaperJob, node: str, number: int, moves: bool) -> list[tuple[str, bytes]]:
        now = self._clock.now()
        gpus = Reading(source="gpu", kind=Kind.GPU, entities=tuple(f"{node}-GPU-{slot}" for slot in range(GPUS)), names=NAMES, matrix=self._normal, time=now)
        rows = int(moves)
        steps = StepReading(
            source="training", workers=tuple(f"{job.run}/{node}/{slot}" for slot in range(GPUS)), names=STEP_NAMES,
            numbers=np.full(rows, job.step, dtype=np.int64), epochs=np.full(rows, job.epoch, dtype=np.int64),
            ends=np.full((rows, GPUS), now), values=np.tile(np.array([1.0, 4096.0, 2.0]), (rows, GPUS, 1)),
        )  # fmt: skip
        known = len(list(self._schemas))
        blocks = tuple(Block(schema_id=self._schemas.schema_of(reading).id, reading=reading) for reading in (gpus, steps))
        new = list(self._schemas)[known:]
        if number == 1 and node == job.nodes[0]:
            new = list(self._schemas)
        batch = Batch(node=node, incarnation="paper", job=job.name, number=number, time=now, blocks=blocks)
        return [*((job.name, wire.encode(schema)) for schema in new), (job.name, wire.encode(batch))]

    # --- sessions ------------------------------------------------------------------------------------------------

    def _in_loop(self, work: Coroutine[Any, Any, None], seconds: float = 60.0) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    async def _connect(self) -> None:
        self._clients = [self._coordinator(job) for job in self.jobs.values()]
        for client in self._clients:
            await client.start()

    async def _disconnect(self) -> None:
        await asyncio.gather(*(client.stop() for client in self._clients))

    def _coordinator(self, job: PaperJob) -> ControlClient:
        peer = Peer(role="launcher", node=job.nodes[0], job=job.name, incarnation=f"launcher-{job.run}", address="127.0.0.1:1")

        def on_state(state: ConnectionState) -> None:
            if state.connected:
                asyncio.get_running_loop().create_task(self._report(client, job))  # it reports again at the next session

        async def on_command(command: Command) -> Body:
            return await asyncio.to_thread(job.obey, command)

        client = ControlClient(self._address, peer, on_command=on_command, on_state=on_state)
        return client

    async def _report(self, client: ControlClient, job: PaperJob) -> None:
        try:
            await client.request("layout", {"layout": job.layout, "heal": "none", "budget_left": 0, "nodes_min": 1})
        except EagleEyeError:
            return  # the session is gone again, and the next one reports anew


class PaperSessions:
    """The sessions of the agents of all nodes, in a process of their own."""

    def __init__(self, address: str, nodes: Sequence[str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.nodes = len(nodes)
        self._open = context.Value("i", 0)
        self._process = context.Process(target=_hold_sessions, args=(address, list(nodes), self._open), daemon=True)

    @property
    def complete(self) -> bool:
        """Every node has its session."""
        return bool(self._open.value == self.nodes)

    def start(self) -> None:
        self._process.start()

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _hold_sessions(address: str, nodes: Sequence[str], open_: Any) -> None:
    asyncio.run(_hold(address, nodes, open_))


async def _hold(address: str, nodes: Sequence[str], open_: Any) -> None:
    connected: set[str] = set()

    def client_of(node: str) -> ControlClient:
        def on_state(state: ConnectionState) -> None:
            (connected.add if state.connected else connected.discard)(node)
            open_.value = len(connected)

        return ControlClient(address, Peer(role="agent", node=node, incarnation=f"agent-{node}"), on_state=on_state)

    for client in [client_of(node) for node in nodes]:
        await client.start()
    await asyncio.Event().wait()
