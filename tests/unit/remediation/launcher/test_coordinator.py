"""The coordinator's state machine: who votes, who is lost, what is spent. No sockets, a clock that tests own."""

import pytest

from eagle_eye.errors import ConfigError
from eagle_eye.types import Layout, NodePlace
from fakes.plain_coordinator import Job, layout_of, only
from remediation.launcher.coordinator.coordinator import JobPhase
from remediation.launcher.coordinator.coordinator_effects import (
    AskGrant,
    CommandResult,
    EmitEvent,
    End,
    EndWorkers,
    Prepare,
    ReportLayout,
    Start,
)
from remediation.launcher.coordinator.coordinator_facts import WorkerDied
from remediation.launcher.coordinator.heal_budget import HealRule, parse_heal
from remediation.launcher.coordinator.membership import place_in, precedes
from remediation.launcher.coordinator.quorum import electorate_of


@pytest.mark.parametrize(
    ("launchers", "acknowledged", "majority", "grantable"),
    [(1, 1, True, False), (1, 0, False, False), (2, 1, False, True), (2, 2, True, False), (3, 1, False, False),
     (3, 2, True, False), (4, 2, False, True), (4, 3, True, False), (5, 2, False, False), (5, 3, True, False)],
)  # fmt: skip
def test_quorum(launchers: int, acknowledged: int, majority: bool, grantable: bool) -> None:
    nodes = [f"n{number}" for number in range(launchers)]
    count = electorate_of(layout_of(*nodes)).count(nodes[:acknowledged])
    assert (count.majority, count.grantable) == (majority, grantable)


def test_the_excluded_have_no_vote_and_strangers_neither() -> None:
    last = layout_of("n0", "n1", "n2", excluded=("n2",))
    assert last.voters == ("n0", "n1")
    assert electorate_of(last).count(["n2", "stranger"]).votes == 0
    assert precedes(last, "n0", "n1")
    assert not precedes(last, "n1", "n0")


def test_the_job_starts_when_everybody_is_here() -> None:
    job = Job(nodes=2)
    assert job.join("n0") == []
    prepare = only(job.join("n1"), Prepare)[0]
    assert prepare.layout.workers == ("r/n0/0", "r/n0/1", "r/n1/0", "r/n1/1")
    assert [place.rank for place in prepare.layout.placements] == [0, 1, 2, 3]
    assert job.acknowledge("n0") == []
    assert only(job.acknowledge("n1"), Start)
    told = only(job.coordinator.started(1), EmitEvent)
    assert [event.name for event in told] == ["job.started", "epoch.started"]


def test_a_layout_says_where_its_nodes_are_as_they_said_before_it_began() -> None:
    """Who keeps whose checkpoints follows from it: it stays for as long as the epoch does."""
    job = Job(nodes=2)
    leaf_1, leaf_2 = NodePlace(switch="leaf-1"), NodePlace(switch="leaf-2", rack="a07")
    job.join("n0", place=leaf_1)
    job.join("n1")
    job.acknowledge("n0", "n1")
    assert job.layout.places == {"n0": leaf_1}, "n1 knows nothing, or is older"
    job.coordinator.placed("n1", leaf_2)
    job.coordinator.placed("n9", leaf_2)
    assert job.pass_time(60) == []
    assert job.layout.places == {"n0": leaf_1}
    job.coordinator.died(1)
    job.acknowledge("n0", "n1")
    assert job.layout.places == {"n0": leaf_1, "n1": leaf_2}


@pytest.mark.parametrize("told", [{}, {"place": None}, {"place": 3}, {"place": {"switch": 7}}, {"place": {"switch": "x" * 401}}, {"place": {"switch": "a\0b"}}])
def test_a_place_that_cannot_be_one_is_unknown(told: dict[str, object]) -> None:
    assert place_in(told) == NodePlace()
    assert place_in({"place": {"switch": "leaf-1", "colour": "red"}}) == NodePlace(switch="leaf-1"), "of a newer launcher"


