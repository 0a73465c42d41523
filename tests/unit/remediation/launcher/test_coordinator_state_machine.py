"""The coordinator's table of transitions: it is whole, what it allows is what happens, and its drawing shows it."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle_eye.clock import FakeClock
from eagle_eye.types import Layout, WorkerStateReport
from remediation.launcher.coordinator import coordinator_facts
from remediation.launcher.coordinator.coordinator import Coordinator, Effects, JobDeclaration, JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    AskGrant,
    End,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
    Start,
)
from remediation.launcher.coordinator.coordinator_state_machine import TRANSITIONS, Ignored, TableEntry, edges
from remediation.launcher.coordinator.failure_signature import FailureSignature
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.coordinator.membership import Member
from remediation.launcher.coordinator.worker_registry import JoinRequest

DRAWING = Path(__file__).parents[4] / "docs" / "architecture.md"
NODES, SLOTS = ("n0", "n1", "n2"), 2
SEEDS, FACTS = 300, 250


class Walk:
    """A coordinator to which anything may happen at any moment: late, twice, in any order."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.clock = FakeClock()
        heal = self.chance.choice(["", "none", "restart:2", "in-place:3", "in-place:1000"])
        declaration = JobDeclaration(
            job="t/n/r", node="n0", min_nodes=self.chance.choice([1, 2]), max_nodes=3, min_workers=self.chance.choice([1, 2, 3]),
            respawns=self.chance.choice([-1, -1, 0, 1]), patience_s=self.chance.choice([0.0, 5.0]), wait_nodes_s=60.0,
        )  # fmt: skip
        last = self._old_layout() if self.chance.random() < 0.3 else None
        self.coordinator = Coordinator(declaration, HealBudget(parse_heal(heal), self.clock), self.clock, last, ("n2",) if last and self.chance.random() < 0.5 else ())
        self.steps: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self.elastic = self.chance.random() < 0.8
        self.calm = self.chance.choice([0.75, 0.9, 0.97])
        self.incarnations: dict[str, int] = {}
        self.keys = self.asked = 0

    def _old_layout(self) -> Layout:
        return Layout(job="t/n/r", epoch=4, time=0.0, coordinator="n2", launchers={node: f"{node}:1" for node in ("n2", "n0", "n1")}, placements=())

    def fact(self) -> Effects:
        """Any one of them; those without which no job gets on come more often."""
        rare, usual = self.chance.random(), [self.joins, self.votes, self.votes, self.started, self.enters, self.holds, self.holds, self.resumed, self.time]
        return self.chance.choice(usual if rare < self.calm else [
            self.joins, self.leaves, self.refuses, self.grants, self.dies, self.had_failed, self.nothing_moves, self.finishes, self.finishes_early, self.breaks, self.stalls,
            self.stuck, self.leaving, self.exits, self.saves, self.restarts, self.releases, self.rebalances, self.resizes, self.time,
            *([self.stops] if rare > (0.9 if self.coordinator.phase is JobPhase.BACKOFF else 0.998) else []),
        ])()  # fmt: skip

    # --- whom and when ------------------------------------------------------------------------------------------------

    def node(self) -> str:
        return self.chance.choice(NODES)

    def worker(self) -> str:
        known = list(self.coordinator.serving) or [f"r/{self.node()}/{self.chance.randrange(SLOTS)}"]
        return self.chance.choice(known) if self.chance.random() < 0.8 else f"r/{self.node()}/{self.chance.randrange(SLOTS)}"

    def epoch(self) -> int:
        return max(0, self.coordinator.epoch - self.chance.choice([0, 0, 0, 0, 1]))

    def key(self) -> str:
        self.keys += 1
        return f"c{self.keys}"

    def request(self, worker: str) -> JoinRequest:
        _, node, slot = worker.split("/")
        pid = self.pids.setdefault(worker, 100 + len(self.pids))
        return JoinRequest(worker=worker, node=node, slot=int(slot), pid=pid, micro_batches=8, layers=(10, 20), segments=1)

    # --- facts --------------------------------------------------------------------------------------------------------

    def joins(self) -> Effects:
        node, anew = self.node(), self.chance.random() < 0.1
        if anew:  # the launcher was started again, without workers
            self.incarnations[node] = self.incarnations.get(node, 0) + 1
            self.pids = {worker: pid for worker, pid in self.pids.items() if worker.split("/")[1] != node}
        last = None if anew else self.coordinator.last
        living = [worker for worker in self.pids if worker.split("/")[1] == node]
        member = Member(node=node, address=f"{node}:1", slots=SLOTS, incarnation=f"{node}-{self.incarnations.get(node, 0)}")
        return self.coordinator.joined(member, last, self.chance.choice([0, self.coordinator.epoch]), tuple(map(self.request, living)))

    def leaves(self) -> Effects:
        return self.coordinator.left(self.node())

    def votes(self) -> Effects:
        epoch, asked = self.epoch(), NODES if self.chance.random() < 0.5 else (self.node(),)
        return [effect for node in asked for effect in self.coordinator.acknowledged(node, epoch)]

    def refuses(self) -> Effects:
        return self.coordinator.refused(self.epoch(), self.epoch() + self.chance.randrange(3))

    def grants(self) -> Effects:
        epoch, self.asked = self.asked, 0  # nobody answers a question that was not asked
        return self.coordinator.granted(epoch, self.chance.random() < 0.5, self.chance.random() < 0.5)

    def started(self) -> Effects:
        return self.coordinator.started(self.epoch())

    def nothing_moves(self) -> Effects:
        return self.coordinator.no_progress()

    def finishes(self) -> Effects:
        return self.coordinator.finished(self.node(), self.epoch()) if not self.elastic and self.chance.random() < 0.2 else []

    def finishes_early(self) -> Effects:
        return [] if self.elastic else self.coordinator.worker_finished(self.worker(), self.epoch(), self.chance.choice([-1, 3]))

    def dies(self) -> Effects:
        if not self.elastic:
            return self.coordinator.died(self.epoch(), "e", self.chance.choice(["", "", "", "", "", "", "ImportError"]))
        worker = self.worker()
        self.steps.pop(worker, None)
        return self.coordinator.learn(coordinator_facts.WorkerDied(
            epoch=self.epoch(), worker=worker, pid=self.pids.pop(worker, 0), cause="e", step=self.chance.choice([-1, 3]),
            at_start=self.chance.choice([""] * 9 + ["ImportError"]), code=self.chance.choice([-9, -9, 1]),
        ))  # fmt: skip

    def had_failed(self) -> Effects:
        failure = FailureSignature(type="ValueError", message="x", frame="train.py:3 in load", step=self.chance.randrange(300))
        return self.coordinator.learn(coordinator_facts.LateFailure(epoch=self.epoch(), worker=self.worker(), cause="e", failure=failure))

    def enters(self) -> Effects:
        if not self.elastic:
            return []
        absent = [worker for worker in self.wanted() if worker not in self.pids]
        if absent or self.chance.random() < 0.05:
            return self._enter(self.chance.choice(absent or self.wanted()))
        return []

    def wanted(self) -> list[str]:
        """Workers that were started: the layout's, and those that were forked since."""
        last = self.coordinator.last
        return [*(last.workers if last is not None else ()), *self.coordinator.registry.awaited] or ["r/n0/0"]

    def _enter(self, worker: str) -> Effects:
        self.steps.pop(worker, None)
        self.pids.pop(worker, None)
        return self.coordinator.entered(self.request(worker))

    def holds(self) -> Effects:
        forming = self.coordinator.forming
        if forming is None:
            return []
        silent = tuple(worker for worker in forming.workers if self.chance.random() < 0.02)
        held = tuple(self._holding(worker) for worker in forming.workers if worker not in silent and self.chance.random() < 0.9)
        return self.coordinator.held(self.epoch(), held, silent)

    def _holding(self, worker: str) -> WorkerStateReport:
        fresh = worker not in self.steps
        phase = "starting" if fresh else "computing"
        return WorkerStateReport(worker=worker, node=worker.split("/")[1], step=self.steps.get(worker, 0), fresh=fresh, phase=phase)

    def breaks(self) -> Effects:
        sender = self.chance.choice(["", "", self.worker()])
        return self.coordinator.broken(self.worker(), self.epoch(), sender, (0,) if sender else ())

    def stalls(self) -> Effects:
        return self.coordinator.stalled(self.epoch(), {self.worker(): 0.6})

    def stuck(self) -> Effects:
        return self.coordinator.stuck(self.epoch())

    def leaving(self) -> Effects:
        return self.coordinator.leaving(self.worker(), self.epoch()) if self.chance.random() < 0.1 else []

    def exits(self) -> Effects:
        told = sorted(self.coordinator.registry.done | self.coordinator.registry.leaving)  # others do not end with code 0
        worker = self.chance.choice(told) if told else ""
        return self.coordinator.exited(worker, self.pids.pop(worker, 0)) if worker else []

    def saves(self) -> Effects:
        return self.coordinator.saving(self.worker(), 3, self.chance.choice(["", "no room"]), "")

    def resumed(self) -> Effects:
        worker, epoch = self.worker(), self.epoch()
        timings = {"group_s": 0.1, "bytes": 5.0} | ({"loaded_step": 1.0} if self.chance.random() < 0.1 else {})
        return self.coordinator.regrouped(worker, epoch, timings) + self.coordinator.resumed(worker, epoch, 0.1, (1,))

    def restarts(self) -> Effects:
        some = self.chance.choice([{}, {"exclude": (self.node(),)}, {"release": (self.node(),)}, {"workers": (self.worker(),)}, {"resume_step": 2}, {"skip": (5,)}])
        return self.coordinator.restart(self.key(), own=self.chance.random() < 0.3, **some)

    def releases(self) -> Effects:
        return self.coordinator.release(self.key(), self.node())

    def rebalances(self) -> Effects:
        return self.coordinator.rebalance(self.key(), {self.worker(): float(self.chance.choice([0, 1, 3]))})

    def resizes(self) -> Effects:
        return self.coordinator.resize(self.key(), {self.node(): self.chance.randrange(4)}) if self.coordinator.demand.get("workers_per_node") else []

    def stops(self) -> Effects:
        return self.coordinator.stop(self.key())

    def time(self) -> Effects:
        self.clock.advance(self.chance.choice([0.006, 0.006, 0.25, 0.25, 1.1, 3.1, 30.0 if self.chance.random() < 0.1 else 0.001]))
        return self.coordinator.tick()

    def learn_from(self, effects: Effects) -> None:
        """Regrouped workers are at the step of their transition; the leader may answer a question."""
        for effect in effects:
            if isinstance(effect, AskGrant):
                self.asked = effect.layout.epoch
            if isinstance(effect, RegroupWorkers):
                self.steps |= dict.fromkeys(effect.layout.workers, effect.transition.step)
            elif isinstance(effect, Start):
                self.steps.clear()
                self.pids.clear()


