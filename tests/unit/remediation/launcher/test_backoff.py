"""A job that keeps failing waits before it is started again, and fails in the end; one that makes progress is started at once."""

import pytest

from eagle_eye.clock import FakeClock
from fakes.elastic_coordinator import Job as ElasticJob
from fakes.elastic_coordinator import only
from remediation.launcher.coordinator.backoff import Backoff
from remediation.launcher.coordinator.coordinator import Coordinator, Effects, JobDeclaration, JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    CommandResult,
    EmitEvent,
    End,
    EndWorkers,
    ForkWorkers,
    Prepare,
    RegroupWorkers,
    Start,
)
from remediation.launcher.coordinator.coordinator_facts import WorkerDied
from remediation.launcher.coordinator.failure_signature import FailureSignature
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.coordinator.membership import Member

DAY_S = 86_400.0


class Job:
    """A job of restarts on one node whose launcher votes and starts at once."""

    def __init__(self, heal: str = "restart:100", **declaration: object) -> None:
        self.clock = FakeClock()
        given = {"job": "t/n/r", "node": "n0", "min_nodes": 1, "max_nodes": 1, "patience_s": 5.0} | declaration
        self.coordinator = Coordinator(JobDeclaration(**given), HealBudget(parse_heal(heal), self.clock), self.clock)  # type: ignore[arg-type]
        self.follow(self.coordinator.joined(Member(node="n0", address="n0:1", slots=2, incarnation="b")))
        assert self.phase is JobPhase.RUNNING

    @property
    def phase(self) -> JobPhase:
        return self.coordinator.phase

    def follow(self, effects: Effects) -> Effects:
        """The launcher votes for the epoch that is formed, and starts its workers."""
        if only(effects, Prepare):
            effects = [*effects, *self.coordinator.acknowledged("n0", self.coordinator.epoch)]
            effects += self.coordinator.started(self.coordinator.epoch)
        return effects

    def die(self, step: int = -1, code: int | None = -9, **more: object) -> Effects:
        return self.follow(self.coordinator.learn(WorkerDied(epoch=self.coordinator.epoch, worker="r/n0/0", code=code, step=step, cause="e", **more)))  # type: ignore[arg-type]

    def pass_time(self, seconds: float) -> Effects:
        self.clock.advance(seconds)
        return self.follow(self.coordinator.tick())

    def wait_s(self, step: int = -1, **more: object) -> float:
        """How long it waits after this death; it runs again afterwards."""
        self.die(step, **more)  # type: ignore[arg-type]
        if self.phase is JobPhase.RUNNING:
            return 0.0
        assert self.phase is JobPhase.BACKOFF
        seconds = self.coordinator.restart_in_s
        assert seconds is not None
        assert not only(self.pass_time(seconds - 0.01), Start), "not before its time"
        assert only(self.pass_time(0.02), Start)
        return seconds


def test_without_progress_the_delays_double_up_to_a_minute() -> None:
    job = Job()
    assert [job.wait_s(step=7) for _ in range(9)] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_workers_that_mark_no_steps_back_off_too_unless_they_live_long() -> None:
    job = Job()
    assert [job.wait_s() for _ in range(3)] == [0.0, 1.0, 2.0]
    job.pass_time(599.0)
    assert job.wait_s() == 4.0
    job.pass_time(601.0)
    assert [job.wait_s() for _ in range(2)] == [0.0, 1.0]


def test_a_step_beyond_those_before_the_failure_is_progress_and_steps_done_again_are_not() -> None:
    job = Job()
    assert [job.wait_s(step=40), job.wait_s(step=35), job.wait_s(step=36)] == [0.0, 1.0, 2.0]
    assert [job.wait_s(step=41), job.wait_s(step=41)] == [0.0, 1.0]


def test_no_delay_grows_without_bound() -> None:
    backoff = Backoff(FakeClock(), 1.0, 60.0, 600.0)
    assert {backoff.failed() for _ in range(5000)} == {0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0}


