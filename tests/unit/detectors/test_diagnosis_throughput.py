"""A loss of throughput is one incident that lasts until the job is back, whatever explains it meanwhile; nobody is accused on a guess."""

import msgspec
import numpy as np
import pytest

from detectors.diagnosis import Diagnosis
from detectors.features.critical_path import OFF_PATH
from eagle_eye.types import Entity, Evidence, Finding, Incident, Kind, Severity
from fakes.diagnosis_chain import TOPOLOGY, Chain, verdicts
from fakes.synthetic_events import job, node, worker
from fakes.synthetic_frames import BEGAN, JOB, Draft, Fault, SlowWorker, job_frames

NOW = BEGAN + 100.0


def finding(kind: str, entity: Entity, since: float = 0.0, revision: int = 1, *, over: float | None = None) -> Finding:
    """`since`, `over`: seconds after NOW."""
    time = NOW + (since + 1.0 if over is None else over)
    return Finding(
        id=f"{kind}/{entity.name}", revision=revision, detector="d", digest="x", job=JOB, entity=entity, kind=kind, score=0.9,
        since=NOW + since, time=time, evidence=(Evidence(text=f"{kind} of {entity.name}"),), active=over is None,
    )  # fmt: skip


def told(*batches: list[Finding]) -> list[Incident]:
    """The newest revision of every incident, after the findings of several marks."""
    opened: dict[str, Incident] = {}
    latest: dict[str, Incident] = {}
    for findings in batches:
        for incident in Diagnosis().diagnose(tuple(opened.values()), findings, TOPOLOGY):
            latest[incident.id] = incident
            opened[incident.id] = incident
            if not incident.active:
                del opened[incident.id]
    return list(latest.values())


LOSS, CONTENDED, QUOTA = finding("job.throughput_lost", job()), finding("host.contended", node("node-0"), -2.0), finding("cpu.throttled", node("node-0"))
SLOW = finding("worker.slow", worker("node-0", 0))


def over(finding_of: Finding, at: float) -> Finding:
    return finding(finding_of.kind, finding_of.entity, finding_of.since - NOW, finding_of.revision + 1, over=at)


def test_a_loss_that_nothing_explains_is_an_incident_without_culprit_that_only_informs() -> None:
    assert verdicts(told([LOSS])) == [("throughput lost", [], Severity.INFO, True)]
    assert verdicts(told([LOSS], [over(LOSS, 30.0)])) == [("throughput lost", [], Severity.INFO, False)]


@pytest.mark.parametrize(("cause", "word"), [(CONTENDED, "host contended"), (QUOTA, "cpu quota"), (finding("communication.slow", job()), "slow communication"), (finding("link.slow", Entity(kind=Kind.LINK, name="node-0/mlx5_0:1")), "slow link"), (finding("link.slow", job()), "slow link"), (finding("input.slow", job()), "slow input"), (finding("input.slow", worker("node-0", 1)), "slow input"), (finding("garbage_collection.slow", worker("node-0", 1)), "garbage collection")])
def test_what_explains_it_is_the_cause_in_the_same_incident_whichever_is_told_first(cause: Finding, word: str) -> None:
    for order in ([[cause], [LOSS]], [[LOSS], [cause]], [[cause, LOSS]]):
        assert verdicts(told([finding("job.slow", job(), -20.0)], *order)) == [(word, [], Severity.INFO, True)]


def test_it_is_not_over_when_what_explained_it_is() -> None:
    went_on = told([CONTENDED, LOSS], [over(CONTENDED, 14.0)])
    assert verdicts(went_on) == [("throughput lost", [], Severity.INFO, True)]
    ended = told([CONTENDED, LOSS], [over(CONTENDED, 14.0)], [over(LOSS, 600.0)])
    assert verdicts(ended) == [("throughput lost", [], Severity.INFO, False)]


