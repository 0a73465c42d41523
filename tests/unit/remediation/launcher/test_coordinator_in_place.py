"""Elastic workers under the coordinator's state machine: who is left out, who is taken in, and what ends the job."""

import pytest
from msgspec.structs import replace

from eagle_eye.types import Layout, WorkerStateReport
from fakes.elastic_coordinator import Job, only
from remediation.launcher.coordinator.coordinator import Effects, JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    AskGrant,
    CommandResult,
    DismissWorker,
    EmitEvent,
    End,
    EndWorkers,
    ExcludeWorker,
    ForkWorkers,
    HaltWorkers,
    Prepare,
    RegroupWorkers,
    Start,
)
from remediation.launcher.coordinator.coordinator_facts import WorkerDied
from remediation.launcher.coordinator.failure_signature import FailureSignature
from remediation.launcher.coordinator.worker_registry import ATTEMPTS


def test_the_workers_of_a_new_job_meet_once_all_are_here() -> None:
    job = Job(slots=2)
    job.join("n0")
    job.votes("n0")
    job.coordinator.started(1)
    assert job.enter("r/n0/0") == []
    told = job.agree(job.enter("r/n0/1"))
    regroup = only(told, RegroupWorkers)[0]
    assert (regroup.layout.epoch, regroup.layout.workers, regroup.transition.source) == (2, ("r/n0/0", "r/n0/1"), "checkpoint")
    assert job.coordinator.budget.rule.heal == "in-place", "they can, and nobody chose otherwise"
    assert [event.attributes["reason"] for event in only(told, EmitEvent)] == ["join"]


def test_a_death_is_healed_in_place_and_the_slot_is_filled_again() -> None:
    job = Job().running()
    told = job.agree(job.die("r/n0/1"))
    regroup = only(told, RegroupWorkers)[0]
    assert [(place.worker, place.rank) for place in regroup.layout.placements] == [("r/n0/0", 0), ("r/n0/2", 1)]
    assert only(told, ForkWorkers)[0].slots == (1,)
    soft = job.enter("r/n0/1")
    assert only(soft, Prepare)[0].soft == ("r/n0/0", "r/n0/2"), "those who train finish their step first"
    assert job.coordinator.training
    assert only(job.agree(soft), RegroupWorkers)[0].layout.workers == ("r/n0/0", "r/n0/1", "r/n0/2")


def test_a_launcher_that_was_not_reached_is_asked_again_for_new_workers_and_no_try_is_counted() -> None:
    job = Job(nodes=2, slots=1).running()
    job.agree(job.die("r/n1/0"))
    for _ in range(2 * ATTEMPTS):
        job.coordinator.left("n1")
        job.coordinator.registry.not_asked(["r/n1/0"])
        assert only(job.join("n1", last=job.layout), ForkWorkers)[0].slots == (0,)
    assert job.coordinator.registry.awaited == {"r/n1/0": "n1"}


def test_deaths_within_a_moment_are_one_event() -> None:
    job = Job(slots=4).running()
    prepare = only(job.die("r/n0/1"), Prepare)[0]
    job.votes("n0")
    job.clock.advance(0.004)
    assert job.die("r/n0/3") == []
    assert job.holdings() == [], "a third one could still die"
    regroup = only(job.pass_time(0.002), RegroupWorkers)[0]
    assert regroup.layout.epoch == prepare.layout.epoch
    assert regroup.layout.workers == ("r/n0/0", "r/n0/2")
    assert job.coordinator.budget.spent == 1


def test_the_same_exception_on_another_worker_saves_a_checkpoint_and_ends_the_job() -> None:
    job = Job(slots=3).running()
    failure = FailureSignature(type="ValueError", message="x", frame="train.py:3 in load", step=9)
    job.agree(job.die("r/n0/1", failure=failure))
    told = job.agree(job.die("r/n0/0", failure=failure))
    assert "ValueError: x, at train.py:3 in load, step 9" in only(told, HaltWorkers)[0].reason