class Witness:
    """Stands between the coordinator and its table: sees each change of state."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.seen: set[tuple[type[coordinator_facts.Fact], JobPhase]] = set()
        self.changes: set[tuple[JobPhase, JobPhase]] = set()
        self._coordinator = coordinator
        self._learn: Callable[[coordinator_facts.Fact], Effects] = coordinator.learn
        coordinator.learn = self.learn  # type: ignore[method-assign]

    def learn(self, fact: coordinator_facts.Fact) -> Effects:
        before = self._coordinator.phase
        effects = self._learn(fact)
        after, entry = self._coordinator.phase, TRANSITIONS[type(fact)][before]
        self.seen.add((type(fact), before))
        if after is not before:
            assert isinstance(entry, TableEntry)
            assert after in entry.to, f"{type(fact).__name__} leads from {before} to {after}, which the table does not allow"
            self.changes.add((before, after))
        if isinstance(entry, Ignored):
            assert not effects
        return effects


def kinds_of_facts() -> set[type[coordinator_facts.Fact]]:
    """All that the module defines, without the classes that only group them."""
    groups = {coordinator_facts.Fact, coordinator_facts.JobCommand, coordinator_facts.Timeout}
    return {kind for kind in vars(coordinator_facts).values() if isinstance(kind, type) and issubclass(kind, coordinator_facts.Fact)} - groups


def test_every_pair_of_a_state_and_a_fact_has_a_transition_or_a_reason() -> None:
    assert TRANSITIONS.keys() == kinds_of_facts()
    for row in TRANSITIONS.values():
        assert row.keys() == set(JobPhase)
        assert all(entry.reason for entry in row.values() if isinstance(entry, Ignored))


def test_the_end_is_final() -> None:
    assert not [edge for edge in edges() if edge[0] is JobPhase.ENDED]


def test_the_drawing_shows_the_table() -> None:
    block = re.search(r"^## The coordinator\n.*?```mermaid\nstateDiagram-v2\n(.*?)```", DRAWING.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    drawn = {(JobPhase[source], JobPhase[target]) for source, target in re.findall(r"^\s*([A-Z]+) --> ([A-Z]+)", block[1], re.MULTILINE)}
    assert drawn == edges()


def test_whatever_happens_epochs_rise_and_each_is_valid_once_with_the_layout_that_was_agreed_on() -> None:
    seen: set[tuple[type[coordinator_facts.Fact], JobPhase]] = set()
    changes: set[tuple[JobPhase, JobPhase]] = set()
    for seed in range(SEEDS):
        walk = Walk(seed)
        witness = Witness(walk.coordinator)
        check(walk)
        seen |= witness.seen
        changes |= witness.changes
    assert len({kind for kind, _ in seen}) >= len(kinds_of_facts()) - 3, "the walk comes almost everywhere"
    assert len(changes) >= len(edges()) - 7, "the rare ones have tests of their own"


def check(walk: Walk) -> None:
    prepared: dict[int, Layout] = {}
    valid: list[int] = []
    highest, over = 0, False
    for _ in range(FACTS):
        effects = walk.fact()
        walk.learn_from(effects)
        for effect in effects:
            assert not over or not isinstance(effect, Prepare | Start | RegroupWorkers | HaltWorkers | AskGrant | End), "the job is over"
            if isinstance(effect, Prepare | AskGrant):
                assert effect.layout.epoch >= highest, "epoch numbers never fall"
                highest = effect.layout.epoch
                prepared[highest] = effect.layout
            elif isinstance(effect, Start | RegroupWorkers):
                valid.append(effect.layout.epoch)
                asked = prepared[effect.layout.epoch]
                assert set(effect.layout.workers) <= set(asked.workers), "no epoch starts that was not voted on"
                assert effect.layout == walk.coordinator.last
                assert not set(effect.layout.nodes) & walk.coordinator.evicted
        over = over or any(isinstance(effect, End) for effect in effects)
    assert valid == sorted(set(valid)), "at most one epoch of a number is valid"


@pytest.mark.parametrize("phase", JobPhase)
def test_every_state_but_the_end_can_be_left(phase: JobPhase) -> None:
    assert phase is JobPhase.ENDED or [to for source, to in edges() if source is phase]
