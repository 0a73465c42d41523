"""One schedule from its first second to its last: nodes, server, links, what is done to them, and what must hold."""

import itertools
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from eagle_eye.types import Layout, RankPlacement, digest_of
from remediation.launcher.worker.worker_process import Worker

from .network import Links, SimulatedServer
from .node import SIGKILL, Disk, Node, SimulatedWorkers
from .schedule import CALM_S, FIRST_S, TROUBLE_S, Ambush, Fault, Schedule, family
from .server import MemoryLedger, ServerProcess
from .sides import Sides
from .virtual_time import VirtualTime

ONE_EPOCH, ONE_WRITER, GOES_ON, NO_HARM, NOBODY_LEFT, NO_ERROR = INVARIANTS = (
    "at most one epoch of a number is valid",
    "at most one writer of a checkpoint",
    "some side goes on if one has a majority",
    "no worker is killed while its epoch is valid",
    "whoever was cut off takes part again",
    "nothing fails within a launcher",
)


@dataclass(frozen=True, slots=True)
class Violation:
    """Of one of the invariants."""

    invariant: str
    text: str

    def __str__(self) -> str:
        return f"{self.invariant}: {self.text}"


STEP_S = 0.5
STALL_S = 3.0
"""A job whose training nobody has hurt does not stand for so long."""


@dataclass(slots=True)
class Group:
    """The workers of an epoch."""

    layout: Layout
    workers: dict[str, Worker] = field(default_factory=dict)
    steps: int = 0
    hurt: bool = False
    """A training fact: a worker died, a node of it is cut off from another, or another launcher came to join."""


