"""The heal budget: per window of time and per kind of failure, and bounded for all kinds together."""

from eagle_eye.clock import FakeClock
from eagle_eye.types import Layout
from fakes.elastic_coordinator import Job as ElasticJob
from fakes.elastic_coordinator import only
from remediation.launcher.coordinator.coordinator import Coordinator, Effects, JobDeclaration, JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    CommandResult,
    EmitEvent,
    End,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
    Start,
)
from remediation.launcher.coordinator.coordinator_facts import WorkerDied
from remediation.launcher.coordinator.failure_signature import FailureSignature
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.coordinator.membership import Member

DAY_S = 86_400.0
RESET = "connection refused or reset"


class Job:
    """A job of restarts on one node; its workers make a step of progress before each death, so that nothing backs off."""

    def __init__(self, heal: str, last: Layout | None = None) -> None:
        self.clock = FakeClock()
        declaration = JobDeclaration(job="t/n/r", node="n0", min_nodes=1, max_nodes=1)
        self.coordinator = Coordinator(declaration, HealBudget(parse_heal(heal), self.clock), self.clock, last)
        self.coordinator.server_is(False)
        self.step = 0
        self.follow(self.coordinator.joined(Member(node="n0", address="n0:1", slots=2, incarnation="b")))
        assert self.coordinator.phase is JobPhase.RUNNING

    def follow(self, effects: Effects) -> Effects:
        if only(effects, Prepare):
            effects = [*effects, *self.coordinator.acknowledged("n0", self.coordinator.epoch)]
            effects += self.coordinator.started(self.coordinator.epoch)
        return effects

    def die(self, code: int = -9, failure: FailureSignature | None = None) -> Effects:
        self.step += 1
        death = WorkerDied(epoch=self.coordinator.epoch, worker="r/n0/0", code=code, step=self.step, cause="e", failure=failure)
        return self.follow(self.coordinator.learn(death))

    def heals(self, code: int = -9, failure: FailureSignature | None = None) -> bool:
        return bool(only(self.die(code, failure), Start))

    @property
    def layout(self) -> Layout:
        assert self.coordinator.last is not None
        return self.coordinator.last


def exception(frame: str, step: int) -> FailureSignature:
    return FailureSignature(type="ValueError", message="x", frame=frame, step=step)


def test_a_worker_that_is_killed_once_a_day_for_a_week_is_healed_each_time() -> None:
    job = Job("restart:3")
    for _ in range(7):
        job.clock.advance(DAY_S)
        assert job.heals()
    assert job.coordinator.budget.spent == 1


def test_a_fourth_kill_within_the_hour_is_one_too_many_and_after_it_there_is_room_again() -> None:
    job = Job("restart:3")
    assert [job.heals() for _ in range(3)] == [True, True, True]
    job.clock.advance(3599.0)
    assert not job.heals()
    job = Job("restart:3")
    assert [job.heals() for _ in range(3)] == [True, True, True]
    job.clock.advance(3601.0)
    assert job.heals()


def missed_its_peer(job: Job) -> Effects:
    """The broken connection of a peer is told first; the workers are not started yet."""
    job.step += 1
    reset = WorkerDied(epoch=job.coordinator.epoch, worker="r/n0/1", code=1, step=job.step, cause="c", symptom=True, explained=RESET)
    return job.coordinator.learn(reset)


def died_meanwhile(job: Job, code: int) -> Effects:
    assert job.coordinator.last is not None
    return job.coordinator.learn(WorkerDied(epoch=job.coordinator.last.epoch, worker="r/n0/0", code=code, step=job.step, cause="e"))


def start(job: Job) -> Effects:
    return job.follow([Prepare(nodes=("n0",), layout=job.layout)])


def test_a_restart_for_a_broken_connection_is_charged_to_what_broke_it_once_that_is_told() -> None:
    job = Job("restart:2")
    missed_its_peer(job)
    assert job.coordinator.budget.spent_by_kind == {RESET: 1}
    assert died_meanwhile(job, -9) == []
    assert job.coordinator.budget.spent_by_kind == {"worker ended by SIGKILL": 1}
    (began,) = [event for event in only(start(job), EmitEvent) if event.name == "epoch.started"]
    assert began.attributes["cause"] == "e", "the death, not the connection that it broke"


def test_one_cause_gets_its_share_of_the_budget_whatever_is_told_of_it_first() -> None:
    job = Job("restart:2")
    assert [job.heals(), job.heals()] == [True, True]
    missed_its_peer(job)
    assert job.coordinator.phase is JobPhase.FORMING
    (exhausted,) = only(died_meanwhile(job, -9), EmitEvent)
    assert exhausted.message == "worker ended by SIGKILL, and the job may not heal itself again (--heal restart:2): it has done so 2 times within 1h after: worker ended by SIGKILL"
    assert job.coordinator.phase is JobPhase.SPENT


def test_twin_a_second_death_of_the_same_moment_is_charged_to_nothing() -> None:
    job = Job("restart:2")
    missed_its_peer(job)
    died_meanwhile(job, -9)
    died_meanwhile(job, -11)
    assert job.coordinator.budget.spent_by_kind == {"worker ended by SIGKILL": 1}


