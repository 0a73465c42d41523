"""An exception that comes again: the job ends with it, or skips the step whose data raises it, as its user allows."""

import signal

import pytest
from msgspec.structs import replace

from eagle_eye.clock import FakeClock
from eagle_eye.exception_status import status_raised
from fakes.elastic_coordinator import Job as ElasticJob
from fakes.elastic_coordinator import only
from remediation.launcher.coordinator.coordinator import Coordinator, Effects, JobDeclaration, JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    EmitEvent,
    End,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
    Start,
)
from remediation.launcher.coordinator.coordinator_facts import LateFailure, WorkerDied
from remediation.launcher.coordinator.failure_signature import FailureSignature, other_cause, signature_of
from remediation.launcher.coordinator.heal_budget import HealBudget, parse_heal
from remediation.launcher.coordinator.membership import Member

FAILURE = FailureSignature(type="ValueError", message="x", frame="train.py:3 in load", step=9)


class Job:
    """A plain job of two workers on one node whose launcher votes and starts at once."""

    def __init__(self, skips: int, heal: str = "restart:10") -> None:
        self.clock = FakeClock()
        declaration = JobDeclaration(job="t/n/r", node="n0", min_nodes=1, max_nodes=1, max_skipped_steps=skips)
        self.coordinator = Coordinator(declaration, HealBudget(parse_heal(heal), self.clock), self.clock)
        self.follow(self.coordinator.joined(Member(node="n0", address="n0:1", slots=2, incarnation="b")))

    def follow(self, effects: Effects) -> Effects:
        if only(effects, Prepare):
            effects = [*effects, *self.coordinator.acknowledged("n0", self.coordinator.epoch)]
            effects += self.coordinator.started(self.coordinator.epoch)
        return effects

    def die(self, failure: FailureSignature = FAILURE, worker: str = "r/n0/0", epoch: int = 0) -> Effects:
        """And what becomes of it, also after a back-off."""
        died = WorkerDied(epoch=epoch or self.coordinator.epoch, worker=worker, code=1, step=failure.step, cause="e", failure=failure)
        effects = self.follow(self.coordinator.learn(died))
        if self.coordinator.phase is JobPhase.BACKOFF:
            self.clock.advance(60.0)
            effects = [*effects, *self.follow(self.coordinator.tick())]
        return effects

    def tell_late(self, epoch: int, worker: str = "r/n0/1", failure: FailureSignature = FAILURE) -> Effects:
        """A worker of an epoch that is over had raised it before its end was ordered."""
        return self.coordinator.learn(LateFailure(epoch=epoch, worker=worker, cause="f", failure=failure, step=failure.step))

    @property
    def skipped(self) -> tuple[int, ...]:
        assert self.coordinator.last is not None
        return self.coordinator.last.skipped


def events(effects: Effects, name: str) -> list[EmitEvent]:
    return [effect for effect in only(effects, EmitEvent) if effect.name == name]


def test_without_leave_to_skip_the_job_ends_with_the_exception() -> None:
    job = Job(skips=0)
    assert not only(job.die(), End)
    assert "the same as of worker r/n0/0 in epoch 1" in only(job.die(), End)[0].reason


def test_with_it_the_step_is_skipped_and_told_and_the_next_one_too_up_to_the_limit() -> None:
    job = Job(skips=1)
    job.die()
    assert job.skipped == (), "once may be chance"
    again = job.die()
    (told,) = events(again, "step.skipped")
    assert told.message == "step 9 is skipped from now on, 1 of 1 (--max-skipped-steps): ValueError: x, at train.py:3 in load, step 9"
    assert job.skipped == (9,)
    assert [event.attributes["skipped"] for event in events(again, "epoch.started")] == ["9"]
    other = replace(FAILURE, step=12)
    job.die(other)
    assert "1 steps are skipped already (--max-skipped-steps 1)" in only(job.die(other), End)[0].reason


def test_a_step_that_fails_although_its_data_is_skipped_ends_the_job() -> None:
    job = Job(skips=5)
    job.die()
    job.die()
    assert "although the batch of step 9 is drawn and skipped" in only(job.die(), End)[0].reason


