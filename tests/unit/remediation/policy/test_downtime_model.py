"""What a repair is expected to cost: an elastic job regroups where others are restarted."""

from collections import deque

import pytest
from msgspec.structs import replace

from eagle_eye.types import Culprit, Demand, Entity, Kind, Plan, SnapshotStep
from fakes.sample_values import JOB, a_layout, an_incident
from remediation.engine.job_state import JobState
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
