"""A coordinator that cannot reach enough launchers, or whose launchers cannot vote or not end their workers: nobody is harmed for that."""

import msgspec
import pytest

from eagle_eye.types import RankPlacement
from fakes.plain_coordinator import Job, layout_of, only
from remediation.launcher.coordinator.coordinator import JobPhase
from remediation.launcher.coordinator.coordinator_effects import AskGrant, EmitEvent, EndWorkers, Prepare, Start
from remediation.launcher.coordinator.coordinator_facts import WorkerDied
from remediation.launcher.coordinator.failure_signature import FailureSignature
from remediation.launcher.coordinator.path_test_peers import orders_of
from remediation.launcher.coordinator.quorum import electorate_of

RESET = WorkerDied(epoch=1, cause="e1", worker="r/n0/0", symptom=True)
"""It missed a peer."""
ERROR = WorkerDied(epoch=1, cause="e2", worker="r/n0/1", code=1, failure=FailureSignature(type="ValueError", message="negative length", frame="train.py:7", step=9))


def test_launchers_without_workers_cannot_outvote_the_only_node_that_trains() -> None:
    """It may train on behind a broken network: only the server can know that it is gone."""
    last = msgspec.structs.replace(layout_of("n0", "n1", "n2"), placements=(RankPlacement(worker="r/n0/0", node="n0", rank=0, local_rank=0),))
    assert (electorate_of(last).count(["n1", "n2"]).majority, electorate_of(last).count(["n1", "n2"]).grantable) == (False, True)
    assert electorate_of(last).count(["n0", "n2"]).majority


def test_less_than_half_never_goes_on() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    job.coordinator.left("n2")
    [told] = job.coordinator.no_progress()
    assert isinstance(told, EmitEvent)
    assert told.name == "coordinator.isolated"
    assert job.pass_time(60) == [], "nothing is begun, and nobody is ended"
    assert (job.coordinator.phase, job.coordinator.isolated) == (JobPhase.RUNNING, True)
    assert [event.name for event in only(job.join("n1", last=job.layout), EmitEvent)] == ["coordinator.reunited"]
    assert not job.coordinator.isolated
    assert only(job.coordinator.no_progress(), Prepare)[0].layout.nodes == ("n0", "n1")


def test_a_worker_that_dies_where_too_few_are_left_ends_no_other_before_a_majority_is_back() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    job.coordinator.left("n2")
    died = job.coordinator.died(1, "e")
    assert [effect.name for effect in only(died, EmitEvent)] == ["coordinator.isolated"]
    assert not only(died, Prepare)
    assert not only(died, EndWorkers)
    assert (job.coordinator.phase, job.coordinator.candidate, job.coordinator.budget.spent) == (JobPhase.WAITING, True, 0)
    assert job.pass_time(20.0) == []
    job.join("n1", last=job.layout)
    layout = only(job.pass_time(0.3), Prepare)[0].layout
    assert (layout.nodes, layout.reason, layout.restarts) == (("n0", "n1"), "node lost", 1)


def test_twin_who_is_back_as_it_was_costs_nobody_a_restart() -> None:
    job = Job(nodes=2, min_nodes=2).running("n0", "n1")
    job.coordinator.left("n1")
    assert not only(job.coordinator.no_progress(), Prepare)
    assert job.coordinator.phase is JobPhase.WAITING
    job.join("n1", last=job.layout)
    told = job.pass_time(0.3)
    assert [event.name for event in only(told, EmitEvent)] == ["coordinator.reunited"]
    assert (job.coordinator.phase, only(told, Prepare)) == (JobPhase.RUNNING, [])


@pytest.mark.parametrize("commanded", [False, True])
def test_a_worker_that_died_while_a_launcher_was_out_of_reach_is_what_the_next_epoch_is_for(commanded: bool) -> None:
    job = Job(nodes=2).running("n0", "n1")
    job.coordinator.commanded = commanded
    job.coordinator.left("n1")
    died = [effect for each in (RESET, ERROR) for effect in job.coordinator.learn(each)]
    assert not only(died, Prepare)
    begun = [*job.join("n1", last=job.layout), *job.pass_time(0.3)]
    [asked] = only(begun, Prepare)
    assert (asked.layout.nodes, asked.layout.reason, asked.layout.restarts_by_kind) == (("n0", "n1"), "death", {ERROR.kind: 1})
    [told] = only([*job.acknowledge("n0", "n1"), *job.coordinator.started(job.coordinator.epoch)], EmitEvent)
    assert [told.attributes[name] for name in ("reason", "cause", "kind")] == ["death", "e2", ERROR.kind]