def test_a_job_whose_workers_all_raise_the_same_at_once_is_started_again_once_and_ends_when_they_do_so_again() -> None:
    """Once it may have been something that they share. Nobody is left that could save a checkpoint; of the last one only the exit code is known."""
    job = Job(slots=3).running()
    failure = FailureSignature(type="ValueError", message="x", frame="train.py:3 in load", step=9)
    deaths = (("r/n0/1", failure), ("r/n0/0", failure), ("r/n0/2", None))
    told = [effect for worker, known in deaths for effect in job.die(worker, failure=known, code=1)]
    assert not only(told, End)
    told += job.votes("n0")
    assert len(only(told, Start)) == 1
    job.coordinator.started(job.epoch)
    for worker in job.layout.workers:
        entered = job.enter(worker)
    job.agree(entered)
    told = [effect for worker, known in deaths for effect in job.die(worker, failure=known, code=1)]
    told += job.pass_time(60.0)
    assert "ValueError: x, at train.py:3 in load, step 9" in only(told, End)[0].reason
    assert (job.coordinator.phase, only(told, Start)) == (JobPhase.ENDED, [])


def test_a_job_that_may_not_heal_itself_again_is_not_started_again_by_the_death_of_its_last_worker() -> None:
    job = Job(slots=3, heal="in-place:1").running()
    job.agree(job.die("r/n0/1", code=1))
    told = [effect for worker in ("r/n0/0", "r/n0/2") for effect in job.die(worker, code=1)]
    told += job.pass_time(60.0)
    assert "may not heal itself again" in only(told, End)[0].reason
    assert (job.coordinator.phase, job.coordinator.budget.spent) == (JobPhase.ENDED, 1)


def test_twin_a_job_that_may_heal_itself_is_started_again_when_all_its_workers_die_at_once() -> None:
    job = Job(slots=3).running()
    for worker in ("r/n0/1", "r/n0/0", "r/n0/2"):
        job.die(worker, code=-9)
    assert job.coordinator.phase is JobPhase.FORMING
    assert not job.forming.in_place


def test_another_exception_on_another_worker_is_healed() -> None:
    job = Job(slots=3).running()
    failure = FailureSignature(type="ValueError", message="x", frame="train.py:3 in load", step=9)
    job.agree(job.die("r/n0/1", failure=failure))
    assert only(job.agree(job.die("r/n0/0", failure=replace(failure, step=10))), RegroupWorkers)


def test_a_later_death_supersedes_with_a_higher_epoch() -> None:
    job = Job(slots=4).running()
    first = only(job.die("r/n0/1"), Prepare)[0].layout.epoch
    job.pass_time(0.006)
    second = only(job.die("r/n0/2"), Prepare)[0].layout
    assert (second.epoch, second.workers) == (first + 1, ("r/n0/0", "r/n0/3"))
    assert job.coordinator.held(first, ()) == []
    assert only(job.agree([Prepare(nodes=(), layout=second)]), RegroupWorkers)


def test_a_silent_worker_is_left_out_like_a_dead_one_but_lives() -> None:
    job = Job().running()
    job.die("r/n0/1")
    job.votes("n0")
    told = job.coordinator.held(job.epoch, (job.holding("r/n0/0"),), ("r/n0/2",))
    assert only(told, ExcludeWorker)[0].worker == "r/n0/2"
    assert only(job.agree(told), RegroupWorkers)[0].layout.workers == ("r/n0/0",)
    assert only(job.enter("r/n0/2"), Prepare) == [], "the replacement of the dead one is on its way: one epoch for both"
    assert only(job.pass_time(0.21), Prepare)[0].layout.workers == ("r/n0/0", "r/n0/2")


def test_a_stalled_worker_is_left_out_and_replaced_once_it_is_dead() -> None:
    job = Job().running()
    told = job.coordinator.stalled(job.layout.epoch, {"r/n0/2": 0.6})
    assert only(told, ExcludeWorker)[0].worker == "r/n0/2"
    told = job.agree(told)
    assert only(told, ForkWorkers) == [], "it may wake up"
    assert only(job.die("r/n0/2"), ForkWorkers)[0].slots == (2,)


