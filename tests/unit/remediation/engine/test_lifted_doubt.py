"""What was given up because too little spoke against the accused is done once enough does; evidence that rises and falls begins it again a few times at most."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from eagle_eye.types import Culprit, Entity, Evidence, Finding, IncidentState, Kind, Mode
from fakes.synthetic_job import incident
from fakes.world import World
from remediation.engine.repair_planner import RESUMED_MOST

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
MakeWorld = Callable[..., World]


def part(job: str, detector: str, since: float) -> Finding:
    evidence = (Evidence(text="it stands in its code"),)
    return Finding(id=detector, revision=1, detector=detector, digest="d", job=job, entity=WORKER, kind="worker.stalled", score=0.9, since=since, time=since, evidence=evidence, active=True)


class Accused:
    """A world whose next repair is an eviction, and an incident whose culprit is as sure as it is told to be."""

    def __init__(self, world: World) -> None:
        world.run(8)
        self.world, self._since, self._revision = world, world.clock.now() - 6.0, 0

    def tell(self, score: float, detectors: tuple[str, ...] = ()) -> None:
        self._revision += 1
        told = incident(self.world.job, "python hang", WORKER, since=self._since, revision=self._revision)
        parts = tuple(part(self.world.job.name, detector, self._since) for detector in detectors)
        self.world.engine.receive_incidents([replace(told, culprits=(Culprit(entity=WORKER, confidence=score, score=score),), parts=parts)])

    @property
    def evicted(self) -> bool:
        return ("evict_node", "done") in self.world.outcomes()

    @property
    def given_up(self) -> int:
        return sum(plan.action == "notify" and "is needed to evict" in plan.reason for plan in self.world.ledger.plans(incident="i1"))


@pytest.fixture
def accused(make_world: MakeWorld) -> Accused:
    return Accused(make_world(Mode.AUTO, receiver="http://127.0.0.1:1/", rank_swap=False, attempts={"restart_worker": 0, "swap_ranks": 0, "evict_node": 3}))


def test_doubt_that_lifts_brings_the_eviction_back(accused: Accused) -> None:
    accused.tell(0.45)
    accused.world.run(40)
    assert (accused.evicted, accused.world.state()) == (False, IncidentState.FAILED)
    accused.tell(0.9)
    accused.world.run(40)
    assert (accused.evicted, accused.world.state()) == (True, IncidentState.HEALED)


def test_twin_a_score_that_rises_and_is_still_too_low_begins_nothing_again(accused: Accused) -> None:
    for score in (0.2, 0.3, 0.49):
        accused.tell(score)
        accused.world.run(20)
    assert (accused.evicted, accused.given_up) == (False, 1)


def test_twin_what_the_guard_would_refuse_still_is_not_begun_again(accused: Accused) -> None:
    accused.tell(0.45, ("straggler",))
    accused.world.run(20)
    told = len(accused.world.ledger.plans(incident="i1"))
    accused.tell(0.6, ("straggler",))
    accused.world.run(20)
    assert (accused.evicted, len(accused.world.ledger.plans(incident="i1"))) == (False, told)


def test_twin_what_was_impossible_for_want_of_nodes_is_not_begun_again_by_surer_evidence(accused: Accused) -> None:
    job = accused.world.engine._state.job(accused.world.job.name)
    job.nodes_min, before = 2, job.nodes_min
    accused.tell(0.8)
    accused.world.run(20)
    job.nodes_min = before
    accused.tell(0.9)
    accused.world.run(20)
    assert not accused.evicted


def test_evidence_that_does_not_last_evicts_nobody_and_is_looked_at_a_few_times_at_most(accused: Accused) -> None:
    accused.tell(0.45)
    accused.world.run(20)
    for _ in range(20):
        accused.tell(0.9)
        accused.world.run(0.5)
        accused.tell(0.45)
        accused.world.run(5)
    assert (accused.evicted, accused.given_up) == (False, 1 + RESUMED_MOST)


def test_what_the_guard_refused_of_one_detector_is_done_when_a_second_says_so(accused: Accused) -> None:
    accused.tell(0.6, ("straggler",))
    accused.world.run(40)
    assert not accused.evicted
    accused.tell(0.6, ("straggler", "stall"))
    accused.world.run(40)
    assert accused.evicted


def test_twin_what_was_given_up_for_another_reason_is_not_begun_again_by_surer_evidence(make_world: MakeWorld) -> None:
    accused = Accused(make_world(Mode.AUTO, receiver="http://127.0.0.1:1/", rank_swap=False, attempts={"restart_worker": 0, "swap_ranks": 0, "evict_node": 0}))
    accused.tell(0.45)
    accused.world.run(40)
    told = len(accused.world.ledger.plans(incident="i1"))
    accused.tell(0.9)
    accused.world.run(40)
    assert (accused.evicted, len(accused.world.ledger.plans(incident="i1"))) == (False, told)
