"""A coordinator of elastic workers, with launchers and workers of paper that do what they are told when a test lets them."""

from eagle_eye.clock import FakeClock
from eagle_eye.types import Layout, WorkerStateReport
from remediation.launcher.coordinator.coordinator import Coordinator, Effects, JobDeclaration
from remediation.launcher.coordinator.coordinator_effects import Prepare, RegroupWorkers
from remediation.launcher.coordinator.coordinator_facts import WorkerDied
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.coordinator.membership import Member
from remediation.launcher.coordinator.worker_registry import JoinRequest

MICRO_BATCHES = 8


class Job:
    """A coordinator, and launchers with workers that do what they are told when a test lets them."""

    def __init__(self, nodes: int = 1, slots: int = 3, heal: str = "", **declaration: object) -> None:
        self.clock = FakeClock()
        self.slots = slots
        given = {"job": "t/n/r", "node": "n0", "min_nodes": 1, "max_nodes": nodes} | declaration
        self.coordinator = Coordinator(JobDeclaration(**given), HealBudget(parse_heal(heal), self.clock), self.clock)  # type: ignore[arg-type]
        self.coordinator.server_is(False)
        self.pids: dict[str, int] = {}
        self.steps: dict[str, int] = {}
        self._last_pid = 100

    # --- the start ----------------------------------------------------------------------------------------------------

    def join(self, node: str, incarnation: str = "b", last: Layout | None = None, elastic: tuple[JoinRequest, ...] = ()) -> Effects:
        member = Member(node=node, address=f"{node}:1", slots=self.slots, incarnation=f"{node}-{incarnation}")
        return self.coordinator.joined(member, last, 0, elastic)

    def running(self) -> "Job":
        """All nodes have joined, all workers have met."""
        nodes = [f"n{number}" for number in range(self.coordinator.declaration.max_nodes)]
        for node in nodes:
            self.join(node)
        self.votes(*nodes)
        self.coordinator.started(self.epoch)
        for worker in self.layout.workers:
            effects = self.enter(worker)
        self.agree(effects)
        assert self.layout.in_place
        return self

    def join_request(self, worker: str) -> JoinRequest:
        _, node, slot = worker.split("/")
        return JoinRequest(worker=worker, node=node, slot=int(slot), pid=self.pids[worker], micro_batches=MICRO_BATCHES, layers=(10, 20), segments=1)

    def enter(self, worker: str) -> Effects:
        self._last_pid += 1
        self.pids[worker] = self._last_pid
        self.steps.pop(worker, None)
        return self.coordinator.entered(self.join_request(worker))

    # --- what launchers answer ----------------------------------------------------------------------------------------

    def votes(self, *nodes: str) -> Effects:
        return [effect for node in nodes for effect in self.coordinator.acknowledged(node, self.epoch)]

    def holding(self, worker: str) -> WorkerStateReport:
        fresh = worker not in self.steps
        return WorkerStateReport(worker=worker, node=worker.split("/")[1], step=self.steps.get(worker, 0), fresh=fresh, phase="starting" if fresh else "computing")

    def holdings(self, *but: str) -> Effects:
        held = tuple(self.holding(worker) for worker in self.forming.workers if worker not in but)
        return self.coordinator.held(self.epoch, held)

    def agree(self, effects: Effects) -> Effects:
        """Everybody votes and holds; the workers of the epoch are at its step afterwards."""
        assert only(effects, Prepare)
        self.votes(*self.forming.launchers)
        told = self.holdings()
        if not told:
            self.clock.advance(0.006)
            told = self.coordinator.tick()
        for regroup in only(told, RegroupWorkers):
            told += self.coordinator.started(regroup.layout.epoch)
            self.steps |= dict.fromkeys(regroup.layout.workers, regroup.transition.step)
        return told

    def die(self, worker: str, **more: object) -> Effects:
        return self.coordinator.learn(WorkerDied(epoch=self.layout.epoch, worker=worker, pid=self.pids[worker], cause="e", **more))  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> Effects:
        self.clock.advance(seconds)
        return self.coordinator.tick()

    @property
    def epoch(self) -> int:
        return self.coordinator.epoch

    @property
    def forming(self) -> Layout:
        assert self.coordinator.forming is not None
        return self.coordinator.forming

    @property
    def layout(self) -> Layout:
        assert self.coordinator.last is not None
        return self.coordinator.last


def only(effects: Effects, kind: type) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]