def test_the_fewest_start_after_the_time_for_joining() -> None:
    job = Job(nodes=3, min_nodes=2)
    job.join("n0", "n1")
    assert job.pass_time(9.9) == []
    assert only(job.pass_time(0.2), Prepare)[0].layout.nodes == ("n0", "n1")


def test_too_few_wait_for_another_and_then_begin() -> None:
    job = Job(nodes=3, min_nodes=2)
    job.join("n0")
    assert job.pass_time(60) == []
    job.join("n1")
    assert only(job.pass_time(0.3), Prepare)


def test_a_death_begins_an_epoch_at_once_and_the_next_ones_belong_to_it() -> None:
    job = Job().running("n0", "n1")
    first = job.coordinator.died(1, "event-1")
    assert only(first, Prepare)[0].layout.epoch == 2
    assert job.coordinator.died(1, "event-2") == [], "5 ms later: one event"
    start = only(job.acknowledge("n0", "n1"), Start)[0]
    assert (start.cause, start.budget_left, start.layout.restarts) == ("event-1", 3, 1), "another kind of failure may be healed three times"
    assert job.coordinator.died(1, "event-3") == [], "of an epoch that is over"


def test_a_lost_session_alone_is_no_loss() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    assert [effect.name for effect in job.coordinator.left("n2")] == ["peer.lost"]
    assert job.coordinator.suspects == ("n2",)
    job.join("n2", last=job.layout)
    assert job.coordinator.suspects == ()
    assert job.pass_time(1.0) == []


def test_a_lost_session_and_a_second_witness_are_a_lost_node() -> None:
    for witness in (lambda job: job.coordinator.died(1, "e"), lambda job: job.coordinator.no_progress()):
        job = Job(nodes=3).running("n0", "n1", "n2")
        job.coordinator.left("n2")
        layout = only(witness(job), Prepare)[0].layout
        assert (layout.nodes, layout.reason) == (("n0", "n1"), "node lost")
        assert only(job.acknowledge("n0", "n1"), Start), "two of three are a majority"


def test_standing_still_without_a_suspect_is_nobodys_loss() -> None:
    assert Job().running("n0", "n1").coordinator.no_progress() == []


def test_exactly_half_needs_the_leaders_voice() -> None:
    job = Job().running("n0", "n1")
    job.coordinator.left("n1")
    asked = only(job.coordinator.no_progress(), AskGrant)[0]
    assert asked.missing == ("n1",)
    assert job.coordinator.granted(2, False) == [], "no worker is ended before the leader agrees"
    assert only(job.pass_time(0.3), AskGrant), "asked again"
    assert only(job.coordinator.granted(2, True), Prepare)
    assert only(job.acknowledge("n0"), Start)[0].layout.nodes == ("n0",)
    assert job.coordinator.granted(2, True) == [], "an answer that comes late changes nothing"


def test_a_launcher_that_is_lost_while_an_epoch_is_formed_is_left_out() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.died(1, "e")
    job.acknowledge("n0")
    layout = only(job.coordinator.left("n2"), Prepare)[0].layout
    assert (layout.epoch, layout.nodes) == (3, ("n0", "n1"))
    assert job.coordinator.budget.spent == 1, "the same fault is paid once"
    assert job.coordinator.acknowledged("n1", 2) == [], "a vote for the epoch before"


def test_a_launcher_that_does_not_answer_is_left_behind() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.died(1, "e")
    job.acknowledge("n0", "n1")
    assert only(job.pass_time(5.1), Prepare)[0].layout.nodes == ("n0", "n1")


def test_a_higher_vote_elsewhere_raises_the_number() -> None:
    job = Job().running("n0", "n1")
    job.coordinator.died(1, "e")
    assert only(job.coordinator.refused(2, promised=7), Prepare)[0].layout.epoch == 8