def test_twin_a_launcher_that_was_started_again_was_lost_whoever_missed_its_workers() -> None:
    job = Job(nodes=2).running("n0", "n1")
    job.coordinator.commanded = False
    job.coordinator.left("n1")
    job.coordinator.learn(RESET)
    begun = [*job.join("n1", last=job.layout, incarnation="again"), *job.pass_time(0.3)]
    assert only(begun, Prepare)[0].layout.reason == "node lost"


def test_who_is_only_silent_is_waited_for_before_processes_are_started_without_it() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1", silent=True)
    assert job.coordinator.learn(ERROR) == []
    assert (job.coordinator.phase, job.coordinator.candidate) == (JobPhase.WAITING, False)
    begun = [*job.join("n1", last=job.layout), *job.pass_time(0.3)]
    [asked] = only(begun, Prepare)
    assert (asked.layout.nodes, asked.layout.reason, asked.layout.restarts) == (("n0", "n1", "n2"), "death", 1)


def test_who_stays_silent_is_left_behind_after_a_while() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1", silent=True)
    job.coordinator.learn(ERROR)
    assert only(job.pass_time(4.9), Prepare) == []
    [asked] = only(job.pass_time(0.2), Prepare)
    assert (asked.layout.nodes, asked.layout.reason) == (("n0", "n2"), "node lost")


def test_twin_whose_connection_was_closed_is_not_waited_for() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    assert only(job.coordinator.learn(ERROR), Prepare)[0].layout.nodes == ("n0", "n2")
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1", silent=True)
    assert only(job.coordinator.no_progress(), Prepare)[0].layout.nodes == ("n0", "n2"), "it is proved to be lost"


@pytest.mark.parametrize("silent", [True, False])
def test_the_way_to_who_was_lost_in_silence_is_tested_though_the_job_has_gone_on_without_it(silent: bool) -> None:
    """Its twin has closed its connection: it ended."""
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1", silent=silent)
    [asked] = only(job.coordinator.no_progress(), Prepare)
    assert asked.layout.nodes == ("n0", "n2")
    job.acknowledge("n0", "n2")
    job.coordinator.started(job.coordinator.epoch)
    away = {"n1"} if silent else set()
    orders = orders_of(job.coordinator, {"test": "t1", "tests": ["network.tested"]})
    assert {node: set(order["peers"]) for node, order in orders.items()} == {"n0": {"n2", *away}, "n2": {"n0", *away}}


def test_half_waits_for_a_server_before_it_ends_anybody() -> None:
    job = Job().running("n0", "n1")
    job.coordinator.server_is(False)
    job.coordinator.left("n1")
    assert not only(job.coordinator.no_progress(), Prepare)
    job.coordinator.server_is(True)
    assert only(job.coordinator.no_progress(), AskGrant)
    told = job.join("n1", last=job.layout)
    assert (job.coordinator.phase, only(told, Prepare)) == (JobPhase.RUNNING, []), "it is back as it was before anybody was ended"


def test_who_is_ready_and_cannot_write_its_vote_down_is_asked_again() -> None:
    job = Job(nodes=4).running("n0", "n1", "n2", "n3")
    job.coordinator.left("n3")
    job.coordinator.died(1, "e")
    job.acknowledge("n0", "n1")
    [told] = job.coordinator.acknowledged("n2", 2, "no space left on device")
    assert isinstance(told, EmitEvent)
    assert (told.name, told.node) == ("vote.withheld", "n2")
    assert job.coordinator.acknowledged("n2", 2, "no space left on device") == [], "told once"
    assert only(job.pass_time(5.1), Prepare)[0].layout.nodes == ("n0", "n1", "n2"), "it is not left behind"
    assert only(job.acknowledge("n0", "n1", "n2"), Start)


def test_where_everybody_is_ready_no_vote_is_missed() -> None:
    job = Job(nodes=2).running("n0", "n1")
    job.coordinator.died(1, "e")
    job.coordinator.acknowledged("n0", 2, "no space left on device")
    assert only(job.coordinator.acknowledged("n1", 2, "its votes cannot be read"), Start)


def test_a_majority_goes_on_although_one_cannot_write_its_vote_down() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.died(1, "e")
    job.acknowledge("n0", "n1")
    assert only(job.coordinator.acknowledged("n2", 2, "no space left on device"), Start)[0].layout.nodes == ("n0", "n1", "n2")


def test_a_node_whose_processes_the_kernel_holds_is_left_out_and_told_and_joins_again() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.died(1, "e")
    job.acknowledge("n0", "n1")
    effects = job.coordinator.unprepared("n2", 2, "processes 7 do not end though killed")
    assert [(event.name, event.node) for event in only(effects, EmitEvent)] == [("node.held", "n2")]
    assert only(effects, Prepare)[0].layout.nodes == ("n0", "n1")
    assert only(job.acknowledge("n0", "n1"), Start)
    job.coordinator.started(3)
    job.join("n2", last=job.layout)
    assert only(job.pass_time(0.3), Prepare)[0].layout.nodes == ("n0", "n1", "n2")