def test_a_step_that_is_not_known_cannot_be_skipped() -> None:
    job = Job(skips=5)
    job.die(replace(FAILURE, step=-1))
    assert "the step is not known" in only(job.die(replace(FAILURE, step=-1)), End)[0].reason


def test_twin_peers_that_raise_it_before_the_workers_are_started_anew_do_not_end_the_job() -> None:
    """The first one of the second epoch shows that it is the data's; the others come while the epoch that skips it is being formed."""
    job = Job(skips=5)
    job.die()
    again = job.coordinator.epoch
    begun = [job.coordinator.learn(WorkerDied(epoch=again, worker=f"r/n0/{slot}", code=1, step=9, cause="e", failure=FAILURE)) for slot in range(3)]
    assert [len(events(effects, "step.skipped")) for effects in begun] == [1, 0, 0]
    assert not any(only(effects, End) for effects in begun)
    job.clock.advance(60.0)
    assert only(job.follow(job.coordinator.tick()), Start)
    assert job.skipped == (9,)


CLOSED = {"code": 1, "step": 9, "cause": "c", "symptom": True}


def test_what_was_raised_before_the_order_counts_though_the_next_epoch_runs() -> None:
    """The broken connections of the peers are told first, each time."""
    job = Job(skips=0)
    for epoch in (1, 2):
        job.follow(job.coordinator.learn(WorkerDied(epoch=epoch, worker="r/n0/0", **CLOSED)))  # type: ignore[arg-type]
        told = job.tell_late(epoch)
    assert "ValueError: x, at train.py:3 in load, step 9: the same as of worker r/n0/1 in epoch 1" in only(told, End)[0].reason


def test_a_death_that_reaches_the_coordinator_when_the_next_epoch_runs_counts_too() -> None:
    job = Job(skips=0)
    job.die()
    job.follow(job.coordinator.learn(WorkerDied(epoch=2, worker="r/n0/0", **CLOSED)))  # type: ignore[arg-type]
    job.clock.advance(60.0)
    job.follow(job.coordinator.tick())
    assert (job.coordinator.phase, job.coordinator.epoch) == (JobPhase.RUNNING, 3)
    assert "ValueError: x" in only(job.die(worker="r/n0/1", epoch=2), End)[0].reason


def test_twin_what_is_told_late_restarts_nothing_and_costs_nothing() -> None:
    job = Job(skips=5)
    job.die()
    before = (job.coordinator.epoch, job.coordinator.budget.spent)
    assert job.tell_late(1) == []
    assert (job.coordinator.epoch, job.coordinator.budget.spent, job.coordinator.phase) == (*before, JobPhase.RUNNING)


def test_what_is_told_late_of_a_step_that_is_skipped_by_now_changes_nothing() -> None:
    job = Job(skips=5)
    job.die()
    job.die()
    epoch = job.coordinator.epoch
    assert job.skipped == (9,)
    assert job.tell_late(epoch - 1) == []
    assert job.coordinator.epoch == epoch


@pytest.mark.parametrize(("skips", "ends"), [(0, True), (5, False)])
@pytest.mark.parametrize("fact", [LateFailure, WorkerDied])
def test_what_is_told_when_the_budget_is_spent_names_the_program_or_skips_its_step(fact: type[WorkerDied], skips: int, ends: bool) -> None:
    job = Job(skips, heal="restart:1")
    for epoch in (1, 2):
        job.follow(job.coordinator.learn(WorkerDied(epoch=epoch, worker="r/n0/0", **CLOSED)))  # type: ignore[arg-type]
        if epoch == 1:
            job.tell_late(1)
    assert job.coordinator.phase is JobPhase.SPENT
    told = job.coordinator.learn(fact(epoch=2, worker="r/n0/1", cause="f", failure=FAILURE, step=9))
    assert bool(only(told, End)) is ends
    assert bool(events(told, "step.skipped")) is not ends
    if ends:
        assert "ValueError: x" in only(told, End)[0].reason


