"""A coordinator of a job whose workers are not elastic, and the launchers that a test makes join it."""

from eagle_eye.clock import FakeClock
from eagle_eye.types import Layout, NodePlace
from remediation.launcher.coordinator.coordinator import Coordinator, Effects, JobDeclaration, JobPhase
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.coordinator.membership import Member


class Job:
    """A coordinator, its clock, and launchers that acknowledge when they are told to."""

    def __init__(self, nodes: int = 2, heal: str = "restart:3", last: Layout | None = None, lost: tuple[str, ...] = (), **declaration: object) -> None:
        self.clock = FakeClock()
        given = {"job": "t/n/r", "node": "n0", "min_nodes": 1, "max_nodes": nodes} | declaration
        self.coordinator = Coordinator(JobDeclaration(**given), HealBudget(parse_heal(heal), self.clock), self.clock, last, lost)  # type: ignore[arg-type]

    def join(self, *nodes: str, incarnation: str = "b", last: Layout | None = None, promised: int = 0, place: NodePlace | None = None) -> Effects:
        effects: Effects = []
        for node in nodes:
            member = Member(node=node, address=f"{node}:1", slots=2, incarnation=f"{node}-{incarnation}", place=place or NodePlace())
            effects += self.coordinator.joined(member, last, promised)
        return effects

    def acknowledge(self, *nodes: str) -> Effects:
        epoch = self.coordinator.epoch
        return [effect for node in nodes for effect in self.coordinator.acknowledged(node, epoch)]

    def running(self, *nodes: str) -> "Job":
        """Bring it up on these nodes."""
        self.join(*nodes)
        self.acknowledge(*nodes)
        self.coordinator.started(self.coordinator.epoch)
        assert self.coordinator.phase is JobPhase.RUNNING
        return self

    def pass_time(self, seconds: float) -> Effects:
        self.clock.advance(seconds)
        return self.coordinator.tick()

    @property
    def layout(self) -> Layout:
        assert self.coordinator.last is not None
        return self.coordinator.last


def only(effects: Effects, kind: type) -> list:
    return [effect for effect in effects if isinstance(effect, kind)]


def layout_of(*nodes: str, epoch: int = 4, excluded: tuple[str, ...] = (), restarts: int = 0) -> Layout:
    return Layout(
        job="t/n/r", epoch=epoch, time=0.0, coordinator=nodes[0], launchers={node: f"{node}:1" for node in nodes},
        placements=(), excluded=excluded, restarts=restarts,
    )  # fmt: skip