def test_who_waits_says_for_what_and_for_how_long_and_ends_what_is_left_of_the_workers() -> None:
    job = Job()
    job.die(step=7)
    effects = job.die(step=7)
    event = only(effects, EmitEvent)[0]
    assert (event.name, event.attributes["seconds"], event.attributes["kind"], event.attributes["cause"]) == ("restart.delayed", "1", "worker ended by SIGKILL", "e")
    assert "started again in 1 s: worker ended by SIGKILL, without progress" in event.message
    assert only(effects, EndWorkers)[0].nodes == ("n0",)


def test_a_person_who_stops_the_job_while_it_waits_does_not_wait() -> None:
    job = Job()
    job.die(step=7)
    job.die(step=7)
    assert only(job.coordinator.stop("c"), End)[0].code == 130
    assert job.pass_time(60.0) == []


@pytest.mark.parametrize("own", [True, False])
def test_a_command_does_not_wait_and_a_restart_that_was_paid_for_is_not_charged_again(own: bool) -> None:
    job = Job(heal="restart:2")
    job.die(step=7)
    job.die(step=7)
    spent = job.coordinator.budget.spent
    effects = job.follow(job.coordinator.restart("c", own=own))
    assert only(effects, Start)
    assert only(effects, CommandResult)[0].error == ""
    assert job.coordinator.budget.spent == spent
    assert job.pass_time(60.0) == [], "the delay is over with it"


def test_what_a_person_has_changed_is_started_at_once_when_it_fails_again() -> None:
    job = Job()
    for _ in range(4):
        job.wait_s(step=40)
    job.follow(job.coordinator.restart("c", resume_step=10))
    assert job.wait_s(step=20) == 0.0


def test_the_same_exception_that_is_told_while_the_job_waits_ends_it() -> None:
    job = Job()
    failure = FailureSignature(type="ValueError", message="x", frame="train.py:3 in load", step=9)
    job.die(step=7, failure=failure)
    job.die(step=7, code=1, symptom=True)
    assert job.phase is JobPhase.BACKOFF
    told = job.coordinator.learn(WorkerDied(epoch=job.coordinator.epoch, worker="r/n0/1", code=1, failure=failure))
    assert "the program or its data fails" in only(told, End)[0].reason


@pytest.mark.parametrize("order", ["finished first", "needed first"])
def test_a_worker_that_ends_with_zero_at_the_same_step_again_while_the_others_need_it_ends_the_job(order: str) -> None:
    job = Job()
    for _ in range(2):
        epoch = job.coordinator.epoch
        if order == "finished first":
            job.coordinator.worker_finished("r/n0/1", epoch, 9)
        told = job.die(step=9, code=1, symptom=True)
        if order == "needed first":
            told = job.coordinator.worker_finished("r/n0/1", epoch, 9)
    (end,) = only(told, End)
    assert end.reason.startswith("exit code 0 while the other workers needed it, step 9: the same as of worker r/n0/1 in epoch 1, now of worker r/n0/1")
    assert "the program or its data fails" in end.reason


@pytest.mark.parametrize(
    ("steps", "died_at", "symptom"),
    [((9, 19), (9, 19), True), ((2, 2), (50, 60), True), ((9, 9), (9, 9), False)],
    ids=["another step", "the others had gone on", "it died of something of its own"],
)
def test_twin_an_end_with_zero_that_is_not_what_the_others_died_of_ends_no_job(steps: tuple[int, int], died_at: tuple[int, int], symptom: bool) -> None:
    job = Job()
    for step, at in zip(steps, died_at, strict=True):
        job.coordinator.worker_finished("r/n0/1", job.coordinator.epoch, step)
        assert not only(job.die(step=at, code=1, symptom=symptom), End)


def test_a_node_that_is_lost_and_returns_while_the_job_waits_takes_part() -> None:
    job = Job()
    job.die(step=7)
    job.die(step=7)
    job.coordinator.left("n0")
    job.coordinator.joined(Member(node="n0", address="n0:1", slots=2, incarnation="b"))
    assert only(job.pass_time(1.1), Start)[0].layout.nodes == ("n0",)


# --- elastic workers ------------------------------------------------------------------------------------------------------