def test_a_restart_of_one_worker_leaves_the_others_at_work() -> None:
    job = Job().running()
    epoch = job.layout.epoch
    told = job.coordinator.restart("c", plan="p", own=True, workers=("r/n0/2",))
    assert [each.worker for each in only(told, ExcludeWorker)] == ["r/n0/2"]
    job.agree(told)
    assert job.layout.in_place
    assert job.layout.epoch > epoch
    assert set(job.layout.workers) == {"r/n0/0", "r/n0/1"}
    assert only(job.coordinator.restart("d", workers=("r/n0/2",)), Prepare) == [], "it is out already"


def test_nobody_is_left_out_when_all_stand_still() -> None:
    job = Job().running()
    assert job.coordinator.stalled(job.layout.epoch, dict.fromkeys(job.layout.workers, 0.6)) == []
    assert job.coordinator.stalled(job.layout.epoch - 1, {"r/n0/2": 0.6}) == [], "of an epoch that is over"


def test_too_few_workers_save_a_checkpoint_and_the_job_says_what_it_needs() -> None:
    job = Job(min_workers=3).running()
    halt = only(job.agree(job.die("r/n0/0")), HaltWorkers)[0]
    assert (halt.saver, halt.code) == ("r/n0/1", 1)
    assert job.coordinator.phase is JobPhase.HALTING
    assert job.coordinator.exited("r/n0/1", job.pids["r/n0/1"]) == []
    end = job.coordinator.exited("r/n0/2", job.pids["r/n0/2"])
    assert "needs 3 (--min-workers)" in only(end, End)[0].reason


def test_a_layer_that_nobody_holds_any_more_halts_the_job() -> None:
    job = Job(slots=2).running()
    job.die("r/n0/1")
    job.votes("n0")
    job.coordinator.held(job.epoch, (WorkerStateReport(worker="r/n0/0", node="n0", step=3, phase="computing", layers=(0,)),))
    told = job.pass_time(0.006)
    assert "layer 1" in only(told, HaltWorkers)[0].reason


def test_who_was_the_last_to_hold_a_state_is_said_when_the_newest_checkpoint_takes_its_place() -> None:
    job = Job(slots=1).running()
    job.coordinator.resize("c", {"n0": 2})
    job.agree(job.enter("r/n0/1"))
    job.steps.pop("r/n0/1")  # its state has not come yet
    regroup = only(job.agree(job.die("r/n0/0", step=57)), RegroupWorkers)[0]
    assert regroup.transition.source == "checkpoint"
    told = only(job.coordinator.regrouped("r/n0/1", job.epoch, {"loaded_step": 50}), EmitEvent)[0]
    assert told.name == "state.lost"
    assert "layers 0 to 1 any more: r/n0/0 held it last, of step 57; the newest checkpoint, of step 50, is used: 7 step(s)" in told.message
    assert only(job.coordinator.regrouped("r/n0/1", job.epoch, {"loaded_step": 50}), EmitEvent) == [], "once"


def test_a_job_that_stops_waits_for_its_last_checkpoint_as_long_as_somebody_says_that_it_is_written() -> None:
    job = Job(min_workers=3, halt_s=60.0).running()
    saver = only(job.agree(job.die("r/n0/0")), HaltWorkers)[0].saver
    job.coordinator.exited("r/n0/2", job.pids["r/n0/2"])
    refused = job.coordinator.saving(saver, 4, "no room", "")
    assert [(told.name, told.message) for told in only(refused, EmitEvent)] == [("checkpoint.refused", f"{saver}: no room")]
    for _ in range(5):
        assert job.pass_time(59.0) == []
        assert job.coordinator.saving(saver, 4, "no room", "") == [], "it is said once"
    job.coordinator.saving(saver, 4, "", "/kept/step-4.json")
    assert only(job.coordinator.exited(saver, job.pids[saver]), End)[0].reason.endswith("; its state was saved to /kept/step-4.json")