def test_a_coordinator_that_was_cut_off_looks_for_the_others_after_a_lease() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    job.coordinator.left("n2")
    assert not job.coordinator.isolated, "it may be a moment's trouble"
    [told] = only(job.pass_time(2.1), EmitEvent)
    assert (told.name, told.attributes.get("trains")) == ("coordinator.isolated", "1")
    assert (job.coordinator.isolated, job.coordinator.phase) == (True, JobPhase.RUNNING)
    assert job.coordinator.missing == ("n1", "n2")
    job.join("n1", last=job.layout)
    assert not job.coordinator.isolated


def test_that_a_job_waits_is_told_once_it_trains_no_more_and_not_before() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    job.coordinator.left("n2")
    [trains] = only(job.pass_time(2.1), EmitEvent)
    [waits] = only(job.coordinator.died(1, "e"), EmitEvent)
    assert [(each.name, each.attributes.get("trains")) for each in (trains, waits)] == [("coordinator.isolated", "1"), ("coordinator.isolated", None)]
    assert only(job.coordinator.died(1, "f"), EmitEvent) == []


def test_whoever_is_cut_off_does_not_say_that_the_job_has_failed() -> None:
    job = Job(nodes=3, min_nodes=2, wait_nodes_s=60.0).running("n0", "n1", "n2")
    job.coordinator.left("n1")
    job.coordinator.left("n2")
    job.coordinator.no_progress()
    assert job.pass_time(61.0) == []
    job.coordinator.died(1, "e")
    assert job.pass_time(61.0) == []


# --- a node that has returned to a job that may not restart itself ----------------------------------------------------


def halved(heal: str = "none") -> Job:
    """n1's launcher is lost, the workers end, and the server commands a restart without it."""
    job = Job(heal=heal, server_s=60.0).running("n0", "n1")
    job.coordinator.left("n1")
    job.coordinator.died(1, "e")
    job.coordinator.restart("c", plan="p")
    job.coordinator.granted(job.coordinator.epoch, True)
    job.acknowledge("n0")
    job.coordinator.started(job.coordinator.epoch)
    assert (job.coordinator.phase, job.layout.nodes) == (JobPhase.RUNNING, ("n0",))
    return job


def test_a_node_that_returns_to_a_job_that_may_not_restart_itself_is_told_to_be_unused_once() -> None:
    job = halved()
    effects = job.join("n1", incarnation="c")
    [told] = only(effects, EmitEvent)
    assert (told.name, told.node, told.attributes["epoch"]) == ("node.unused", "n1", str(job.layout.epoch))
    assert "1 of 2 nodes" in told.message
    assert effects == [told], "what trains is not ended for it"
    assert only(job.join("n1", incarnation="c") + job.pass_time(60.0), EmitEvent) == []
    assert only(job.coordinator.restart("d", plan="p"), Prepare)[0].layout.nodes == ("n0", "n1"), "the next restart takes it in"


def test_it_is_told_again_after_its_launcher_has_gone_and_come_back() -> None:
    job = halved()
    job.join("n1", incarnation="c")
    job.coordinator.left("n1")
    assert [event.name for event in only(job.join("n1", incarnation="d"), EmitEvent)] == ["node.unused"]


def test_one_that_is_back_before_the_epoch_is_valid_is_told_when_it_is() -> None:
    job = Job(nodes=3, heal="none")
    job.join("n0", "n1")
    job.pass_time(10.1)
    job.running("n0", "n1")
    job.coordinator.died(1, "e")
    job.coordinator.restart("c", plan="p")
    assert only(job.join("n2"), EmitEvent) == []
    told = job.acknowledge("n0", "n1")
    assert [(event.name, event.node) for event in only(told, EmitEvent)] == [("node.unused", "n2")]


def test_twin_a_job_that_heals_itself_takes_it_in() -> None:
    job = halved(heal="restart:3")
    effects = job.join("n1", incarnation="c")
    assert only(effects, EmitEvent) == []
    assert only(effects + job.pass_time(60.0), Prepare)[0].layout.nodes == ("n0", "n1")


def test_twin_a_node_for_which_there_is_no_room_is_not_unused() -> None:
    job = Job(nodes=2, heal="none").running("n0", "n1")
    assert job.join("n2") == []


def test_twin_an_evicted_node_is_not_unused() -> None:
    job = Job(nodes=2, heal="none").running("n0", "n1")
    job.coordinator.restart("c", plan="p", exclude=("n1",))
    job.acknowledge("n0", "n1")
    assert only(job.join("n1", incarnation="c"), EmitEvent) == []
