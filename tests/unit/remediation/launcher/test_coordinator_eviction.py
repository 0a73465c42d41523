"""A node is left out of an elastic job by command: its workers go at a boundary, the others live on, until it is released."""

from fakes.elastic_coordinator import Job, only
from remediation.launcher.coordinator.coordinator import JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    CommandResult,
    DismissWorker,
    EmitEvent,
    ExcludeWorker,
    ForkWorkers,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
)
from remediation.launcher.coordinator.worker_registry import ATTEMPTS

THEIRS = ("r/n1/0", "r/n1/1")
OURS = ("r/n0/0", "r/n0/1")


def two(**declaration: object) -> Job:
    """Two nodes with two workers each, that train."""
    return Job(nodes=2, slots=2, **declaration).running()  # type: ignore[arg-type]


def without_n1(**declaration: object) -> Job:
    job = two(**declaration)
    job.agree(job.coordinator.restart("c", plan="p", exclude=("n1",)))
    return job


def test_the_workers_of_the_node_finish_their_step_and_the_others_live_on() -> None:
    job = two()
    asked = job.coordinator.restart("c", plan="p", exclude=("n1",))
    prepare = only(asked, Prepare)[0]
    assert set(prepare.soft) == {*OURS, *THEIRS}, "all end the step that they are in"
    assert not only(asked, ExcludeWorker)
    told = job.agree(asked)
    regroup = only(told, RegroupWorkers)[0]
    assert (regroup.layout.workers, set(regroup.leaving), regroup.layout.in_place) == (OURS, set(THEIRS), True)
    assert (regroup.layout.excluded, regroup.layout.plan) == (("n1",), "p")
    begun = next(tell for tell in only(told, EmitEvent) if tell.name == "epoch.started")
    assert {"in_place": "1", "excluded": "n1", "plan": "p", "reason": "command"}.items() <= begun.attributes.items()
    assert [(answer.command, answer.epoch, answer.error) for answer in only(told, CommandResult)] == [("c", job.epoch, "")]
    assert job.coordinator.budget.spent == 0


def test_nobody_is_started_on_the_node_and_whoever_enters_there_is_sent_away() -> None:
    job = without_n1()
    for worker in THEIRS:
        assert only(job.coordinator.exited(worker, job.pids[worker]), ForkWorkers) == []
    assert job.coordinator.demand["workers_per_node"] == {"n0": 2}
    assert only(job.enter("r/n1/0"), DismissWorker)[0].worker == "r/n1/0"
    assert job.pass_time(10) == []
    assert job.layout.workers == OURS


def test_a_launcher_that_is_out_and_comes_back_is_told_to_end_the_workers_that_it_has() -> None:
    job = without_n1()
    job.coordinator.left("n1")
    told = job.join("n1", last=job.layout, elastic=tuple(map(job.join_request, THEIRS)))
    assert [each.worker for each in only(told, DismissWorker)] == list(THEIRS)
    assert not only(told, Prepare)


def test_those_who_do_not_come_to_the_end_of_their_step_are_left_out_hard() -> None:
    job = two()
    first = only(job.coordinator.restart("c", plan="p", exclude=("n1",)), Prepare)[0].layout.epoch
    job.votes("n0", "n1")
    assert job.pass_time(2.9) == []
    late = job.pass_time(0.2)
    assert [each.worker for each in only(late, ExcludeWorker)] == list(THEIRS)
    hard = only(late, Prepare)[0]
    assert (hard.layout.epoch, hard.layout.workers, hard.soft, hard.layout.plan) == (first + 1, OURS, (), "p")
    told = job.agree(late)
    assert only(told, RegroupWorkers)[0].leaving == ()
    assert set(job.coordinator.recovery_stats.lost) == set(THEIRS)  # type: ignore[union-attr]
    assert only(told, CommandResult)[0].error == ""
    assert job.coordinator.budget.spent == 0, "the command pays for it"
    assert only(job.enter("r/n1/0"), DismissWorker), "it woke up"
    assert only(job.die("r/n1/1"), ForkWorkers) == [], "it did not, and was killed"


def test_it_is_hard_at_once_where_the_step_is_known_to_stand() -> None:
    job = two()
    job.coordinator.broken("r/n0/0", job.layout.epoch)
    told = job.coordinator.restart("c", exclude=("n1",))
    assert [each.worker for each in only(told, ExcludeWorker)] == list(THEIRS)
    assert only(told, Prepare)[0].soft == ()