def test_joiners_are_taken_in_together() -> None:
    job = Job(nodes=4, min_nodes=1, join_timeout_s=1.0)
    job.join("n0")
    job.pass_time(1.1)
    job.acknowledge("n0")
    job.coordinator.started(1)
    assert job.join("n1") == []
    job.clock.advance(0.15)
    assert job.join("n2") == []
    prepare = only(job.pass_time(0.06), Prepare)
    assert prepare[0].layout.nodes == ("n0", "n1", "n2")
    assert job.coordinator.budget.spent == 0


def test_a_launcher_that_was_started_again_has_no_workers_any_more() -> None:
    job = Job().running("n0", "n1")
    job.join("n1", incarnation="another")
    assert only(job.pass_time(0.3), Prepare)[0].layout.reason == "node returned"


def test_nobody_is_taken_in_beyond_the_most_nodes() -> None:
    job = Job(nodes=2).running("n0", "n1")
    job.join("n2")
    assert job.pass_time(1.0) == []


def test_a_spent_budget_ends_the_workers_and_then_the_job() -> None:
    job = Job(heal="restart:0", patience_s=5.0).running("n0", "n1")
    effects = job.coordinator.died(1, "e")
    told = only(effects, EmitEvent)[0]
    assert (told.name, told.attributes["epoch"], told.attributes["nodes"]) == ("budget.exhausted", "1", "")
    assert only(effects, EndWorkers)[0].nodes == ("n0", "n1")
    end = only(job.pass_time(5.1), End)[0]
    assert end.code == 1


def test_a_job_that_stops_for_a_lost_launcher_says_whose() -> None:
    job = Job(nodes=3, heal="none").running("n0", "n1", "n2")
    job.coordinator.left("n2")
    told = only(job.coordinator.died(1, "e"), EmitEvent)[0]
    assert (told.name, told.attributes["kind"], told.attributes["nodes"]) == ("budget.exhausted", "node lost", "n2")


def test_nobody_waits_for_a_server_that_is_not_there() -> None:
    job = Job(heal="none", patience_s=5.0).running("n0", "n1")
    job.coordinator.server_is(False)
    job.coordinator.died(1, "e")
    assert only(job.pass_time(0.0), End)[0].code == 1


def test_a_spent_budget_tells_the_server_whom_to_command() -> None:
    job = Job(heal="none", patience_s=5.0).running("n0", "n1")
    assert only(job.coordinator.died(1, "e"), ReportLayout)[0].layout == job.coordinator.last


@pytest.mark.parametrize("before", [True, False], ids=["it died after the fault", "it was away"])
def test_a_server_that_is_started_again_is_waited_for(before: bool) -> None:
    job = Job(heal="none", patience_s=5.0, server_s=60.0).running("n0", "n1")
    job.coordinator.server_is(before)
    job.coordinator.died(1, "e")
    job.coordinator.server_is(False)
    assert job.pass_time(55.0) == []
    job.coordinator.server_is(True)
    assert job.pass_time(4.0) == [], "it is given as long as a server that was there"
    assert only(job.coordinator.restart("d", plan="p"), Prepare)


def test_a_server_that_does_not_come_back_or_comes_and_goes_is_not_waited_for_for_ever() -> None:
    gone = Job(heal="none", patience_s=5.0, server_s=60.0).running("n0", "n1")
    gone.coordinator.died(1, "e")
    gone.coordinator.server_is(False)
    assert only(gone.pass_time(60.1), End)[0].code == 1
    fickle = Job(heal="none", patience_s=5.0, server_s=60.0, wait_nodes_s=100.0).running("n0", "n1")
    fickle.coordinator.died(1, "e")
    ended = []
    for turn in range(60):
        fickle.coordinator.server_is(turn % 2 == 0)
        ended += only(fickle.pass_time(2.0), End)
    assert len(ended) == 1


def test_a_command_still_heals_when_the_budget_is_spent() -> None:
    job = Job(heal="none", patience_s=5.0).running("n0", "n1")
    job.coordinator.died(1, "e")
    refused = job.coordinator.restart("c", own=True)
    assert "budget" in only(refused, CommandResult)[0].error
    assert only(job.coordinator.restart("d", plan="p"), Prepare)
    job.acknowledge("n0", "n1")
    assert only(job.coordinator.started(2), CommandResult)[0].epoch == 2


