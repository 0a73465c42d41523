"""What a repair is expected to cost: an elastic job regroups where others are restarted."""

from collections import deque

import pytest
from msgspec.structs import replace

from eagle_eye.types import Culprit, Demand, Entity, Kind, Plan, SnapshotStep
from fakes.sample_values import JOB, a_layout, an_incident
from remediation.engine.job_state import JobState, StartedEpoch
from remediation.engine.plan_builder import PlanRequest, alternatives, make
from remediation.engine.verification import Verification
from remediation.policy.downtime_model import gpu_seconds_unworked, repair_downtime
from remediation.policy.engine_settings import EngineSettings
from remediation.policy.prediction import predict

NODES = ("node-a", "node-b", "node-c")
POLICY = EngineSettings(downtime_s=40.0, regroup_s=0.5, start_s=6.0)


def a_job(heal: str = "in-place", elastic: bool = True) -> JobState:
    (place,) = a_layout().placements
    places = tuple(replace(place, worker=f"run1/{node}/0", node=node, rank=rank) for rank, node in enumerate(NODES))
    job = JobState(name=JOB, epoch=2, layout=replace(a_layout(), placements=places, launchers=dict.fromkeys(NODES, "h:1")))
    job.heal = heal
    job.demand = Demand(declared=dict.fromkeys(NODES, 1), workers_per_node=dict.fromkeys(NODES, 1)) if elastic else None
    job.checkpoints = {0: True}
    return job


def planned(job: JobState, action: str = "evict_node") -> Plan:
    blamed = an_incident(culprits=(Culprit(entity=Entity(kind=Kind.NODE, name="node-b"), confidence=0.9),))
    plan = make(PlanRequest(action=action, own=False, incident=blamed, attempts=(), now=110.0), job, POLICY)
    assert isinstance(plan, Plan)
    return plan


def steps(job: JobState, numbers: range, *, epoch: int, begin: float, every: float, workers: int) -> None:
    for place, number in enumerate(numbers):
        job.steps.append(SnapshotStep(number=number, epoch=epoch, end=begin + place * every, workers=workers, tokens=100.0, loss=2.0, step_s=every, finite=True))


@pytest.mark.parametrize(("heal", "elastic"), [("in-place", True), ("in-place:3", True), ("restart:3", True), ("in-place", False)])
def test_leaving_a_node_out_costs_an_elastic_job_the_epoch_and_others_a_restart(heal: str, elastic: bool) -> None:
    job = a_job(heal, elastic)
    plan = planned(job)
    regroups = elastic and heal != "restart:3"
    assert plan.cost == pytest.approx(3 * (0.5 if regroups else 40.0))
    assert predict(plan, job, POLICY, since=100.0)["downtime_s"] == (0.5 if regroups else 40.0)


def test_what_its_own_epochs_took_counts_more_than_the_policy() -> None:
    job = a_job()
    job.regroup_times.extend([0.1, 0.2, 0.9])
    assert repair_downtime("evict_node", (), job, POLICY) == 0.2
    assert repair_downtime("roll_back", (), job, POLICY) == 40.0, "another state is a restart of all"


def test_restarted_workers_are_missed_while_they_start_unless_they_are_all() -> None:
    job = a_job()
    assert planned(job, "restart_worker").cost == pytest.approx(2 * 0.5 * 3 + 6.0)
    everybody = job.layout.workers if job.layout is not None else ()
    assert gpu_seconds_unworked("restart_worker", everybody, job, POLICY) == 40.0 * 3
    assert gpu_seconds_unworked("dump", (), job, POLICY) == 0.0


def test_it_is_judged_sooner_as_nothing_is_done_again() -> None:
    job, other = a_job(), a_job("restart:3")
    for each in (job, other):
        steps(each, range(300), epoch=2, begin=0.0, every=1.0, workers=3)
        each.rates[3] = deque([(299.0, 1.0)])
    quick, slow = (predict(planned(each), each, POLICY, since=300.0)["verify_s"] for each in (job, other))
    assert quick == POLICY.verify_s
    assert slow > 300


