"""Workers of elastic jobs that nobody replaces, and what the server asks of the coordinator then."""

import pytest

from eagle_eye.types import Mode, PrecomputedPlan
from fakes.elastic_coordinator import Job, only
from remediation.launcher.coordinator.coordinator_effects import (
    CommandResult,
    EmitEvent,
    ForkWorkers,
    Prepare,
    RegroupWorkers,
)
from remediation.launcher.coordinator.worker_registry import ATTEMPTS


def lost(**declaration: object) -> Job:
    """Three workers, of which the middle one died."""
    job = Job(**declaration).running()  # type: ignore[arg-type]
    job.agree(job.die("r/n0/1"))
    return job


def test_without_replacements_the_slot_stays_empty_and_the_job_says_so() -> None:
    job = lost(respawns=0)
    assert job.coordinator.demand == {"declared": {"n0": 3}, "workers_per_node": {"n0": 2}, "weight": 1.0, "workers_min": 1}
    assert job.layout.workers == ("r/n0/0", "r/n0/2")
    assert not job.coordinator.registry.awaited


def test_so_many_as_were_allowed_are_replaced() -> None:
    job = lost(respawns=1)
    assert job.coordinator.registry.awaited == {"r/n0/1": "n0"}
    assert job.coordinator.demand["workers_per_node"] == {"n0": 3}
    job.agree(job.die("r/n0/2"))
    assert job.coordinator.demand["workers_per_node"] == {"n0": 2}


def test_a_resize_is_answered_once_the_new_worker_has_joined() -> None:
    job = lost(respawns=0)
    told = job.coordinator.resize("c", {"n0": 3})
    assert [fork.slots for fork in only(told, ForkWorkers)] == [(3,)], "the broken slot is not used again"
    assert not only(told, CommandResult)
    joined = job.agree(job.enter("r/n0/3"))
    assert [answer.command for answer in only(joined, CommandResult)] == ["c"]
    assert job.layout.workers == ("r/n0/0", "r/n0/2", "r/n0/3")
    assert job.coordinator.demand["workers_per_node"] == {"n0": 3}


def test_a_worker_that_cannot_be_started_leaves_the_job_as_it_was() -> None:
    job = Job().running()
    job.coordinator.resize("c", {"n0": 4})
    answers: list[CommandResult] = []
    for _ in range(ATTEMPTS + 1):
        job.pids["r/n0/3"] = 0
        answers += only(job.die("r/n0/3") + job.pass_time(60.0), CommandResult)
    assert [(answer.command, "could not be started" in answer.error) for answer in answers] == [("c", True)]
    assert job.coordinator.demand["workers_per_node"] == {"n0": 3}


def test_who_gives_lets_its_last_worker_go_between_two_steps() -> None:
    job = Job().running()
    effects = job.coordinator.resize("c", {"n0": 2})
    assert only(effects, Prepare)[0].soft
    told = job.agree(effects)
    assert only(told, RegroupWorkers)[0].leaving == ("r/n0/2",)
    assert job.coordinator.demand["workers_per_node"] == {"n0": 2}


@pytest.mark.parametrize(("changes", "spent"), [({}, "p1"), ({"allowed": False}, ""), ({"node": "n9"}, ""), ({"of": "t/other/r"}, ""), ({"epochs": {"t/n/r": 1}}, "")])
def test_a_death_says_which_standing_plan_it_makes_true(changes: dict[str, object], spent: str) -> None:
    job = Job().running()
    now = job.clock.now()
    usual = {"event": "worker lost", "of": "t/n/r", "node": "n0", "mode": Mode.AUTO, "epochs": {"t/n/r": job.epoch}, "allowed": True, "workers": {}}
    job.coordinator.keep_plans((PrecomputedPlan(id="p1", made=now, expires=now + 60, **{**usual, **changes}),))  # type: ignore[arg-type]
    told = job.agree(job.die("r/n0/1"))
    begun = next(tell for tell in only(told, EmitEvent) if tell.name == "epoch.started")
    assert (begun.attributes["plan"], begun.attributes["in_place"], begun.attributes["reason"]) == (spent, "1", "death")


def test_an_expired_plan_is_not_spent() -> None:
    job = Job().running()
    now = job.clock.now()
    job.coordinator.keep_plans((PrecomputedPlan(id="p1", event="worker lost", of="t/n/r", node="n0", mode=Mode.AUTO, epochs={"t/n/r": job.epoch}, allowed=True, workers={}, made=now, expires=now + 60),))
    job.clock.advance(61)
    told = job.agree(job.die("r/n0/1"))
    assert next(tell for tell in only(told, EmitEvent) if tell.name == "epoch.started").attributes["plan"] == ""


def test_a_job_that_is_not_elastic_asks_for_nothing() -> None:
    job = Job()
    job.join("n0")
    assert job.coordinator.demand == {}