def test_a_stop_whose_last_checkpoint_was_never_written_says_so() -> None:
    job = Job(min_workers=3).running()
    saver = only(job.agree(job.die("r/n0/0")), HaltWorkers)[0].saver
    job.coordinator.exited("r/n0/2", job.pids["r/n0/2"])
    job.coordinator.saving(saver, 4, "no room", "")
    assert "its last checkpoint was never written: no room" in only(job.die(saver), End)[0].reason


def test_a_giver_whose_layer_arrived_torn_does_not_give_it_again() -> None:
    job = Job(slots=2).running()
    job.coordinator.resize("c", {"n0": 3})
    moves = only(job.agree(job.enter("r/n0/2")), RegroupWorkers)[0].transition.moves
    sender, _, layer = moves[0]
    epoch = job.epoch
    job.steps.pop("r/n0/2")
    job.coordinator.broken("r/n0/2", epoch, sender=f"r/n0/{sender}", layers=(layer,))
    again = only(job.agree(job.pass_time(1.1)), RegroupWorkers)[0].transition.moves
    assert again
    assert (sender, 2, layer) not in again


def test_a_spent_budget_is_a_stop_with_a_checkpoint() -> None:
    job = Job(heal="in-place:1").running()
    job.agree(job.die("r/n0/1"))
    job.agree(job.enter("r/n0/1"))
    assert "--heal in-place:1" in only(job.agree(job.die("r/n0/1")), HaltWorkers)[0].reason


def test_an_explicit_restart_restarts() -> None:
    job = Job(heal="restart:2").running()
    prepare = only(job.die("r/n0/1"), Prepare)[0]
    assert (prepare.layout.in_place, len(prepare.layout.workers)) == (False, 3)


def test_when_nobody_is_left_all_begin_again_from_the_checkpoint() -> None:
    job = Job(slots=2).running()
    job.die("r/n0/0")
    prepare = only(job.die("r/n0/1"), Prepare)[0]
    assert not prepare.layout.in_place
    assert only(job.votes("n0"), Start)


def test_a_worker_that_never_enters_is_tried_a_few_times() -> None:
    job = Job(slots=2).running()
    forks = only(job.agree(job.die("r/n0/1")), ForkWorkers)
    job.pids["r/n0/1"] = 0
    while forks and len(forks) < 10:
        more = only(job.die("r/n0/1", at_start="ImportError") + job.pass_time(60.0), ForkWorkers)
        if not more:
            break
        forks += more
    assert len(forks) == 5


def test_the_job_ends_when_all_have_done_their_part() -> None:
    job = Job(slots=2).running()
    for worker in job.layout.workers:
        job.coordinator.leaving(worker, job.layout.epoch)
    assert only(job.enter("r/n0/7"), DismissWorker), "too late to join"
    assert job.coordinator.exited("r/n0/0", job.pids["r/n0/0"]) == []
    assert only(job.die("r/n0/1", code=-9), End)[0].code == 0, "killed after it had done its part"


def test_a_script_that_fails_after_the_training_fails_the_job() -> None:
    job = Job(slots=1).running()
    job.coordinator.leaving("r/n0/0", job.layout.epoch)
    assert only(job.die("r/n0/0", code=1), End)[0].code == 1


def test_a_lost_node_needs_a_second_witness_and_its_workers_are_left_out() -> None:
    job = Job(nodes=3, slots=1).running()
    job.coordinator.left("n2")
    told = job.coordinator.broken("r/n0/0", job.layout.epoch)
    assert only(told, Prepare)[0].layout.workers == ("r/n0/0", "r/n1/0")
    job.votes("n0", "n1")
    job.holdings()
    assert only(job.pass_time(0.006), RegroupWorkers)
    assert only(job.join("n2", incarnation="again"), ForkWorkers)[0].slots == (0,)


def test_broken_connections_without_a_loss_are_made_anew() -> None:
    job = Job().running()
    assert job.coordinator.broken("r/n0/0", job.layout.epoch) == []
    assert only(job.pass_time(1.1), Prepare)[0].layout.workers == job.layout.workers


def passed(job: Job, rounds: int) -> Effects:
    """Two seconds each."""
    return [effect for _ in range(rounds) for effect in job.pass_time(2.0)]