def test_the_cause_stays_where_the_job_is_back_soon_after_it() -> None:
    assert verdicts(told([CONTENDED, LOSS], [over(CONTENDED, 14.0)], [over(LOSS, 20.0)])) == [("host contended", [], Severity.INFO, False)]
    assert verdicts(told([CONTENDED, LOSS], [over(CONTENDED, 14.0), over(LOSS, 14.0)])) == [("host contended", [], Severity.INFO, False)]


def test_a_quota_outranks_the_contention_that_it_looks_like() -> None:
    assert verdicts(told([CONTENDED, LOSS], [QUOTA])) == [("cpu quota", [], Severity.INFO, True)]


def test_a_slow_link_explains_slow_communication_and_is_no_culprit() -> None:
    link = finding("link.slow", Entity(kind=Kind.LINK, name="node-0/mlx5_0:1"))
    assert verdicts(told([finding("communication.slow", job()), LOSS], [link])) == [("slow link", [], Severity.INFO, True)]


def test_a_slow_worker_off_the_critical_path_is_named_and_not_repaired_until_the_others_wait_for_it() -> None:
    line = Evidence(text="nobody waits for it", status=OFF_PATH)
    off = msgspec.structs.replace(SLOW, evidence=(*SLOW.evidence, line))
    cause = "slow worker off the critical path"
    assert verdicts(told([off])) == [(cause, ["run/node-0/0"], Severity.SEV3, True)]
    on = msgspec.structs.replace(SLOW, revision=2)
    assert verdicts(told([off], [on])) == [("slow worker", ["run/node-0/0"], Severity.SEV2, True)]


def test_one_off_the_critical_path_hides_none_in_its_incident_for_which_the_others_wait() -> None:
    """Whichever was told first, and also where both were told together."""
    line = Evidence(text="nobody waits for it", status=OFF_PATH)
    other = finding("worker.slow", worker("node-1", 0), 1.0)
    off, other_off = (msgspec.structs.replace(each, evidence=(*each.evidence, line)) for each in (SLOW, other))
    newer, newer_off = msgspec.structs.replace(other, revision=2), msgspec.structs.replace(off, revision=2)
    accused = [("slow worker", ["run/node-1/0"], Severity.SEV2, True)]
    assert verdicts(told([off, other_off])) == [("slow worker off the critical path", ["run/node-0/0", "run/node-1/0"], Severity.SEV3, True)]
    assert verdicts(told([off, other_off], [newer])) == accused
    assert verdicts(told([SLOW, other], [newer_off])) == accused
    assert verdicts(told([off, other_off], [newer], [msgspec.structs.replace(other_off, revision=3)])) == [("slow worker off the critical path", ["run/node-0/0", "run/node-1/0"], Severity.SEV3, True)]


@pytest.mark.parametrize(("kind", "word"), [("stage.unequal", "unequal stages"), ("work.unequal", "unequal work")])
def test_unequal_work_is_told_and_accuses_nobody(kind: str, word: str) -> None:
    assert verdicts(told([finding(kind, job())])) == [(word, [], Severity.INFO, True)]


def test_a_slow_worker_that_keeps_up_again_is_accused_no_more_though_the_loss_goes_on() -> None:
    assert verdicts(told([SLOW, LOSS])) == [("slow worker", ["run/node-0/0"], Severity.SEV2, True)]
    assert verdicts(told([SLOW, LOSS], [over(SLOW, 10.0)])) == [("throughput lost", [], Severity.INFO, True)]
    assert verdicts(told([SLOW, LOSS], [over(SLOW, 10.0), over(LOSS, 10.0)])) == [("slow worker", ["run/node-0/0"], Severity.SEV2, False)]


def test_another_fault_of_a_job_that_is_slow_is_another_incident() -> None:
    stopped = finding("worker.stopped", worker("node-1", 0), 60.0)
    assert {incident.cause for incident in told([LOSS], [stopped])} == {"throughput lost", "worker stopped"}


# --- through the detectors -----------------------------------------------------------------------------------------------