def test_a_death_or_a_stall_of_those_who_leave_is_nothing_that_the_job_pays_for() -> None:
    job = two(heal="in-place:0")
    job.coordinator.restart("c", exclude=("n1",))
    hard = job.die("r/n1/1")
    assert only(hard, Prepare)[0].layout.workers == OURS
    assert only(job.agree(hard), RegroupWorkers)[0].leaving == ("r/n1/0",)
    job = two(heal="in-place:0")
    job.coordinator.restart("c", exclude=("n1",))
    hard = job.coordinator.stalled(job.layout.epoch, {"r/n1/0": 0.7})
    assert [each.worker for each in only(hard, ExcludeWorker)] == list(THEIRS)
    assert only(job.agree(hard), RegroupWorkers)[0].layout.workers == OURS


def test_a_death_among_the_others_supersedes_and_the_node_stays_out() -> None:
    job = two()
    job.coordinator.restart("c", exclude=("n1",))
    told = job.agree(job.die("r/n0/1"))
    regroup = only(told, RegroupWorkers)[0]
    assert (regroup.layout.workers, set(regroup.leaving)) == (("r/n0/0",), set(THEIRS))
    assert only(told, CommandResult)[0].error == ""
    assert [(fork.node, fork.slots) for fork in only(told, ForkWorkers)] == [("n0", (1,))]


def test_a_release_brings_its_workers_back_in_place() -> None:
    job = without_n1()
    epoch = job.epoch
    job.coordinator.exited("r/n1/0", job.pids["r/n1/0"])
    told = job.coordinator.release("d", "n1")
    assert [(fork.node, fork.slots) for fork in only(told, ForkWorkers)] == [("n1", (0,))], "the other one has yet to end"
    assert only(told, CommandResult)[0].epoch == epoch
    assert only(job.coordinator.exited("r/n1/1", job.pids["r/n1/1"]), ForkWorkers)[0].slots == (1,)
    job.enter("r/n1/0")
    joined = job.enter("r/n1/1") or job.pass_time(0.21)
    assert only(joined, Prepare)[0].soft == OURS
    job.agree(joined)
    assert job.layout.workers == (*OURS, *THEIRS)
    assert job.layout.excluded == ()


def test_a_worker_that_could_not_be_started_is_tried_again_after_a_release() -> None:
    job = without_n1()
    for worker in THEIRS:
        job.coordinator.exited(worker, job.pids[worker])
    for _ in range(2):
        forks = only(job.coordinator.release("d", "n1"), ForkWorkers)
        for _ in range(ATTEMPTS):
            assert forks, "each time as often as at first"
            job.pids["r/n1/0"] = 0
            forks = only(job.die("r/n1/0", at_start="CUDA error") + job.pass_time(60.0), ForkWorkers)
        assert not forks


def test_a_restart_may_let_one_node_in_and_leave_another_one_out() -> None:
    job = Job(nodes=3, slots=1).running()
    job.agree(job.coordinator.restart("c", exclude=("n1",)))
    job.coordinator.exited("r/n1/0", job.pids["r/n1/0"])
    told = job.agree(job.coordinator.restart("d", exclude=("n2",), release=("n1",)))
    assert only(told, RegroupWorkers)[0].layout.workers == ("r/n0/0",)
    assert [fork.node for fork in only(told, ForkWorkers)] == ["n1"]
    assert job.layout.excluded == ("n2",)


def test_too_few_are_an_error_and_nothing_changes() -> None:
    job = two(min_workers=3)
    refused = job.coordinator.restart("c", exclude=("n1",))
    assert [type(effect) for effect in refused] == [CommandResult]
    assert "without n1 2 worker(s) are left, the job needs 3 (--min-workers)" in only(refused, CommandResult)[0].error
    job = two(min_nodes=2)
    assert "1 node(s) are left, the job needs 2" in only(job.coordinator.restart("c", exclude=("n1",)), CommandResult)[0].error
    assert (job.coordinator.evicted, job.coordinator.phase, job.layout.workers) == (set(), JobPhase.RUNNING, (*OURS, *THEIRS))
    assert not only(job.pass_time(5), HaltWorkers)


def test_another_state_is_a_restart_of_all() -> None:
    for asked in ({"resume_step": 7}, {"skip": (3,)}):
        prepare = only(two().coordinator.restart("c", exclude=("n1",), **asked), Prepare)[0]  # type: ignore[arg-type]
        assert not prepare.layout.in_place
    chosen = two(heal="restart:3")
    assert not only(chosen.coordinator.restart("c", exclude=("n1",)), Prepare)[0].layout.in_place


def test_where_nobody_who_has_the_state_would_stay_it_is_a_restart_of_all() -> None:
    job = two()
    job.coordinator.stalled(job.layout.epoch, {"r/n0/0": 0.6, "r/n0/1": 0.6})
    job.agree([Prepare(nodes=(), layout=job.forming)])
    assert job.layout.workers == THEIRS
    assert not only(job.coordinator.restart("c", exclude=("n1",)), Prepare)[0].layout.in_place