def test_half_without_a_server_is_a_stop_that_says_why() -> None:
    job = Job(nodes=2, slots=1).running()
    job.coordinator.left("n1")
    assert not only(job.coordinator.no_progress(), Prepare), "they wait, and nobody could say who goes on"
    assert only(job.coordinator.broken("r/n0/0", job.layout.epoch), Prepare), "they cannot go on as they are"
    job.holdings()
    job.votes("n0")
    assert only(job.pass_time(0.006), AskGrant)
    job.coordinator.granted(job.epoch, False)
    assert not only(job.pass_time(2.1), End), "the other half may come back"
    job.coordinator.server_is(False)
    assert "no server was there to say which half goes on" in only(passed(job, 310), End)[0].reason


def test_a_minority_fences_its_workers_and_looks_for_the_others() -> None:
    job = Job(nodes=3, slots=1).running()
    job.coordinator.left("n1")
    job.coordinator.left("n2")
    assert not only(job.coordinator.no_progress(), Prepare), "they wait within a collective: nothing is begun without a majority"
    assert only(job.die("r/n0/0"), EndWorkers) == []
    told = passed(job, 15)
    assert not only(told, End)
    assert not only(told, EndWorkers)


def parted() -> tuple[Job, Layout]:
    """Three nodes of which n2 was parted from the others, which have gone on without it; and the layout before that."""
    job = Job(nodes=3, slots=1).running()
    before = job.layout
    job.coordinator.left("n2")
    job.coordinator.no_progress()
    job.votes("n0", "n1")
    job.holdings()
    job.pass_time(0.006)
    return job, before


def test_a_node_that_was_parted_is_taken_in_with_the_workers_that_it_still_has() -> None:
    job, before = parted()
    job.steps |= {"r/n0/0": 9, "r/n1/0": 9}
    assert job.join("n2", last=before, elastic=(job.join_request("r/n2/0"),)) == []
    told = job.agree(job.pass_time(0.21))
    assert only(told, RegroupWorkers)[0].transition.moves, "it is behind, and takes the state of the others"


def test_workers_that_a_returning_launcher_names_and_then_disowns_are_started_anew() -> None:
    job, before = parted()
    job.join("n2", last=before, elastic=(job.join_request("r/n2/0"),))
    job.pass_time(0.21)
    assert "r/n2/0" in job.forming.workers
    told = job.coordinator.learn(WorkerDied(epoch=job.epoch, worker="r/n2/0", pid=job.pids["r/n2/0"]))
    told += job.votes("n0", "n1", "n2") + job.holdings() + job.pass_time(0.006)
    assert job.layout.workers == ("r/n0/0", "r/n1/0")
    told += job.coordinator.started(job.epoch)
    assert [(each.node, each.slots) for each in only(told, ForkWorkers)] == [("n2", (0,))]


def test_rebalance_moves_micro_batches_at_a_boundary() -> None:
    job = Job(slots=2).running()
    prepare = job.coordinator.rebalance("c", {"r/n0/0": 1, "r/n0/1": 3})
    assert only(prepare, Prepare)[0].soft == ("r/n0/0", "r/n0/1")
    told = job.agree(prepare)
    assert [len(mine) for mine in only(told, RegroupWorkers)[0].transition.shares] == [2, 6]
    assert only(told, CommandResult)[0].error == ""
    assert "no worker" in only(job.coordinator.rebalance("d", {"x": 1}), CommandResult)[0].error


def test_resize_lets_the_last_ones_go_and_brings_new_ones() -> None:
    job = Job().running()
    told = job.agree(job.coordinator.resize("c", {"n0": 2}))
    regroup = only(told, RegroupWorkers)[0]
    assert (regroup.layout.workers, regroup.leaving) == (("r/n0/0", "r/n0/1"), ("r/n0/2",))
    assert job.coordinator.exited("r/n0/2", job.pids["r/n0/2"]) == []
    told = job.coordinator.resize("d", {"n0": 4})
    assert only(told, ForkWorkers)[0].slots == (2, 3)
    assert "--min-workers" in only(job.coordinator.resize("e", {"n0": 0}), CommandResult)[0].error