def test_restart_excludes_rolls_back_skips_and_spends_nothing() -> None:
    job = Job().running("n0", "n1")
    effects = job.coordinator.restart("c", plan="p", exclude=("n1",), resume_step=40, skip=(43,))
    layout = only(effects, Prepare)[0].layout
    assert (layout.nodes, layout.excluded, layout.resume_step, layout.skipped) == (("n0",), ("n1",), 40, (43,))
    assert layout.restarts == 0
    assert only(effects, Prepare)[0].nodes == ("n0", "n1"), "the excluded one ends its workers too"
    job.acknowledge("n1", "n0")
    job.coordinator.started(2)
    assert job.join("n1", incarnation="again") == []
    assert job.pass_time(1.0) == [], "it stays out until it is released"
    job.coordinator.died(2, "e")
    assert job.coordinator.epoch == 3
    job.acknowledge("n0", "n1")
    assert (job.layout.resume_step, job.layout.skipped) == (-1, (43,)), "the batch stays skipped, the roll-back is done"
    assert job.layout.rolled_back == ((2, 40),), "and what it has left is not gone on from, whoever dies next"
    job.coordinator.started(3)
    assert only(job.coordinator.restart("d", skip=(50,)), Prepare)[0].layout.skipped == (43, 50)


def test_a_roll_back_that_could_not_be_begun_still_stands() -> None:
    """The workers began at the checkpoint that they were to leave out."""
    job = Job().running("n0", "n1")
    job.coordinator.restart("c", plan="p", resume_step=40)
    job.acknowledge("n0", "n1")
    job.coordinator.died(2, at_start="the disk refuses")
    job.acknowledge("n0", "n1")
    assert (job.coordinator.epoch, job.layout.resume_step, job.layout.rolled_back) == (3, 40, ((3, 40),))


def test_restart_refuses_to_leave_too_few() -> None:
    job = Job(min_nodes=2).running("n0", "n1")
    assert "needs 2" in only(job.coordinator.restart("c", exclude=("n1",)), CommandResult)[0].error
    assert job.coordinator.phase is JobPhase.RUNNING


def test_a_released_node_comes_back() -> None:
    job = Job().running("n0", "n1")
    job.coordinator.restart("c", exclude=("n1",))
    job.acknowledge("n0", "n1")
    job.coordinator.started(2)
    layout = only(job.coordinator.release("d", "n1"), Prepare)[0].layout
    assert (layout.nodes, layout.reason) == (("n0", "n1"), "node released")