def test_twin_a_death_of_the_epoch_before_explains_no_connection_of_this_one() -> None:
    job = Job("restart:2")
    job.heals()
    missed_its_peer(job)
    job.coordinator.learn(WorkerDied(epoch=1, worker="r/n0/0", code=-9, step=1, cause="e"))
    assert job.coordinator.budget.spent_by_kind == {"worker ended by SIGKILL": 1, RESET: 1}


def test_the_window_is_what_the_command_line_says() -> None:
    job = Job("restart:1/30s")
    for _ in range(4):
        assert job.heals()
        job.clock.advance(31.0)


def test_three_causes_within_an_hour_are_each_healed() -> None:
    job = Job("restart:1")
    assert job.heals(-9)
    assert job.heals(1)
    assert job.heals(1, exception("train.py:3 in load", 40))
    assert not job.heals(-9), "the first one again"


def test_an_exception_is_one_cause_at_whatever_step_it_is_raised() -> None:
    job = Job("restart:2")
    assert job.heals(1, exception("train.py:3 in load", 40))
    assert job.heals(1, exception("train.py:3 in load", 50))
    assert not job.heals(1, exception("train.py:3 in load", 60))


def test_many_causes_together_do_not_restart_a_job_for_ever() -> None:
    job = Job("restart:2")
    healed = [job.heals(1, exception(f"train.py:{line} in load", line)) for line in range(20)]
    assert healed.count(True) == 6
    assert healed[:6] == [True] * 6


def test_a_job_that_is_exhausted_fails_and_says_of_what() -> None:
    job = Job("restart:2")
    job.die()
    job.die()
    event = only(job.die(), EmitEvent)[0]
    assert (event.name, event.attributes["heal"], event.attributes["restarts"], event.attributes["kind"]) == (
        "budget.exhausted", "restart:2", "2", "worker ended by SIGKILL",
    )  # fmt: skip
    reason = only(job.coordinator.tick(), End)[0].reason
    assert "worker ended by SIGKILL, and the job may not heal itself again (--heal restart:2): it has done so 2 times within 1h" in reason


def test_what_is_left_is_told_for_a_failure_of_another_kind() -> None:
    job = Job("restart:2")
    left = [job.coordinator.budget.left]
    for code in (-9, -9, 1, 1, 2, 2):
        assert job.heals(code)
        left.append(job.coordinator.budget.left)
    assert left == [2, 2, 2, 2, 2, 1, 0]
    started = only(Job("restart:2").die(), EmitEvent)[0]
    assert (started.name, started.attributes["budget_left"], started.attributes["restarts"]) == ("epoch.started", "2", "1")


def test_a_restart_that_the_server_charges_to_the_job_has_a_kind_of_its_own() -> None:
    job = Job("restart:1")
    assert job.heals()
    assert only(job.follow(job.coordinator.restart("c", own=True)), Start)
    refused = job.coordinator.restart("d", own=True)
    assert "exhausted" in only(refused, CommandResult)[0].error


def test_restarts_that_the_server_charges_for_different_causes_are_each_made() -> None:
    job = Job("restart:1")
    assert [bool(only(job.follow(job.coordinator.restart(f"c{number}", own=True, kind=kind)), Start)) for number, kind in enumerate(("python hang", "worker stopped"))] == [True, True]
    refused = job.coordinator.restart("d", own=True, kind="python hang")
    assert "1 times within 1h after: python hang" in only(refused, CommandResult)[0].error


def test_the_next_coordinator_knows_what_was_spent_on_what_and_for_how_long_it_counts() -> None:
    before = Job("restart:1")
    assert before.heals()
    after = Job("restart:1", last=before.layout)
    assert not after.heals(), "the same kind again"
    after = Job("restart:1", last=before.layout)
    assert after.heals(1), "another kind"
    after = Job("restart:1", last=before.layout)
    after.clock.advance(3601.0)
    assert after.heals()


def test_what_two_coordinators_know_of_is_counted_once() -> None:
    clock = FakeClock()
    budget = HealBudget(parse_heal("restart:3"), clock)
    budget.take("node lost")
    budget.inherit(3, {"node lost": 1, "worker ended by SIGKILL": 2}, age_s=600.0)
    budget.inherit(3, {"node lost": 1, "worker ended by SIGKILL": 2}, age_s=600.0)
    assert budget.spent_by_kind == {"node lost": 1, "worker ended by SIGKILL": 2}
    clock.advance(3001.0)
    assert budget.spent_by_kind == {"node lost": 1}


def test_a_clock_ahead_of_ours_makes_nothing_count_for_longer_than_a_window() -> None:
    clock = FakeClock()
    budget = HealBudget(parse_heal("restart:1"), clock)
    budget.inherit(1, {"node lost": 1}, age_s=-9000.0)
    assert budget.refusal("node lost")
    clock.advance(3601.0)
    assert not budget.refusal("node lost")


def test_elastic_workers_that_die_once_a_day_go_on_in_place_and_those_that_die_of_one_cause_again_and_again_save_and_end() -> None:
    job = ElasticJob(heal="in-place:1").running()
    for _ in range(3):
        job.clock.advance(DAY_S)
        assert only(job.agree(job.die("r/n0/1", code=-9)), RegroupWorkers)
        job.agree(job.enter("r/n0/1"))
    halt = only(job.agree(job.die("r/n0/1", code=-9)), HaltWorkers)[0]
    assert "worker ended by SIGKILL, and the job may not heal itself again (--heal in-place:1)" in halt.reason