def link_at_a_quarter(draft: Draft) -> None:
    """What a slow link does to four workers on two busy cores: they wait in the collective, and for one another's processor time."""
    if draft.tick >= 30:
        rng = np.random.default_rng(draft.tick)
        for step in draft.steps:
            step.values["communication_s"] += np.float32(1.5)
            step.values["step_s"] += np.float32(1.5)
            step.values["forward_s"] *= rng.uniform(1.0, 1.3, 4).astype(np.float32)
        draft.metrics[Kind.WORKER]["runqueue_percent"][:] = rng.uniform(10, 40, 4)


def test_a_slow_link_is_slow_communication_until_the_job_is_back_and_no_contended_host() -> None:
    chain = Chain().feed(*job_frames(2, 2, 120, np.random.default_rng(0), faults=[link_at_a_quarter]))
    assert verdicts(chain.latest) == [("slow communication", [], Severity.INFO, True)]
    assert not any(incident.cause == "host contended" for incident in chain.reported)


def quota(share: float, workers: slice, first: int = 30) -> Fault:
    """All compute of these workers takes as much longer as a quota makes it."""

    def fault(draft: Draft) -> None:
        if draft.tick < first:
            return
        for step in draft.steps:
            before = step.values["forward_s"] + step.values["backward_s"]
            extra = np.zeros_like(before)
            extra[workers] = before[workers] * np.float32(1 / share - 1)
            step.values["forward_s"] += extra
            step.values["communication_s"] += extra.max() - extra
            step.values["step_s"] += extra.max()
        draft.metrics[Kind.WORKER]["throttled_percent"][workers] = 98.0
        draft.metrics[Kind.WORKER]["cpu_quota"][workers] = share

    return fault


@pytest.mark.parametrize("workers", [slice(0, 4), slice(0, 2), slice(0, 1)])
def test_a_quota_of_all_workers_of_a_node_or_of_one_is_told_with_its_figure_and_nobody_is_accused(workers: slice) -> None:
    chain = Chain().feed(*job_frames(2, 2, 90, np.random.default_rng(0), faults=[quota(0.4, workers)]))
    assert verdicts(chain.latest) == [("cpu quota", [], Severity.INFO, True)]
    assert chain.accusing == []
    assert any("CPU quota of 0.40 processors" in line.text for line in chain.latest[0].evidence)


def test_twin_a_worker_that_is_slow_by_itself_is_still_the_culprit() -> None:
    chain = Chain().feed(*job_frames(2, 2, 90, np.random.default_rng(0), faults=[SlowWorker(2, 2.5, 30)], step_s=0.25))
    assert verdicts(chain.accusing) == [("slow worker", ["run/node-1/0"], Severity.SEV2, True)]
    assert len(chain.latest) == 1


SLOWER = finding("worker.slower", worker("node-0", 0), -5.0)


def test_a_slower_worker_is_named_until_it_is_a_slow_one_and_then_that_is_the_cause() -> None:
    assert verdicts(told([SLOWER])) == [("slower worker", [SLOWER.entity.name], Severity.SEV3, True)]
    assert verdicts(told([SLOWER], [SLOW])) == [("slow worker", [SLOWER.entity.name], Severity.SEV2, True)]


@pytest.mark.parametrize(("cause", "word"), [(CONTENDED, "host contended"), (QUOTA, "cpu quota")])
def test_twin_a_worker_that_is_slower_on_a_host_that_explains_it_is_not_accused(cause: Finding, word: str) -> None:
    assert verdicts(told([SLOWER], [cause])) == [(word, [], Severity.INFO, True)]


def test_twin_a_slower_worker_explains_no_loss_of_throughput_of_all() -> None:
    found = told([LOSS], [SLOWER])
    assert sorted(verdicts(found)) == sorted([("throughput lost", [], Severity.INFO, True), ("slower worker", [SLOWER.entity.name], Severity.SEV3, True)])