def test_commands_for_elastic_workers_are_refused_for_others() -> None:
    job = Job()
    job.join("n0")
    job.votes("n0")
    for refused in (job.coordinator.rebalance("c", {}), job.coordinator.resize("d", {"n0": 1})):
        assert "not elastic" in only(refused, CommandResult)[0].error


def test_a_transition_is_accounted_for_once_all_have_committed() -> None:
    job = Job().running()
    job.agree(job.die("r/n0/1", noticed_s=0.003))
    epoch = job.layout.epoch
    job.coordinator.regrouped("r/n0/0", epoch, {"group_s": 0.01, "state_s": 0.0, "bytes": 70})
    job.coordinator.regrouped("r/n0/2", epoch, {"group_s": 0.03, "state_s": 0.0, "bytes": 30})
    assert job.coordinator.resumed("r/n0/0", epoch, 0.2, (1, 2)) == []
    assert only(job.enter("r/n0/1"), Prepare), "the next epoch is being formed, for another reason"
    told = only(job.coordinator.resumed("r/n0/2", epoch, 0.1, (3,)), EmitEvent)[0]
    assert told.name == "transition.done"
    expected = {"reason": "death", "cause": "e", "lost": "r/n0/1", "recomputed": "1,2,3", "group_s": "0.010000", "bytes": "100", "recompute_s": "0.200000", "notice_s": "0.003000", "plan_s": "0.006000"}
    assert expected.items() <= told.attributes.items()


def test_a_transition_for_a_death_that_another_one_overtakes_is_told_with_it() -> None:
    job = Job().running()
    job.agree(job.die("r/n0/1", noticed_s=0.003))
    job.coordinator.regrouped("r/n0/0", job.layout.epoch, {"group_s": 0.01, "bytes": 70})
    job.coordinator.resumed("r/n0/0", job.layout.epoch, 0.2, (1,))
    job.agree(job.coordinator.stuck(job.layout.epoch))
    epoch = job.layout.epoch
    job.coordinator.regrouped("r/n0/0", epoch, {"group_s": 0.02, "bytes": 30})
    job.coordinator.resumed("r/n0/0", epoch, 0.0, ())
    told = only(job.coordinator.resumed("r/n0/2", epoch, 0.0, ()), EmitEvent)[0]
    assert (told.name, told.attributes["epoch"]) == ("transition.done", str(epoch))
    expected = {"reason": "death", "cause": "e", "lost": "r/n0/1", "recomputed": "1", "notice_s": "0.003000", "group_s": "0.030000", "bytes": "100"}
    assert expected.items() <= told.attributes.items()


@pytest.mark.parametrize("suspected", ["broken", "stuck"])
def test_an_epoch_that_broken_connections_began_is_a_deaths_once_that_is_known(suspected: str) -> None:
    job = Job().running()
    if suspected == "broken":
        job.coordinator.broken("r/n0/0", job.layout.epoch)
        prepare = job.pass_time(60.0)
    else:
        prepare = job.coordinator.stuck(job.layout.epoch)
    assert only(prepare, Prepare)[0].layout.reason == suspected
    job.agree([*prepare, *job.die("r/n0/1")])
    assert (job.layout.reason, job.layout.workers) == ("death", ("r/n0/0", "r/n0/2"))
    for worker in job.layout.workers:
        told = job.coordinator.resumed(worker, job.layout.epoch, 0.0, ())
    assert {"reason": "death", "cause": "e", "lost": "r/n0/1"}.items() <= only(told, EmitEvent)[0].attributes.items()


def test_a_transition_in_the_last_step_is_done_when_the_workers_have_done_their_part() -> None:
    job = Job().running()
    job.agree(job.die("r/n0/1"))
    job.coordinator.leaving("r/n0/0", job.layout.epoch)
    told = only(job.coordinator.leaving("r/n0/2", job.layout.epoch), EmitEvent)
    assert [event.name for event in told] == ["transition.done"]
    assert only(job.coordinator.leaving("r/n0/2", job.layout.epoch), EmitEvent) == []