def test_the_others_train_on_while_the_replacement_of_a_worker_that_keeps_dying_waits() -> None:
    job = ElasticJob().running()
    told = job.agree(job.die("r/n0/1"))
    assert only(told, ForkWorkers)[0].slots == (1,), "the first one is replaced at once"
    assert only(job.die("r/n0/1"), ForkWorkers) == []
    assert job.coordinator.phase is JobPhase.RUNNING
    assert job.coordinator.training
    assert only(job.pass_time(0.9), ForkWorkers) == []
    assert only(job.pass_time(0.2), ForkWorkers)[0].slots == (1,)
    delayed = only(job.die("r/n0/1"), EmitEvent)[0]
    assert (delayed.name, delayed.attributes["worker"], delayed.attributes["seconds"]) == ("replacement.delayed", "r/n0/1", "2")


def test_a_worker_that_has_committed_a_step_is_replaced_at_once_each_time() -> None:
    job = ElasticJob().running()
    for _ in range(5):
        assert only(job.agree(job.die("r/n0/1")), ForkWorkers)[0].slots == (1,)
        job.agree(job.enter("r/n0/1"))
        job.coordinator.resumed("r/n0/1", job.epoch, 0.0, ())


def test_other_workers_are_replaced_at_once_while_one_waits() -> None:
    job = ElasticJob(slots=4).running()
    job.agree(job.die("r/n0/1"))
    job.die("r/n0/1")
    assert only(job.agree(job.die("r/n0/2")), ForkWorkers)[0].slots == (2,)


def test_a_resize_does_not_wait_for_a_worker_that_kept_dying() -> None:
    job = ElasticJob().running()
    job.agree(job.die("r/n0/1"))
    job.die("r/n0/1")
    assert only(job.coordinator.resize("c", {"n0": 3}), ForkWorkers)[0].slots == (1,)


def test_elastic_workers_of_which_none_survives_are_restarted_with_back_off() -> None:
    job = ElasticJob(slots=2).running()
    for seconds in (0.0, 1.0, 2.0):
        job.die("r/n0/0", step=3)
        effects = job.die("r/n0/1", step=3)
        if seconds:
            assert only(effects, EmitEvent)[0].attributes["seconds"] == f"{seconds:g}"
            effects = job.pass_time(seconds)
        assert not only(effects, Prepare)[0].layout.in_place
        job.votes("n0")
        job.coordinator.started(job.epoch)
        for worker in job.layout.workers:
            effects = job.enter(worker)
        assert only(job.agree(effects), RegroupWorkers)


def test_new_workers_that_all_die_before_they_have_met_are_paid_for_and_do_not_restart_for_ever() -> None:
    job = ElasticJob(slots=1, heal="in-place:2")
    job.join("n0")
    job.votes("n0")
    job.coordinator.started(job.epoch)
    told: Effects = []
    for _ in range(4):
        job.enter("r/n0/0")
        told = job.die("r/n0/0", code=-9)
        told += job.pass_time(60.0) if job.coordinator.phase in {JobPhase.BACKOFF, JobPhase.SPENT} else []
        if only(told, End):
            break
        assert not only(told, Prepare)[-1].layout.in_place
        job.votes("n0")
        job.coordinator.started(job.epoch)
    assert "it has done so 2 times within 1h" in only(told, End)[0].reason


def test_one_of_several_new_workers_that_dies_before_they_have_met_does_not_restart_the_others() -> None:
    job = ElasticJob(slots=2, heal="in-place:2")
    job.join("n0")
    job.votes("n0")
    job.coordinator.started(job.epoch)
    job.enter("r/n0/0")
    job.enter("r/n0/1")
    job.die("r/n0/1", code=-9)
    job.votes("n0")
    job.holdings()
    regroup = only(job.pass_time(0.006), RegroupWorkers)[0]
    assert regroup.layout.workers == ("r/n0/0",)


def test_a_worker_that_is_not_replaced_any_more_is_not_said_to_be() -> None:
    job = ElasticJob(respawns=1).running()
    job.agree(job.die("r/n0/1"))
    assert job.die("r/n0/1") == []
    assert job.pass_time(60.0) == []
