"""Each fault of the demo, on a job of paper: what is done, in which order, and what is left alone."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from eagle_eye.errors import Stale
from eagle_eye.types import Entity, IncidentState, Kind, Mode, Severity
from remediation.engine.tracked_incident import StaleLayout

WORKER = Entity(kind=Kind.WORKER, name="run1/node-b/1")
NODE = Entity(kind=Kind.NODE, name="node-b")


@pytest.fixture
def make(make_world):
    return make_world


# --- what the job heals itself -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["worker killed", "cuda error"])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_death_is_healed_by_the_job_and_only_written_down(make, cause, mode):
    world = make(mode)
    died = world.job.die(WORKER.name)
    world.find(cause, WORKER, event=died)
    world.run(8)
    assert world.sent == []
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED
    assert all(plan.own for plan in world.ledger.plans(incident="i1"))


def test_the_costs_of_an_outcome_are_those_of_the_fault(make):
    world = make()
    since = world.clock.now()
    died = world.job.die(WORKER.name)
    world.clock.advance(0.3)
    world.find("worker killed", WORKER, event=died, since=since)
    world.run(8)
    outcome = world.outcome("restart_worker")
    assert outcome.detection_s == pytest.approx(0.3)
    # 6 s of steps, minus a warm-up: 27 steps, the newest checkpoint at 20; 7 steps are done again before new ground
    again = world.job.step_s * 8 + 0.6
    assert outcome.transition_s == pytest.approx(again - 0.3, abs=world.job.step_s)
    assert outcome.sub_healthy_s == 0
    assert outcome.actual["throughput_per_s"] == pytest.approx(outcome.predicted["throughput_per_s"], rel=0.01)


@pytest.mark.parametrize(("end", "outcome"), [("job.finished", "done"), ("job.failed", "failed")])
def test_a_repair_is_called_failed_at_the_end_of_the_job_only_if_the_job_failed(make, end, outcome):
    world = make()
    world.find("worker killed", WORKER, event=world.job.die(WORKER.name))
    world.run(0.8)
    world.job.tell(end)
    world.run(0.2)
    assert world.outcomes() == [("restart_worker", outcome)]


@pytest.mark.parametrize("end", ["job.finished", "job.failed"])
def test_the_next_leader_does_not_wait_for_a_job_that_is_over(make, end):
    world = make()
    job, other = world.job.layout, replace(world.job.layout, job="tenant/other/run1")
    for layout in (job, other):
        world.ledger.save_job(layout.job, layout, "127.0.0.1:7001", "restart:3", 3)
    world.run(2)
    assert set(world.ledger.jobs()) == {job.job, other.job}
    world.job.tell(end)
    world.run(2)
    assert set(world.ledger.jobs()) == {other.job}


def test_an_incident_may_be_over_before_its_epoch_is_heard_of(make):
    world = make()
    died = world.job.die(WORKER.name)
    world.find("worker killed", WORKER, event=died)
    world.find("worker killed", WORKER, event=died, revision=2, active=False, since=died.time)
    world.run(8)
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


def test_an_incident_that_is_over_when_it_is_first_told_is_healed_by_its_epoch(make):
    world = make()
    died = world.job.die(WORKER.name)
    world.find("worker killed", WORKER, event=died, active=False, since=died.time)
    world.run(8)
    assert world.outcomes() == [("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


def test_the_epoch_may_be_heard_of_before_the_incident(make):
    world = make()
    died = world.job.die(WORKER.name)
    world.run(0.2)
    world.find("worker killed", WORKER, event=died, since=died.time)
    world.run(8)
    assert world.sent == []
    assert world.outcomes() == [("restart_worker", "done")]


def test_a_lost_node_is_left_behind_by_the_job_and_nobody_is_cordoned(make):
    world = make(Mode.OBSERVE)
    world.job.lose("node-b")
    world.find("node lost", NODE, severity=Severity.SEV1)
    world.run(12)
    assert world.sent == []
    assert world.outcomes() == [("evict_node", "done")]
    assert world.state() is IncidentState.HEALED
    assert world.ledger.cordoned() == ()


def test_a_fault_that_stops_the_job_while_a_repair_is_verified_does_not_wait_for_that(make):
    """The job may not heal itself, and ends if no command comes within seconds; of the repair before nothing can be seen meanwhile."""
    world = make()
    world.job.spend()
    world.find("worker killed", WORKER)
    world.run(2)
    assert world.sent == ["restart"]
    world.job.spend()
    world.find("launcher lost", NODE, name="i2")
    world.run(4)
    assert world.sent == ["restart", "restart"]
    world.run(12)
    assert (world.state("i1"), world.state("i2")) == (IncidentState.HEALED, IncidentState.HEALED)
    assert (world.outcomes("i1"), world.outcomes("i2")) == ([("restart_worker", "done")], [("restart_worker", "done")])


@pytest.mark.parametrize(("cause", "sent"), [("launcher lost", ["reattempt", "restart"]), ("job stalled", ["reattempt"])], ids=["gone", "twin: it stands with the stopped one"])
def test_a_part_that_is_gone_since_before_a_stopped_worker_was_continued_does_not_wait_for_that(make, cause, sent):
    """What goes on in place brings nobody back, and is not seen to help before that is mended: each waited for the other, until the job ended."""
    world = make()
    world.job.stalled = True
    world.find("worker stopped", WORKER, severity=Severity.SEV3)
    before = world.clock.now()
    world.run(0.1)
    world.find(cause, NODE if cause == "launcher lost" else None, name="i2", since=before)
    world.job.budget_left, world.job.stalled = 0, True
    if cause == "launcher lost":
        world.job.spend()
    world.run(1.5)
    assert [action for action in world.sent if action != "dump"] == sent


def test_sub_healthy_time_grows_until_the_job_is_whole_again(make):
    world = make()
    world.job.lose("node-b")
    world.find("node lost", NODE, severity=Severity.SEV1)
    world.run(12)
    early = world.outcome("evict_node").sub_healthy_s
    world.job.nodes = ("node-a", "node-b")
    world.job._begin("node returned")
    world.run(5)
    late = world.outcome("evict_node").sub_healthy_s
    assert late == pytest.approx(2 * 12, abs=1.0)
    assert 0 < early < late


def test_a_coordinator_that_does_nothing_is_told_to_restart(make):
    world = make(Mode.OBSERVE)
    world.job.stalled = True
    world.find("worker killed", WORKER)
    world.run(9)
    assert world.sent == []
    world.run(10)
    assert world.sent == ["restart"]
    assert world.commander.sent[0].arguments["own"]
    assert world.state() is IncidentState.HEALED


def test_a_spent_budget_makes_the_restart_a_matter_of_mode(make):
    for mode, sent in ((Mode.OBSERVE, []), (Mode.AUTO, ["restart"])):
        world = make(mode)
        world.job.budget_left = 0
        died = world.job.die(WORKER.name)
        world.find("worker killed", WORKER, event=died)
        world.run(12)
        assert world.sent == sent
        plan = world.ledger.plans(incident="i1")[-1]
        assert (plan.action, plan.own) == ("restart_worker", False)


def test_a_death_that_another_incident_explains_is_closed_without_a_plan_of_its_own(make):
    world = make()
    world.job.stalled = True
    found = world.find("worker killed", WORKER)
    world.run(0.1)
    world.find("worker killed", None, revision=2, active=False, since=found.since)
    world.find("node lost", NODE, name="i2", severity=Severity.SEV1, since=found.since)
    world.job.lose("node-b")
    world.run(12)
    assert world.outcomes() == []
    assert world.state() is IncidentState.CLOSED
    assert world.outcomes("i2") == [("evict_node", "done")]


def test_an_error_that_stops_nothing_restarts_nothing(make):
    world = make()
    world.find("gpu error", WORKER)
    world.run(20)
    assert world.sent == []
    assert world.state() is IncidentState.OPEN


# --- standstill ----------------------------------------------------------------------------------------------------


def test_a_stopped_worker_is_continued_at_once(make):
    world = make(Mode.OBSERVE)
    world.job.stalled = True
    world.find("worker stopped", WORKER)
    world.run(4)
    assert world.sent == ["reattempt"]
    assert world.commander.sent[0].arguments == {"workers": [WORKER.name]}
    assert world.outcomes() == [("reattempt", "done")]
    assert world.state() is IncidentState.HEALED


def test_a_worker_that_cannot_be_continued_is_restarted(make):
    world = make(Mode.OBSERVE)
    world.job.stalled, world.job.resumed = True, False
    began = world.clock.now()
    world.find("worker stopped", WORKER)
    world.run(14)
    assert world.sent == ["reattempt", "restart"]
    assert world.outcomes() == [("reattempt", "failed"), ("restart_worker", "done")]
    restart = world.outcome("restart_worker")
    assert restart.progress[0].time - began <= 3.5
    assert world.state() is IncidentState.HEALED


def test_a_hang_is_restarted_at_once_in_every_mode_after_its_stacks_were_kept(make):
    world = make(Mode.OBSERVE)
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(0.2)
    assert world.sent == ["dump", "restart"]
    assert world.commander.sent[0].timeout <= 6.0
    dump = next(plan for plan in world.ledger.plans(incident="i1") if plan.action == "dump")
    assert "in all_reduce" in world.ledger.progress(dump.id)[-1].detail
    world.run(10)
    assert world.state() is IncidentState.HEALED


def test_stacks_that_cannot_be_had_do_not_stop_the_repair(make):
    world = make()
    world.commander.answers["dump"] = TimeoutError("no answer")
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(10)
    assert world.outcomes() == [("dump", "failed"), ("restart_worker", "done")]


def test_a_restart_that_the_job_does_itself_meanwhile_makes_the_plan_stale(make):
    world = make()
    world.commander.answers["restart"] = lambda sent: world.job.die(WORKER.name) and world.job._restart(sent)
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(10)
    assert world.sent == ["dump"]
    assert world.outcomes() == [("dump", "done"), ("restart_worker", "stale"), ("restart_worker", "done")]
    assert world.state() is IncidentState.HEALED


def test_an_epoch_that_never_comes_is_not_asked_for_again_and_again(make):
    world, asked = make(), []

    def late(_sent):
        asked.append(world.clock.now())
        raise Stale("epoch 1 is over: epoch 2 has begun; plan anew")

    world.commander.answers["restart"] = late
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(130)
    waits = [after - before for before, after in pairwise(asked)]
    assert waits == pytest.approx([1, 2, 4, 8, 16, 30, 30, 30], abs=0.2)
    world.job.die(WORKER.name)  # the newer layout is here at last: nothing is waited for
    world.run(10)
    assert len(asked) == len(waits) + 1
    assert world.outcomes()[-1] == ("restart_worker", "done")
    assert world.state() is IncidentState.HEALED


def test_a_newer_layout_is_planned_on_at_once_and_waited_on_from_the_beginning():
    outdated = StaleLayout()
    for _ in range(3):
        outdated.again("first", 10.0)
    assert outdated.holds("first", 13.9)
    assert not outdated.holds("second", 10.0)
    outdated.again("second", 20.0)
    assert outdated.holds("second", 20.9)
    assert not outdated.holds("second", 21.0)


def test_a_hang_at_the_start_of_an_epoch_is_not_taken_for_one_that_the_epoch_ended(make):
    world = make()
    world.job.die(WORKER.name)
    world.run(0.2)
    world.job.stalled = True
    world.find("python hang", WORKER, since=world.job._began - 0.3)
    world.run(10)
    assert world.sent == ["dump", "restart"]
    assert world.outcomes() == [("dump", "done"), ("restart_worker", "done")]


# --- slow ----------------------------------------------------------------------------------------------------------


def test_a_slow_node_is_restarted_first_and_left_when_it_stays_slow(make):
    world = make()
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(0.5)
    assert world.sent == []
    world.run(80)
    assert [sent.arguments["exclude"] for sent in world.commander.sent] == [[], ["node-b"]]
    assert world.outcomes() == [("restart_worker", "failed"), ("evict_node", "done")]
    plan = world.ledger.plans(incident="i1")[0]
    assert {loser.action for loser in plan.alternatives} == {"nothing"}
    assert plan.benefit > 0
    assert world.state() is IncidentState.HEALED


def test_a_slow_node_that_comes_back_as_a_new_incident_is_left_at_once(make):
    world = make()
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(6)
    world.find("slow node", NODE, name="i2", since=world.clock.now() - 1)
    world.run(30)
    assert world.outcomes() == [("restart_worker", "failed")]
    assert world.outcomes("i2") == [("evict_node", "done")]
    assert world.state() is IncidentState.FAILED
    assert world.state("i2") is IncidentState.HEALED


def test_a_slightly_slow_node_is_cheapest_left_alone(make):
    world = make(restart_success_share=0.0, rank_swap=False)
    world.job.slow = lambda nodes: 1.3 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(20)
    assert world.sent == []
    assert world.state() is IncidentState.OPEN


def test_a_slow_down_that_ends_before_it_settled_is_closed(make):
    world = make()
    found = world.find("slow node", NODE)
    world.run(0.5)
    world.find("slow node", NODE, revision=2, active=False, since=found.since)
    world.run(10)
    assert world.sent == []
    assert world.state() is IncidentState.CLOSED


# --- loss ----------------------------------------------------------------------------------------------------------


def test_a_bad_number_rolls_back_and_the_same_step_again_is_skipped(make):
    world = make()
    world.job.bad_batch = bad = world.job.step + 2
    world.run(2)
    world.find("loss not finite", since=world.clock.now() - 1.5)
    world.run(40)
    restarts = [sent.arguments for sent in world.commander.sent]
    good = (bad // 10) * 10
    assert [(restart["resume_step"], restart["skip"]) for restart in restarts] == [(good, []), (good, [bad])]
    assert world.outcomes() == [("roll_back", "failed"), ("roll_back", "done")]
    assert world.state() is IncidentState.HEALED


def test_a_bad_number_that_comes_back_in_a_new_incident_is_skipped_as_well(make):
    world = make()
    world.job.bad_batch = bad = world.job.step + 2
    world.run(2)
    world.find("loss not finite", since=world.clock.now() - 1.5)
    world.run(3)
    world.job.silent = False
    while world.job.step <= bad:
        world.run(0.1)
    world.run(0.1)
    world.find("loss not finite", name="i2", since=world.clock.now() - 0.15)
    world.run(30)
    assert [sent.arguments["skip"] for sent in world.commander.sent] == [[], [bad]]


def test_without_a_good_checkpoint_nothing_is_rolled_back(make):
    world = make()
    world.engine._state.job(world.job.name).checkpoints.clear()
    world.job.bad_batch = world.job.step + 1
    world.job.checkpoint_every = 10**6
    world.run(2)
    world.find("loss not finite", since=world.clock.now() - 1.5)
    world.run(5)
    assert world.sent == []
    assert world.state() is IncidentState.FAILED


# --- nobody is touched ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cause", "severity"), [("unknown", Severity.SEV1), ("input stalled", Severity.INFO)])
def test_unknown_and_informing_incidents_touch_nobody(make, cause, severity):
    world = make()
    world.find(cause, NODE, severity=severity)
    world.run(20)
    assert world.sent == []
    assert world.outcomes() == [("notify", "done")]


def test_while_the_stream_is_away_nothing_is_judged(make):
    world = make()
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(4)
    assert world.sent == ["restart"]
    world.job.silent = True
    world.run(200)
    assert world.sent == ["restart"]


def test_nothing_is_judged_while_a_node_of_the_job_sends_no_telemetry(make):
    world = make()
    world.job.slow = lambda nodes: 6.0 if "node-b" in nodes else 1.0
    world.run(8)
    world.find("slow node", NODE, since=world.clock.now() - 6)
    world.run(1.2)
    world.job.silent_nodes = ("node-b",)
    world.run(100)
    assert world.sent == ["restart"]
    world.job.silent_nodes = ()
    world.run(10)
    assert world.sent == ["restart", "restart"]


def test_another_fault_of_the_job_is_not_held_against_the_last_repair(make):
    world = make(self_healing_s=60.0)
    world.job.stalled = True
    world.find("python hang", WORKER)
    world.run(1)
    world.job.stalled = True  # the next worker dies, and its coordinator takes its time
    world.find("worker killed", Entity(kind=Kind.WORKER, name="run1/node-a/0"), name="i2")
    world.run(50)
    world.job._begin("death")
    world.run(8)
    assert world.outcomes()[-1] == ("restart_worker", "done")
    assert world.state("i2") is IncidentState.HEALED
    assert world.ledger.cordoned() == ()


def test_a_doubtful_culprit_is_not_isolated(make):
    world = make(confidence=0.95)
    died = world.job.die(WORKER.name)
    world.find("ecc error", WORKER, severity=Severity.SEV1, event=died)
    world.run(12)
    assert world.sent == []
    assert world.state() is IncidentState.HEALED


def test_a_missing_throughput_after_a_death_isolates_nobody(make):
    world = make()
    world.job.slow = lambda nodes: 1.0 if world.job.epoch == 1 else 2.0
    died = world.job.die(WORKER.name)
    world.find("worker killed", WORKER, event=died)
    world.run(50)
    assert world.sent == []
    assert world.outcomes() == [("restart_worker", "failed")]
    assert world.state() is IncidentState.FAILED


def test_a_broken_part_is_left_out_though_the_job_runs_again(make):
    world = make()
    died = world.job.die(WORKER.name)
    found = world.find("ecc error", WORKER, severity=Severity.SEV1, event=died)
    world.find("ecc error", WORKER, severity=Severity.SEV1, revision=2, active=False, since=found.since)
    world.run(12)
    assert world.outcomes() == [("restart_worker", "done"), ("evict_node", "done")]
    assert [sent.arguments["exclude"] for sent in world.commander.sent] == [["node-b"]]


def test_the_last_node_is_never_left_out(make):
    world = make()
    world.job.lose("node-b")
    world.run(3)
    died = world.job.die("run1/node-a/0")
    world.find("ecc error", Entity(kind=Kind.WORKER, name="run1/node-a/0"), severity=Severity.SEV1, event=died)
    world.run(12)
    assert world.sent == []
    assert world.state() is IncidentState.HEALED