def test_a_slow_job_leaves_a_node_out_where_the_standstill_of_a_restart_would_be_dearer() -> None:
    blamed = an_incident(since=90.0, culprits=(Culprit(entity=Entity(kind=Kind.NODE, name="node-b"), confidence=0.9),))
    policy = EngineSettings(downtime_s=40.0, regroup_s=0.5, horizon_s=100.0, restart_success_share=0.0)
    found = {}
    for heal in ("in-place", "restart:3"):
        job = a_job(heal)
        job.rates[3] = deque([(80.0, 1.0)])
        steps(job, range(100, 110), epoch=2, begin=91.0, every=2.0, workers=3)
        found[heal] = alternatives(blamed, job, policy, frozenset())[0].action
    assert found == {"in-place": "evict_node", "restart:3": "nothing"}


def test_the_measured_standstill_is_that_between_the_steps() -> None:
    job = a_job()
    steps(job, range(10), epoch=2, begin=100.0, every=1.0, workers=3)
    steps(job, range(10, 16), epoch=3, begin=110.75, every=1.5, workers=2)
    job.rates[2] = deque([(118.0, 1 / 1.5)])
    job.sizes = [(0.0, 3), (109.2, 2)]
    trial = Verification(plan=planned(job), incident="i", began=109.2, since=90.0, opened=95.0, patience=0.0, predicted={})
    outcome = trial.outcome(job, "done", 120.0, "")
    assert outcome.actual["downtime_s"] == pytest.approx(0.25), "1.75 s between two steps, of which one took 1.5"
    assert outcome.transition_s == pytest.approx(110.75 - 95.0), "since the incident was opened it took longer"


def test_it_is_said_what_helped_is_measured_by_where_that_is_not_what_was_predicted() -> None:
    job = a_job()
    steps(job, range(10), epoch=2, begin=100.0, every=1.0, workers=3)
    steps(job, range(10, 13), epoch=3, begin=110.0, every=5.0, workers=2)  # slow while it warms up
    steps(job, range(13, 30), epoch=3, begin=121.0, every=1.0, workers=2)
    job.rates[2], job.stream_time, job.sizes = deque([(118.0, 1.0)]), 140.0, [(0.0, 3), (109.2, 2)]
    policy = EngineSettings(verify_steps=5)
    judged = {}
    for forecast in (1.0, 2.0):
        trial = Verification(plan=planned(job), incident="i", began=109.2, since=90.0, opened=95.0, patience=0.0, predicted={"throughput_per_s": forecast, "verify_s": 60.0})
        verdict, judged[forecast] = trial.judge(job, policy)
        assert verdict == "healed"
        actual = trial.outcome(job, "done", 140.0, "", last=policy.verify_steps + 1).actual["throughput_per_s"]
        assert actual == pytest.approx(1.0), "of the steps by which it was judged"
    assert judged == {1.0: "100% of what 2 workers did before", 2.0: "100% of what 2 workers did before, 50% of what was predicted"}


@pytest.mark.parametrize(("seconds", "verdict"), [(29.0, None), (31.0, "healed")])
def test_a_script_that_marks_no_steps_has_healed_once_it_has_run_without_a_new_fault(seconds: float, verdict: str | None) -> None:
    job = a_job()
    job.stream_time = job.telemetry_until = 100.0 + seconds
    trial = Verification(plan=planned(job), incident="i", began=100.0, since=90.0, opened=95.0, patience=0.0, predicted={"downtime_s": 5.0})
    found, why = trial.judge(job, EngineSettings(verify_s=30.0))
    assert found == verdict
    assert "marks no steps" in why


# --- the work since the newest checkpoint ----------------------------------------------------------------------------------


def a_job_at_step_250(*checkpoints: int, heal: str = "restart:3", elastic: bool = False) -> JobState:
    """Three workers, two healthy seconds a step, 100 tokens each."""
    job = a_job(heal, elastic)
    steps(job, range(250), epoch=2, begin=0.0, every=2.0, workers=3)
    job.rates[3] = deque([(498.0, 0.5 if elastic else 50.0)])
    job.checkpoints = dict.fromkeys(checkpoints, True)
    return job


