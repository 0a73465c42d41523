"""Elastic workers under random faults: each epoch is valid once, and without the dead."""

import random

import pytest

from fakes.elastic_coordinator import Job
from remediation.launcher.coordinator.coordinator import Effects, JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    AskGrant,
    DismissWorker,
    ExcludeWorker,
    ForkWorkers,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
    Start,
)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_each_epoch_is_valid_once_and_without_the_dead(seed: int) -> None:
    chance = random.Random(seed)
    job = Job(nodes=3, slots=2, heal="in-place:1000").running()
    world = World(job, chance)
    for _ in range(150):
        world.something_happens()
    world.calm_down()
    assert job.coordinator.phase in {JobPhase.RUNNING, JobPhase.WAITING, JobPhase.SPENT, JobPhase.ENDED}
    assert len(world.valid) == len(set(world.valid)), "no number is valid twice"
    assert world.valid == sorted(world.valid)


class World:
    """Launchers that answer late and in any order, workers that die, stall, break and join."""

    def __init__(self, job: Job, chance: random.Random) -> None:
        self.job, self.chance = job, chance
        self.valid: list[int] = []
        self.alive = set(job.layout.workers)
        self.pending: list[object] = []
        self.stalled: set[str] = set()
        self.incarnations = 0

    def something_happens(self) -> None:
        chance = self.chance
        roll = chance.random()
        if roll < 0.08 and len(self.alive) > 1:
            self.kill(chance.choice(sorted(self.alive)))
        elif roll < 0.10 and self.job.coordinator.serving:
            self.take(self.job.coordinator.stalled(self.job.layout.epoch, {chance.choice(self.job.coordinator.serving): 0.6}))
        elif roll < 0.12 and self.job.coordinator.serving:
            self.take(self.job.coordinator.broken(chance.choice(self.job.coordinator.serving), self.job.layout.epoch))
        elif roll < 0.14:
            self.part(chance.choice(["n1", "n2"]), anew=chance.random() < 0.3)
        elif roll < 0.16:
            self.let_out_or_in(chance.choice(["n1", "n2"]))
        elif roll < 0.24:
            self.take(self.job.pass_time(chance.choice([0.001, 0.004, 0.006, 0.25, 1.2])))
        elif self.pending:
            self.answer(self.pending.pop(chance.randrange(len(self.pending))))

    def calm_down(self) -> None:
        """Everything that was asked is answered, and time goes on."""
        for _ in range(400):
            while self.pending:
                self.answer(self.pending.pop(0))
            self.come_back()
            self.take(self.job.pass_time(0.3))

    def part(self, node: str, anew: bool) -> None:
        """A launcher's session breaks; the launcher comes back, or is started again without its workers."""
        if not self.job.coordinator.members[node].connected:
            return
        self.take(self.job.coordinator.left(node))
        self.take(self.job.coordinator.no_progress())
        self.pending.append(("back", node))
        if anew:
            gone = {worker for worker in self.alive if worker.split("/")[1] == node}
            self.alive -= gone
            self.pending = [("anew", node)] + [each for each in self.pending if not self.is_of(each, node)]

    def let_out_or_in(self, node: str) -> None:
        """By command."""
        coordinator = self.job.coordinator
        self.take(coordinator.release("c", node) if node in coordinator.evicted else coordinator.restart("c", exclude=(node,)))

    def ends(self, worker: str) -> None:
        """It was told to go: some time it has."""
        if worker in self.alive:
            self.alive.discard(worker)
            self.stalled.discard(worker)
            self.pending.append(("gone", worker, self.job.pids[worker]))

    def is_of(self, asked: object, node: str) -> bool:
        return isinstance(asked, tuple) and (asked[1] == node or f"/{node}/" in asked[1])

    def come_back(self) -> None:
        """A launcher that took too long joins again, with the workers that it still has."""
        for node, member in self.job.coordinator.members.items():
            if not member.connected:
                self.rejoin(node)

    def rejoin(self, node: str, incarnation: str = "b") -> None:
        living = [worker for worker in sorted(self.alive - self.stalled) if worker.split("/")[1] == node]
        self.take(self.job.join(node, incarnation, last=self.job.layout, elastic=tuple(map(self.job.join_request, living))))

    def kill(self, worker: str) -> None:
        self.alive.discard(worker)
        self.stalled.discard(worker)
        self.take(self.job.die(worker))

    def take(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, RegroupWorkers):
                self.valid.append(effect.layout.epoch)
                assert set(effect.layout.workers) <= self.alive - self.stalled
                assert not self.job.coordinator.evicted & set(effect.layout.nodes), "who is out has no worker in it"
                for worker in effect.leaving:
                    self.ends(worker)
                self.job.steps |= dict.fromkeys(effect.layout.workers, effect.transition.step)
            elif isinstance(effect, Start):
                self.valid.append(effect.layout.epoch)
                self.alive = set()
                self.stalled.clear()
                self.pending = [("enter", place.worker) for place in effect.layout.placements]
            elif isinstance(effect, DismissWorker):
                self.ends(effect.worker)
            elif isinstance(effect, ExcludeWorker):
                self.stalled.add(effect.worker)
            if isinstance(effect, Prepare | ForkWorkers | ExcludeWorker | HaltWorkers | AskGrant):
                self.pending.append(effect)

    def answer(self, asked: object) -> None:
        coordinator = self.job.coordinator
        match asked:
            case ("enter", str(worker)):
                self.alive.add(worker)
                self.stalled.discard(worker)
                self.take(self.job.enter(worker))
            case ("back" | "anew" as how, str(node)):
                if how == "anew" or not coordinator.members[node].connected:
                    self.incarnations += how == "anew"
                    self.rejoin(node, f"again{self.incarnations}" if how == "anew" else "b")
            case ("gone", str(worker), int(pid)):
                self.take(coordinator.exited(worker, pid))
            case ("vote", str(node), int(epoch)):
                self.take(coordinator.acknowledged(node, epoch))
            case ("held", str(node), int(epoch)):
                held = [worker for worker in coordinator.registry.entered if worker in self.alive and worker.split("/")[1] == node]
                self.take(coordinator.held(epoch, tuple(self.job.holding(worker) for worker in held)))
            case _:
                self.obey(asked)

    def obey(self, effect: object) -> None:
        match effect:
            case Prepare():
                for node in effect.nodes:
                    self.pending += [("vote", node, effect.layout.epoch), ("held", node, effect.layout.epoch)]
            case AskGrant():
                self.take(self.job.coordinator.granted(effect.layout.epoch, False, heard=True))
            case ForkWorkers():
                self.pending += [("enter", f"r/{effect.node}/{slot}") for slot in effect.slots]
            case ExcludeWorker() if self.chance.random() < 0.5:
                self.pending.append(("enter", effect.worker))
            case ExcludeWorker() if effect.worker in self.alive:
                self.kill(effect.worker)
            case HaltWorkers():
                for worker in sorted(self.alive):
                    self.take(self.job.coordinator.exited(worker, self.job.pids[worker]))