class World:
    """`run` returns the violations."""

    def __init__(self, schedule: Schedule, home: Path) -> None:
        self.schedule = schedule
        self.job = "t/j/r"
        self.time = VirtualTime()
        self.chance = random.Random(schedule.seed + 1)
        self.links = Links(self.time, self.chance)
        self.data = Links(self.time, self.chance)
        self.servers: dict[str, SimulatedServer] = {}
        self.nodes: dict[str, Node] = {}
        self.disks = {name: Disk(home / name) for name in schedule.nodes}
        self.groups: dict[int, Group] = {}
        self.violations: list[Violation] = []
        self.told: list[str] = []
        """What happened, for a replay."""
        self.sides = Sides(self)
        self.faults: list[Fault] = []
        """All that were planned."""
        self._sprung: set[Ambush] = set()
        self._home = home
        self._ledger = MemoryLedger()
        self._server: ServerProcess | None = None
        self._terms = itertools.count(1)
        self._lives = itertools.count(1)
        self._pids = itertools.count(1000)
        self._evaluates = False
        self._last_step_s = 0.0
        self._trained: set[int] = set()
        self._frozen: set[str] = set()
        self._dark: set[str] = set()

    # --- the run --------------------------------------------------------------------------------------------------

    def run(self) -> list[Violation]:
        """Until its end."""
        if self.schedule.server:
            self._start_server()
        for name in self.schedule.nodes:
            self.time.call_later(self.chance.random(), partial(self._start, name))
        for fault in self.schedule.faults:
            self._plan(fault)
        for begin, seconds in self.schedule.pauses:
            self.time.call_at(begin, lambda: self._pause(True))
            self.time.call_at(begin + seconds, lambda: self._pause(False))
        self.time.call_later(STEP_S, self._step)
        self.time.run(TROUBLE_S)
        self._mend_all()
        self.time.run(TROUBLE_S + CALM_S)
        if self.time.now_s - self._last_step_s > STALL_S and not self._over:
            self._violated(GOES_ON, f"nobody goes on: the last step was made at {self._last_step_s:.1f} s, and everything is whole since {TROUBLE_S:g} s")
        elif not self._over:
            self._check_whole()
        for node in self.nodes.values():
            for failure in node.loop.failures:
                self._violated(NO_ERROR, f"a task of {node.name} failed: {failure}")
        return self.violations

    def _check_whole(self) -> None:
        """Nothing has been hurt for a long time."""
        for text in self.sides.overtaken():
            self._violated(ONE_WRITER, text)
        for text in self.sides.left_behind():
            self._violated(NOBODY_LEFT, text)

    def hurt_machine(self, name: str) -> bool:
        """It does nothing, and answers nobody."""
        return name in self._dark or name in self._frozen

    @property
    def _over(self) -> bool:
        return any(node.ended == "the job is over" for node in self.nodes.values())

    def close(self) -> None:
        self.time.close()

    def note(self, text: str) -> None:
        self.told.append(f"{self.time.now_s:7.3f} {text}")

    def _violated(self, invariant: str, text: str) -> None:
        self.note(f"VIOLATED {text}")
        self.violations.append(Violation(invariant, text))

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self, name: str) -> None:
        before = self.nodes.get(name)
        if before is not None and before.alive and not before.ended:
            return
        self.note(f"the launcher on {name} starts")
        slots = self.schedule.slots[self.schedule.nodes.index(name)]
        self.nodes[name] = Node(self, name, slots, self._home, self.disks[name], f"{name}-{next(self._lives)}")
        for group in self.groups.values():
            group.hurt = True  # it may be taken in
        self.sides.changed()

    def _start_server(self) -> None:
        self.note("the server starts")
        self._server = ServerProcess(self, self._ledger, next(self._terms))

    def launcher_ended(self, node: Node) -> None:
        """By itself. Its workers go with it; an operator starts it again."""
        self.note(f"the launcher on {node.name} ends: {node.ended}")
        self._end_launcher(node)
        if node.ended != "the job is over":
            self.time.call_later(3.0, lambda: self._start(node.name))

    def _end_launcher(self, node: Node) -> None:
        self.servers.pop(f"{node.name}:7000", None)
        node.crash()
        self._hurt_groups_of(node.name)
        self.sides.changed()

    def _hurt_groups_of(self, name: str) -> None:
        for group in self.groups.values():
            if name in group.layout.nodes:
                group.hurt = True

    # --- faults -------------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        self.note(f"begins: {fault.kind} of {', '.join(fault.nodes) or 'all'}")
        self.sides.changed()
        everybody = {*self.schedule.nodes, "server"}
        sides = [(one, other) for one in fault.nodes for other in everybody - set(fault.nodes)]
        both = {pair for one, other in sides for pair in ((one, other), (other, one))}
        match fault.kind:
            case "cut":
                self.links.cut |= both
            case "split":
                self.links.cut |= both
                self.data.cut |= both
            case "parted":
                self.links.cut, self.data.cut = set(both), set(both)
            case "one way":
                self.links.cut.add((fault.nodes[0], fault.nodes[1]))
            case "loss":
                self.links.loss = 0.3
            case "delay":
                self.links.delay_s = 0.7
            case "server crash" if self._server is not None:
                self._server.crash()
                self._server = None
            case "server pause" if self._server is not None:
                self._server.loop.paused = True
            case _:
                for name in fault.nodes:
                    self._strike_node(fault.kind, name)
        self._note_cut_groups()
        self.sides.changed()

    def voted(self, name: str, epoch: int) -> None:
        """A launcher has written down a vote: it may be what an ambush waits for."""
        self.note(f"{name} votes for epoch {epoch}")
        for ambush in self.schedule.ambushes:
            if ambush not in self._sprung and (ambush.node, ambush.epoch) == (name, epoch):
                self._sprung.add(ambush)
                for fault in ambush.faults:
                    self._plan(replace(fault, begin=self.time.now_s + fault.begin))

    def _plan(self, fault: Fault) -> None:
        end = min(fault.begin + fault.seconds, TROUBLE_S)
        if fault.begin < end:
            self.faults.append(fault)
            self.time.call_at(fault.begin, partial(self._strike, fault))
            self.time.call_at(end, partial(self._heal, fault))

    def _strike_node(self, kind: str, name: str) -> None:
        node = self.nodes.get(name)
        if kind == "disk full":
            self.disks[name].full = True
        if node is None or not node.alive:
            return
        if kind in ("pause", "node pause"):
            node.loop.paused = True
        if kind == "node pause":
            self._frozen.add(name)
            self._hurt_groups_of(name)
        if kind == "machine":
            self._dark.add(name)
        if kind in ("launcher crash", "machine", "torn votes"):
            self._end_launcher(node)
        if kind == "torn votes" and name != "n0":  # where the job is begun at its rendezvous somebody has to look at it
            self.disks[name].tear()
        if kind in ("worker", "kernel") and node.workers is not None:
            self._strike_workers(node, node.workers, kind)

    def _strike_workers(self, node: Node, workers: SimulatedWorkers, kind: str) -> None:
        if kind == "kernel":
            workers.held = True
        for worker in workers.running[:1] if kind == "worker" else ():
            self._hurt_groups_of(node.name)
            self._kill(node, workers, worker)

    def _kill(self, node: Node, workers: SimulatedWorkers, worker: Worker) -> None:
        if node.loop.paused:  # the kernel ends it, and its launcher hears of it once it thaws
            worker.status, worker.noticed = SIGKILL, True
            node.loop.call_soon(lambda: node.member.worker_ended(worker, SIGKILL))
        else:
            node.deliver(lambda: workers.die(worker, SIGKILL))

    def _heal(self, fault: Fault) -> None:
        self.note(f"ends: {fault.kind} of {', '.join(fault.nodes) or 'all'}")
        if any(each is not fault and family(each) == family(fault) and self._lasts(each) for each in self.faults):
            return  # all of a family end together
        match family(fault):
            case "cut":
                self.links.cut.clear()
                self.data.cut.clear()
            case "loss":
                self.links.loss = 0.0
            case "delay":
                self.links.delay_s = 0.0
            case "server crash" | "server pause":
                self._heal_server()
            case _:
                for name in fault.nodes:
                    self._heal_node(name)
        self.sides.changed()

    def _lasts(self, fault: Fault) -> bool:
        return fault.begin <= self.time.now_s < fault.begin + fault.seconds

    def _heal_server(self) -> None:
        if self._server is not None:
            self._server.loop.paused = False
        elif self.schedule.server:
            self._start_server()

    def _heal_node(self, name: str) -> None:
        self.disks[name].full = False
        self._dark.discard(name)
        self._frozen.discard(name)
        node = self.nodes.get(name)
        if node is None or not node.alive:
            self._start(name)
            return
        node.loop.paused = False
        if node.workers is not None:
            node.workers.let_go()

    def _mend_all(self) -> None:
        self.links.cut.clear()
        self.data.cut.clear()
        self.links.loss = self.links.delay_s = 0.0
        self._heal_server()
        for name in self.schedule.nodes:
            self._heal_node(name)
        self._pause(False)
        self.sides.changed()
        self.note("everything is whole")

    def _pause(self, on: bool) -> None:
        self._evaluates = on
        self.sides.changed()

    # --- training ----------------------------------------------------------------------------------------------------

    def started(self, layout: Layout) -> None:
        """A launcher starts its workers of an epoch."""
        group = self.groups.get(layout.epoch)
        if group is None:
            group = self.groups[layout.epoch] = Group(layout)
            self.note(f"epoch {layout.epoch} of {layout.coordinator}: {', '.join(layout.nodes)} ({layout.reason})")
        elif digest_of(group.layout) != digest_of(layout):
            self._violated(ONE_EPOCH, f"two layouts of epoch {layout.epoch} are valid: {group.layout.coordinator}'s and {layout.coordinator}'s")

    def fork(self, layout: Layout, place: RankPlacement) -> Worker:
        worker = Worker(
            place=place, epoch=layout.epoch, born=layout.epoch, pid=next(self._pids), start_time=1, secret="", log=self._home / "log", log_from=0,
            ring=self._home, socket=self._home, began=self.time.now_s,
        )  # fmt: skip
        self.groups[layout.epoch].workers[place.worker] = worker
        return worker

    def killed(self, node: Node, workers: list[Worker]) -> None:
        """A launcher ends workers that run."""
        epoch = workers[0].epoch
        group = self.groups[epoch]
        self.note(f"{node.name} ends its workers of epoch {epoch}")
        newer = any(number > epoch for number in self.groups)
        nodes = group.layout.nodes
        joins = len(nodes) < self.schedule.max_nodes and any(each.alive and each.name not in nodes for each in self.nodes.values())
        if not (group.hurt or newer or joins or node.ended):
            self._violated(NO_HARM, f"{node.name} ended its workers of epoch {epoch}, which nobody had hurt")
        if not (newer or node.ended) and self.sides.alone(node.name, epoch):
            self._violated(NO_HARM, f"{node.name} ended its workers of epoch {epoch}, though too few launchers can be reached to begin another one")

    def steps_of(self, worker: Worker) -> int:
        return self.groups[worker.epoch].steps

    def waits(self, node: Node, name: str) -> bool:
        """Whether a worker is seen to wait for its peers: it cannot step, and it is not the one that evaluates."""
        worker = node.workers.find(name) if node.workers is not None else None
        if worker is None:
            return False
        return not (self._evaluates and worker.place.rank == 0) and not self._steps(self.groups[worker.epoch])

    def unacknowledged(self, name: str, host: str) -> bool:
        """Whether the kernel on one node gets no answer from the other's."""
        return host in self._dark or not self.data.whole(name, host)

    async def refused(self, name: str, address: str) -> bool:
        """Whether a machine that can be reached says that nobody listens there."""
        host = address.rpartition(":")[0]
        return host not in self._dark and self.links.whole(name, host) and address not in self.servers

    def _note_cut_groups(self) -> None:
        for group in self.groups.values():
            nodes = group.layout.nodes
            if any(not self.data.whole(one, other) for one in nodes for other in nodes if one != other):
                group.hurt = True

    def _steps(self, group: Group) -> bool:
        """Whether its workers can complete a step now."""
        nodes = group.layout.nodes
        there = len(group.workers) == len(group.layout.placements) and all(worker.running for worker in group.workers.values())
        apart = any(not self.data.whole(one, other) for one in nodes for other in nodes if one != other)
        return there and not apart and not (set(nodes) & (self._frozen | self._dark))

    def _step(self) -> None:
        self.time.call_later(STEP_S, self._step)
        self.sides.look()
        able = [group for group in self.groups.values() if self._steps(group)]
        if self._evaluates:
            self._last_step_s = self.time.now_s
            return
        for group in able:
            group.steps += 1
            self._last_step_s = self.time.now_s
            epoch = group.layout.epoch
            if self._trained and max(self._trained) > epoch:
                self._violated(ONE_WRITER, f"epoch {epoch} makes a step after one of epoch {max(self._trained)}: two groups write")
            self._trained.add(epoch)
        if able:
            self.sides.trains()
        elif side := self.sides.stuck():
            self._violated(GOES_ON, f"{', '.join(sorted(side))} are a majority, nothing has happened to them for long, and they do not train")
            self.sides.changed()
        newest = self.groups[max(self.groups)] if self.groups else None
        quiet = self.time.now_s - max(self._last_step_s, FIRST_S)
        if self.schedule.harmless and newest is not None and not newest.hurt and quiet > STALL_S and not able:
            self._violated(GOES_ON, f"epoch {newest.layout.epoch} stands though nobody has hurt it")
            newest.hurt = True


@contextmanager
def world_of(schedule: Schedule) -> Iterator[World]:
    """In a directory of memory."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as home:
        world = World(schedule, Path(home))
        try:
            yield world
        finally:
            world.close()