def test_a_restart_of_all_costs_its_downtime_and_the_steps_since_the_newest_checkpoint_on_every_rank() -> None:
    job = a_job_at_step_250(100, 200)
    assert job.steps_since_checkpoint() == 50
    for action in ("restart_worker", "evict_node"):
        assert planned(job, action).cost == pytest.approx(3 * (40.0 + 50 * 2.0))
    assert predict(planned(job), job, POLICY, since=500.0)["redone_s"] == pytest.approx(100.0)
    assert gpu_seconds_unworked("roll_back", (), job, POLICY, resume_step=100) == pytest.approx(3 * (40.0 + 150 * 2.0))
    assert gpu_seconds_unworked("reattempt", (), job, POLICY) == 0.0


def test_right_after_a_checkpoint_nothing_is_done_again() -> None:
    job = a_job_at_step_250(250)
    assert job.steps_since_checkpoint() == 0
    assert planned(job).cost == pytest.approx(3 * 40.0)


def test_an_elastic_job_that_lives_on_in_other_workers_does_nothing_again() -> None:
    job = a_job_at_step_250(100, heal="in-place", elastic=True)
    assert planned(job).cost == pytest.approx(3 * 0.5)
    assert gpu_seconds_unworked("roll_back", (), job, POLICY, resume_step=100) == pytest.approx(3 * (40.0 + 150 * 2.0)), "another state: all of them"


def test_without_a_known_checkpoint_it_begins_where_its_workers_were_seen_to_begin() -> None:
    job = a_job_at_step_250()
    assert job.steps_since_checkpoint() == 250
    steps(job, range(240, 246), epoch=3, begin=600.0, every=2.0, workers=3)
    begun = StartedEpoch(epoch=3, reason="death", cause="", plan="", time=590.0, excluded=())
    job.started_epochs.append(begun)
    assert job.steps_since_checkpoint() == 6, "the state of step 240 was there to resume from"
    job.started_epochs[-1] = begun._replace(in_place=True)
    assert job.steps_since_checkpoint() == 246, "they lived on: nothing was loaded"


def test_of_two_jobs_that_are_as_slow_only_the_one_with_a_fresh_checkpoint_is_restarted() -> None:
    blamed = an_incident(since=500.0, culprits=(Culprit(entity=Entity(kind=Kind.WORKER, name="run1/node-b/0"), confidence=0.9),))
    policy = EngineSettings(downtime_s=40.0, horizon_s=1000.0, restart_success_share=0.5)
    found = {}
    for checkpoint in (0, 250):
        job = a_job_at_step_250(checkpoint)
        steps(job, range(250, 260), epoch=2, begin=502.0, every=2.5, workers=3)
        found[checkpoint] = {choice.action: choice for choice in alternatives(blamed, job, policy, frozenset({"evict_node"}))}
    nothing = 3 * 1000.0 * 0.2
    assert {at: next(iter(choices)) for at, choices in found.items()} == {0: "nothing", 250: "restart_worker"}
    assert found[0]["nothing"].cost == pytest.approx(nothing)
    assert found[0]["restart_worker"].cost == pytest.approx(3 * (40.0 + 260 * 2.0) + 0.5 * nothing)
    assert found[250]["restart_worker"].cost == pytest.approx(3 * (40.0 + 10 * 2.0) + 0.5 * nothing)
    assert found[250]["restart_worker"].why == "40.0 s of downtime and 20.0 s of work done again; 50% of slow-downs end with it"


def test_what_is_done_again_after_a_restart_is_no_part_of_its_measured_downtime() -> None:
    job = a_job_at_step_250(200)
    job.sizes = [(0.0, 3)]
    restart = planned(job, "restart_worker")
    steps(job, range(200, 260), epoch=3, begin=512.0, every=2.0, workers=3)
    trial = Verification(plan=restart, incident="i", began=503.0, since=498.5, opened=500.0, patience=0.0, predicted={})
    outcome = trial.outcome(job, "done", 640.0, "")
    assert outcome.transition_s == pytest.approx(512.0 + 50 * 2.0 - 500.0), "until new ground"
    assert outcome.actual["downtime_s"] == pytest.approx(12.0 - 2.0), "until its first step began"
    assert outcome.actual["redone_s"] == pytest.approx(100.0)
