"""One node: its launcher's real code, its disk, and workers that train only while all of their epoch can."""

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from eagle_eye.activity.hang_verdict import Activity, ActivityKind
from eagle_eye.config import StallConfig
from eagle_eye.errors import ControlError
from eagle_eye.rpc.control_messages import Body
from eagle_eye.types import Layout
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.event_log import EventLog
from remediation.launcher.job_member import JobMember
from remediation.launcher.launcher_loss_witness import LauncherLossWitness, WorkerMarks
from remediation.launcher.launcher_settings import LauncherSettings
from remediation.launcher.participation import Participation
from remediation.launcher.vote_log import VoteLog, VoteRecord
from remediation.launcher.worker.worker_environment import StoreAddress
from remediation.launcher.worker.worker_process import Worker

from .network import Process, SimulatedNetwork
from .virtual_time import VirtualTime

SIGKILL = 9
LEASE_S = 1.0
STANDING_S = 8.0
"""Shorter than in a deployment, so that a schedule is."""
VERDICT_S = 1.2
"""A look into a process takes as long."""


class Disk:
    """Under one node's votes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.full = False

    def tear(self) -> None:
        """The machine lost its power in the middle of a write that an older file system did not order."""
        for path in (self.home / "votes").rglob("*.json"):
            path.write_bytes(path.read_bytes()[: len(path.read_bytes()) // 2])


class DiskVotes(VoteLog):
    """Votes on a disk that may be full."""

    def __init__(self, disk: Disk, job: str, node: str, voted: Callable[[int], None]) -> None:
        """`voted`: called with the number of each vote that is on disk."""
        self._disk = disk
        self._voted = voted
        super().__init__(disk.home, job, node)

    def _write(self, record: VoteRecord) -> None:
        if self._disk.full:
            raise ControlError(f"cannot write {self.path}: No space left on device; free space")
        before = self.record.promised
        super()._write(record)
        if record.promised > before:
            self._voted(record.promised)


class SimulatedWorkers:
    """As `Workers`, of processes that are not there."""

    noticed_s = 0.0
    highest_step = -1

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._workers: list[Worker] = []
        self.held = False
        """The kernel holds them: a kill does nothing for now."""

    @property
    def all(self) -> tuple[Worker, ...]:
        return tuple(self._workers)

    @property
    def running(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.running]

    @property
    def finished(self) -> bool:
        return False

    def find(self, name: str) -> Worker | None:
        return next((worker for worker in self._workers if worker.name == name), None)

    def step(self, _: Worker) -> str:
        return "1"

    def completed(self) -> int | None:
        return 1

    def oom_kill(self, _: Worker) -> None:
        return None

    def expect_end(self) -> None:
        for worker in self._workers:
            worker.order_end(self._node.time.now_s)

    async def start(self, layout: Layout, _store: StoreAddress, _max_restarts: int) -> None:
        self._node.world.started(layout)
        self._workers = [self._node.world.fork(layout, place) for place in layout.placements if place.node == self._node.name]

    async def stop(self, _grace_s: float = 0.0, *, after_death: bool = False) -> None:  # noqa: ARG002 - as `Workers` has it
        if self.running:
            self._node.world.killed(self._node, self.running)
        self.expect_end()
        await asyncio.sleep(0.01)
        while self.held:
            await asyncio.sleep(0.1)
            if not self.running:
                break
            raise TimeoutError("processes do not end though killed")
        for worker in self.running:
            worker.status, worker.noticed = SIGKILL, True

    def let_go(self) -> None:
        """By the kernel: what was killed ends."""
        self.held = False
        for worker in self.running:
            if worker.ordered:
                worker.status, worker.noticed = SIGKILL, True

    def die(self, worker: Worker, status: int) -> None:
        """By itself, or killed from outside."""
        if worker.running:
            worker.status = worker.end = status
            worker.noticed = True
            if not worker.ordered:
                self._node.member.worker_ended(worker, status)


class NoElastic:
    """As `ElasticNode` of a job whose workers are not elastic."""

    held = False
    living: tuple[Worker, ...] = ()

    def __init__(self) -> None:
        self.broken = lambda: None
        self.actions: dict[str, Any] = {}
        self.registry: list[Body] = []

    def worker_ended(self, _: Worker) -> None:
        pass

    def ended(self, _: str) -> None:
        pass


class NoFile:
    """As `JobFile`."""

    def write(self, *_: object) -> None:
        pass


class WorkersSight:
    """As `ActivityInspector`: a worker that cannot step is seen to wait for its peers, one in a pause to work."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._since: dict[str, float] = {}

    def watch(self, wanted: Iterator[tuple[str, int]]) -> None:
        names = {name for name, _ in wanted}
        self._since = {name: self._since.get(name, self._node.time.now_s) for name in names}

    def activity(self, name: str) -> Activity | None:
        since = self._since.get(name)
        if since is None or self._node.time.now_s - since < VERDICT_S:
            return None
        return Activity(ActivityKind.AWAITS_PEERS if self._node.world.waits(self._node, name) else ActivityKind.WORKING)

    def close(self) -> None:
        self._since.clear()