@pytest.mark.parametrize("heal", ["restart:1", "restart:10"])
def test_twin_a_fault_of_something_shared_that_all_ranks_raise_at_once_costs_one_restart(heal: str) -> None:
    job = Job(skips=5, heal=heal)
    told = [effect for slot in range(3) for effect in job.coordinator.learn(WorkerDied(epoch=1, worker=f"r/n0/{slot}", code=1, step=9, failure=FAILURE))]
    told += job.coordinator.acknowledged("n0", job.coordinator.epoch)
    assert not only(told, End)
    assert not events(told, "step.skipped")
    assert (len(only(told, Start)), job.coordinator.epoch, job.coordinator.budget.spent) == (1, 2, 1)


class TwoNodes:
    """A plain job of two nodes: both launchers vote for an epoch when they have told what their workers died of."""

    def __init__(self, skips: int = 0) -> None:
        self.clock = FakeClock()
        declaration = JobDeclaration(job="t/n/r", node="n0", min_nodes=2, max_nodes=2, max_skipped_steps=skips)
        self.coordinator = Coordinator(declaration, HealBudget(parse_heal("restart:10"), self.clock), self.clock)
        for node in ("n0", "n1"):
            self.coordinator.joined(Member(node=node, address=f"{node}:1", slots=2, incarnation="b"))
        self.start()

    def start(self) -> Effects:
        if self.coordinator.phase is JobPhase.BACKOFF:
            self.clock.advance(60.0)
            self.coordinator.tick()
        epoch = self.coordinator.epoch
        told = [effect for node in ("n0", "n1") for effect in self.coordinator.acknowledged(node, epoch)]
        return [*told, *self.coordinator.started(epoch)]

    def ends(self, *workers: str, code: int = 3, step: int = 9, **more: object) -> Effects:
        """These workers of the running epoch; the orders to end the others have overtaken all but the first."""
        epoch, told = self.coordinator.epoch, list[object]()
        for worker in workers:
            kind = LateFailure if told else WorkerDied
            told += self.coordinator.learn(kind(epoch=epoch, worker=worker, code=code, step=step, cause="e", **more))  # type: ignore[arg-type]
        return [*told, *self.start()]  # type: ignore[list-item]


@pytest.mark.parametrize("code", [3, -signal.SIGSEGV, 134])
def test_an_end_without_an_exception_that_moves_to_another_node_ends_the_job(code: int) -> None:
    job = TwoNodes()
    assert not only(job.ends("r/n0/0", code=code), End)
    told = job.ends("r/n1/1", code=code)
    assert "the same as of worker r/n0/0 in epoch 1, now of worker r/n1/1" in only(told, End)[0].reason
    assert not only(told, Start)


def test_peers_that_raise_of_the_broken_connection_do_not_hide_it() -> None:
    job = TwoNodes()
    for epoch, worker in ((1, "r/n0/0"), (2, "r/n1/1")):
        job.coordinator.learn(LateFailure(epoch=epoch, worker="r/n0/1", **CLOSED))  # type: ignore[arg-type]
        told = job.ends(worker)
    assert "worker ended with code 3, step 9: the same" in only(told, End)[0].reason


def test_it_is_skipped_where_that_is_allowed() -> None:
    job = TwoNodes(skips=1)
    job.ends("r/n0/0")
    assert [event.attributes["step"] for event in events(job.ends("r/n1/1"), "step.skipped")] == ["9"]
    job.start()
    assert job.coordinator.last is not None
    assert job.coordinator.last.skipped == (9,)


@pytest.mark.parametrize("first", ["r/n1/0", "r/n0/1"])
def test_twin_a_node_whose_worker_ends_twice_at_the_same_step_before_its_peers_do_ends_no_job(first: str) -> None:
    """The peers catch the broken connection and end with the same code; once one of them is told first."""
    job = TwoNodes()
    job.ends("r/n1/0", "r/n0/0", code=1)
    second = "r/n1/0" if first != "r/n1/0" else "r/n0/1"
    assert not only(job.ends(first, second, code=1), End)
    assert job.coordinator.phase is JobPhase.RUNNING


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        (("r/n1/0", 9), ("r/n1/0", 9), {"code": 1}),
        (("r/n0/0", 9), ("r/n1/0", 13), {"code": -signal.SIGSEGV}),
        (("r/n0/0", 9), ("r/n1/0", 9), {"code": -signal.SIGKILL}),
        (("r/n0/0", 9), ("r/n1/0", 9), {"code": 1, "explained": "ecc error"}),
        (("r/n0/0", 9), ("r/n1/0", 9), {"code": 1, "explained": "nccl timeout"}),
    ],
    ids=["the same worker while its peers are healthy", "unrelated", "killed", "its exception tells of hardware", "its last lines miss a peer"],
)
def test_twin_ends_that_do_not_show_the_program_end_no_job(before: tuple[str, int], after: tuple[str, int], more: dict[str, object]) -> None:
    job = TwoNodes()
    for worker, step in (before, after):
        assert not only(job.ends(worker, step=step, **more), End)  # type: ignore[arg-type]