def test_too_few_nodes_wait_and_go_on() -> None:
    job = Job(nodes=3, min_nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n2")
    assert not only(job.coordinator.no_progress(), EndWorkers), "they wait for their peers, and harm nobody"
    assert job.coordinator.phase is JobPhase.WAITING
    job.join("n2", incarnation="again")
    assert only(job.pass_time(0.3), Prepare)[0].layout.nodes == ("n0", "n1", "n2")


def test_too_few_nodes_do_not_wait_for_ever() -> None:
    job = Job(nodes=2, min_nodes=2, wait_nodes_s=60.0).running("n0", "n1")
    job.coordinator.left("n1")
    job.coordinator.no_progress()
    job.join("n9", incarnation="x")
    job.coordinator.left("n9")
    assert job.pass_time(30.0) == []
    assert only(job.pass_time(31.0), End)[0].code == 1


def test_a_script_that_never_began_is_not_started_again() -> None:
    job = Job().running("n0", "n1")
    effects = job.coordinator.died(1, "e", at_start="ValueError: no such file")
    assert "ValueError" in only(effects, EmitEvent)[0].message
    assert only(effects, End)[0].code == 1


def test_an_early_death_of_those_whose_peers_are_lost_is_not_the_scripts_fault() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.left("n2")
    prepare = only(job.coordinator.died(1, "e", at_start="RuntimeError: Connection closed by peer"), Prepare)[0]
    assert prepare.layout.reason == "node lost"


def missed_a_peer() -> WorkerDied:
    """Told before what its peer died of: that comes from another node."""
    return WorkerDied(epoch=1, worker="r/n0/0", cause="victim", code=1, symptom=True, at_start="RuntimeError: Connection closed by peer")


def test_fault_a_worker_that_is_killed_before_its_first_step_is_started_again_whoever_is_told_first() -> None:
    job = Job().running("n0", "n1")
    told = job.coordinator.learn(missed_a_peer()) + job.coordinator.learn(WorkerDied(epoch=1, worker="r/n1/0", cause="killed", code=-9))
    assert not only(told, End)
    prepared = only(told + job.pass_time(1.0), Prepare)[0]
    assert prepared.layout.reason == "death"
    assert job.coordinator.budget.spent_by_kind == {"worker ended by SIGKILL": 1}


def test_twin_a_script_that_never_began_is_not_started_again_whoever_is_told_first() -> None:
    job = Job().running("n0", "n1")
    broken = WorkerDied(epoch=1, worker="r/n1/0", cause="own", code=1, at_start="ImportError: no module named data")
    told = job.coordinator.learn(missed_a_peer()) + job.coordinator.learn(broken)
    assert "ImportError" in only(told, EmitEvent)[-1].message
    assert only(told, End)[0].code == 1


def test_twin_who_finds_no_peer_at_the_start_fails_at_once_where_nothing_is_started_again() -> None:
    job = Job(heal="none").running("n0", "n1")
    assert only(job.coordinator.learn(missed_a_peer()), End)[0].code == 1


def test_after_the_first_epoch_an_early_death_is_a_death() -> None:
    job = Job().running("n0", "n1")
    job.coordinator.died(1, "e")
    job.acknowledge("n0", "n1")
    effects = job.coordinator.died(2, "f", at_start="out of memory")
    assert not only(effects, End)
    assert only(job.pass_time(1.0), Prepare)


def test_the_job_is_finished_when_every_node_is() -> None:
    job = Job().running("n0", "n1")
    assert job.coordinator.finished("n0", 1) == []
    assert job.coordinator.finished("n1", 7) == []
    assert only(job.coordinator.finished("n1", 1), End)[0].code == 0


def test_an_epoch_whose_workers_end_before_all_launchers_have_answered_has_begun_all_the_same() -> None:
    job = Job(nodes=1)
    job.join("n0")
    job.acknowledge("n0")
    told = only(job.coordinator.finished("n0", 1), EmitEvent)
    assert [event.name for event in told] == ["job.started", "epoch.started", "job.finished"]
    assert job.coordinator.started(1) == [], "once"


def test_an_epoch_whose_worker_dies_before_all_launchers_have_answered_has_begun_all_the_same() -> None:
    job = Job(nodes=1)
    job.join("n0")
    job.acknowledge("n0")
    assert [event.name for event in only(job.coordinator.died(1, "event-1"), EmitEvent)] == ["job.started", "epoch.started"]
    assert job.coordinator.started(1) == [], "once"
    job.acknowledge("n0")
    told = only(job.coordinator.died(2, "event-2"), EmitEvent)
    assert [event.name for event in told] == ["epoch.started", "restart.delayed"]
    assert told[0].attributes["epoch"] == "2"


def test_a_successor_goes_on_above_every_number_it_heard_of() -> None:
    job = Job(nodes=3, last=layout_of("n9", "n0", "n1", restarts=1), lost=("n9",))
    assert job.join("n0", promised=4) == []
    layout = only(job.join("n1", promised=6, last=layout_of("n9", "n0", "n1")), Prepare)[0].layout
    assert (layout.epoch, layout.coordinator, layout.nodes, layout.reason) == (7, "n0", ("n0", "n1"), "node lost")
    assert only(job.acknowledge("n0", "n1"), Start)


def test_a_successor_of_two_asks_the_leader() -> None:
    job = Job(last=layout_of("n9", "n0"), lost=("n9",))
    assert only(job.join("n0"), AskGrant)[0].missing == ("n9",)
    assert job.coordinator.candidate
    assert only(job.coordinator.granted(5, True), Prepare)
    assert only(job.acknowledge("n0"), Start)
    assert not job.coordinator.candidate


def test_a_launcher_that_was_started_again_alone_does_not_begin_a_second_job() -> None:
    job = Job(nodes=3, last=layout_of("n0", "n1", "n2"))
    assert job.join("n0") == []
    assert job.pass_time(60.0) == []
    assert job.coordinator.candidate


def test_a_joiner_that_knows_a_newer_layout_teaches_it() -> None:
    job = Job(nodes=3, last=layout_of("n0", "n1", epoch=4))
    job.join("n0")
    job.join("n1", last=layout_of("n0", "n1", "n2", epoch=9, excluded=("n2",)))
    job.pass_time(0.3)
    assert job.coordinator.epoch == 10
    assert job.coordinator.evicted == {"n2"}


def test_heal() -> None:
    assert parse_heal("none") == HealRule(heal="none", limit=0)
    assert parse_heal("restart:12").limit == 12
    assert (parse_heal("").limit, parse_heal("").in_place) == (3, False)
    assert (parse_heal("in-place").limit, parse_heal("in-place:7").limit) == (100, 7)
    assert (parse_heal("restart:5").window_s, parse_heal("restart:5/30m").window_s, parse_heal("in-place:9/2d").window_s) == (3600, 1800, 172_800)
    for wrong in ("restart", "restart:x", "none:1", "in-place:", "in-place:x", "restart:-1", "restart:3/", "restart:3/0h", "restart:3/hour", "none/1h"):
        with pytest.raises(ConfigError, match=r"use none, restart:N .* or in-place\[:N\]"):
            parse_heal(wrong)


def ranks(layout: Layout) -> list[str]:
    return [place.worker for place in layout.placements]


def test_two_nodes_exchange_their_ranks_by_command_and_keep_them_for_later_epochs() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    assert ranks(job.layout) == ["r/n0/0", "r/n0/1", "r/n1/0", "r/n1/1", "r/n2/0", "r/n2/1"]
    job.coordinator.restart("c", plan="p", swap=("n1", "n2"))
    job.acknowledge("n0", "n1", "n2")
    assert only(job.coordinator.started(job.coordinator.epoch), CommandResult)[0].error == ""
    assert ranks(job.layout) == ["r/n0/0", "r/n0/1", "r/n2/0", "r/n2/1", "r/n1/0", "r/n1/1"]
    assert list(job.layout.launchers) == ["n0", "n1", "n2"], "who coordinates next stays the same"
    job.coordinator.restart("d")
    job.acknowledge("n0", "n1", "n2")
    assert ranks(job.layout)[2:4] == ["r/n2/0", "r/n2/1"]


def test_ranks_are_exchanged_though_the_epoch_has_to_be_formed_again() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    job.coordinator.restart("c", swap=("n1", "n0"))
    job.acknowledge("n0", "n1")
    job.pass_time(60.0)
    job.acknowledge("n0", "n1")
    assert job.layout.nodes == ("n1", "n0")


def test_a_command_that_could_not_be_done_exchanges_no_ranks_later() -> None:
    job = Job().running("n0", "n1")
    job.coordinator.restart("c", swap=("n1", "n0"))
    [failed] = only(job.pass_time(60.0), CommandResult)
    assert failed.error
    job.join("n0", "n1", incarnation="c")
    job.pass_time(60.0)
    job.acknowledge("n0", "n1")
    assert job.layout.nodes == ("n0", "n1")


def test_ranks_are_not_exchanged_with_a_node_that_is_not_there() -> None:
    job = Job().running("n0", "n1")
    refused = only(job.coordinator.restart("c", swap=("n1", "n9")), CommandResult)[0]
    assert refused.error == "no launcher of the job is on n9: its ranks cannot be exchanged"
    assert job.coordinator.phase is JobPhase.RUNNING