class Node(Process):
    """A launcher from its start to its end."""

    def __init__(self, world: Any, name: str, slots: int, home: Path, disk: Disk, incarnation: str) -> None:
        self.world, self.disk = world, disk
        self.time: VirtualTime = world.time
        super().__init__(name, self.time.loop(name))
        self.slots = slots
        self.ended = ""
        """Why it ended by itself."""
        self.workers: SimulatedWorkers | None = None
        self.votes: DiskVotes | None = None
        self._home = home
        self._incarnation = incarnation
        self.spawn(self._live())

    async def _live(self) -> None:
        world = self.world
        settings = LauncherSettings(
            job=world.job, node=self.name, nproc=max(1, self.slots), nnodes=(world.schedule.min_nodes, world.schedule.max_nodes), command=("train",),
            state_dir=self.disk.home, run_dir=self._home, address=f"{self.name}:7000", rendezvous="n0:7000", leader="server:7467" if world.schedule.server else "",
            heal="restart:1000", lease_s=LEASE_S, join_timeout_s=3.0, stall=StallConfig(standing_s=STANDING_S), console=False,
        )  # fmt: skip
        votes = self.votes = DiskVotes(self.disk, settings.job, self.name, partial(world.voted, self.name))
        log = EventLog(settings.job, self.name, self._incarnation, self.time, lambda *_: None)
        workers = self.workers = SimulatedWorkers(self)
        witness = LauncherLossWitness(
            self.time, LEASE_S, settings.stall, self._marks, WorkersSight(self),  # type: ignore[arg-type]  # as the real one
            lambda host: world.unacknowledged(self.name, host),
            lambda address: world.refused(self.name, address),
        )  # fmt: skip
        network = SimulatedNetwork(self.time, world.links, self, world.servers, LEASE_S)
        part = self.part = Participation(
            settings, network, votes, log, HealBudget(parse_heal(settings.heal), self.time), witness, self.time, incarnation=self._incarnation,
            make_store=self._store, roll_back=lambda _: None, check_way_back=lambda _: None,
        )  # fmt: skip
        self.member = JobMember(settings, workers, votes, NoFile(), log, part.report, part.reported, NoElastic())  # type: ignore[arg-type]
        part.bind(self.member)
        await part.start()
        tasks = [asyncio.create_task(begin()) for begin in part.loops.values()]
        awaited: list[asyncio.Future[Any]] = [*tasks, self.member.ended]
        done, _ = await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        errors = [each.exception() for each in done if not each.cancelled() and each.exception() is not None]
        self.ended = repr(errors[0]) if errors else "the job is over"
        for task in tasks:
            task.cancel()
        world.launcher_ended(self)

    async def _store(self) -> StoreAddress:
        return StoreAddress(host=self.name, port=1, served=False)

    def _marks(self) -> list[WorkerMarks]:
        running = self.workers.running if self.workers is not None else []
        return [WorkerMarks(worker.name, worker.pid, self.world.steps_of(worker), 0.5) for worker in running]

    def crash(self) -> None:
        """The launcher's process is gone; its workers go with it."""
        self.alive = False
        self.time.end(self.loop)
        for worker in self.workers.running if self.workers is not None else ():
            worker.status, worker.noticed = SIGKILL, True