def test_twin_an_operator_who_restarts_the_job_has_changed_something() -> None:
    job = TwoNodes()
    job.ends("r/n0/0")
    job.coordinator.learn(WorkerDied(epoch=2, worker="r/n1/1", code=3, step=9))
    assert job.coordinator.phase is JobPhase.BACKOFF
    job.coordinator.restart("c", resume_step=5)
    assert not only(job.start(), End)
    assert job.coordinator.phase is JobPhase.RUNNING


@pytest.mark.parametrize("code", [3, 1, -signal.SIGSEGV])
def test_an_elastic_sample_that_ends_its_worker_without_an_exception_stops_the_job_at_the_second(code: int) -> None:
    job = ElasticJob(slots=4).running()
    assert only(job.agree(job.die("r/n0/1", code=code, step=9)), RegroupWorkers)
    told = job.agree(job.die("r/n0/3", code=code, step=9))
    assert "step 9: the same as of worker r/n0/1" in only(told, HaltWorkers)[0].reason
    skips = ElasticJob(slots=4, max_skipped_steps=1).running()
    skips.agree(skips.die("r/n0/1", code=code, step=9))
    assert events(skips.die("r/n0/3", code=code, step=9), "step.skipped")
    assert skips.forming.skipped == (9,)


@pytest.mark.parametrize(
    ("deaths", "code"),
    [((("r/n0/1", 9), ("r/n0/2", 10)), 3), ((("r/n1/1", 9), ("r/n1/2", 9)), -signal.SIGSEGV), ((("r/n0/1", 9), ("r/n1/2", 9)), -signal.SIGKILL)],
    ids=["different steps", "a node's own memory", "killed"],
)
def test_twin_elastic_workers_whose_machine_may_be_to_blame_are_healed(deaths: tuple[tuple[str, int], ...], code: int) -> None:
    job = ElasticJob(nodes=2, slots=3).running()
    for worker, step in deaths:
        assert only(job.agree(job.die(worker, code=code, step=step)), RegroupWorkers)


def test_an_elastic_sample_whose_service_refuses_stops_the_job_at_the_second() -> None:
    """It was told of as a broken connection, and ended a hundred workers one after the other."""
    where = '  File "/home/ada/train.py", line 212, in load\n    urlopen(url)\n'
    status = status_raised("ConnectionRefusedError", "[Errno 111] Connection refused", where)
    failure = signature_of("ConnectionRefusedError", "[Errno 111] Connection refused", where, 7)
    job = ElasticJob(slots=4).running()
    told = [job.agree(job.die(f"r/n0/{slot}", code=1, step=7, failure=failure, symptom=status.symptom, explained=other_cause(status))) for slot in (1, 3)]
    assert only(told[0], RegroupWorkers)
    assert "step 7: the same as of worker r/n0/1" in only(told[1], HaltWorkers)[0].reason


def test_elastic_workers_are_all_started_anew_to_skip_a_step_and_the_limit_lets_them_save_first() -> None:
    job = ElasticJob(slots=3, max_skipped_steps=1).running()
    job.agree(job.die("r/n0/1", failure=FAILURE))
    told = job.die("r/n0/0", failure=FAILURE)
    assert events(told, "step.skipped")
    assert not job.forming.in_place
    assert job.forming.skipped == (9,)
    stops = ElasticJob(slots=3).running()
    stops.agree(stops.die("r/n0/1", failure=FAILURE))
    assert "ValueError: x" in only(stops.agree(stops.die("r/n0/0", failure=FAILURE)), HaltWorkers)[0].reason
