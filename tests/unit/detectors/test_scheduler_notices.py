"""What a scheduler announces: it informs, and what ends after it is put down to it; a node that dies without a notice is still a lost node."""

import msgspec
import pytest

from detectors.diagnosis import Diagnosis
from detectors.runtime.detector_set import DetectorSet
from detectors.scheduler_notices import SchedulerNotices
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Event, Evidence, Finding, Kind, Severity
from fakes.diagnosis_chain import Chain, detectors, raised, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event, job, node, worker
from fakes.synthetic_frames import BEGAN, JOB
from remediation.policy.escalation import escalation_of


def notice(time: float = BEGAN, who: Entity | None = None, began: float | None = None, deadline: float | None = BEGAN + 30, **more: str) -> Event:
    told = {"scheduler": "kubernetes", "subject": "pod team/gpt-0", "reason": "evicted", "began": str(time if began is None else began)} | more
    return event("scheduler.preemption", who or node("node-1"), time, **told, **({"deadline": str(deadline)} if deadline is not None else {}))


def withdrawn(time: float) -> Event:
    return event("scheduler.preemption_withdrawn", node("node-1"), time, scheduler="kubernetes", subject="pod team/gpt-0", reason="evicted")


def killed(time: float, where: str = "node-1", slot: int = 0, signal: str = "SIGTERM", **more: str) -> Event:
    return event("exit", worker(where, slot), time, code="-15", signal=signal, epoch="1", step="12", **more)


def lost(time: float, where: str = "node-1") -> tuple[Event, ...]:
    return tuple(event("session.lost", node(where), time, role=role, incarnation="x") for role in ("launcher", "agent"))


def state(time: float, states: str, scheduler: str = "slurm", **more: str) -> Event:
    return event("scheduler.node_state", node("node-1"), time, scheduler=scheduler, states=states, **more)


def tick(time: float) -> Frame:
    return Frame(job=JOB, number=round(time), generation=1, time=time, tick=True)


def told(claims: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in claims]


def finding(entity: Entity, kind: str, since: float, time: float) -> Finding:
    """Of another detector."""
    proof = (Evidence(text=f"{entity} shows {kind}"),)
    return Finding(id=kind, revision=1, detector="d", digest="d", job=JOB, entity=entity, kind=kind, score=1.0, since=since, time=time, evidence=proof, active=True)


def chain() -> Chain:
    set_of = [*detectors(), ("scheduler_notices", SchedulerNotices())]
    return Chain(panel=DetectorSet(JOB, set_of, lambda name, text: pytest.fail(f"{name}: {text}")))  # type: ignore[arg-type]


# --- the detector


def test_fault_what_ends_after_a_notice_was_preempted() -> None:
    claims = claims_of(SchedulerNotices(), [cut_frame(BEGAN, notice()), cut_frame(BEGAN + 2, killed(BEGAN + 2))])
    assert told(claims) == [("scheduler.preemption", "node-1", True), ("node.preempted", "node-1", True)]
    assert claims[1].since == BEGAN + 2
    assert [line.text for line in claims[1].evidence] == [
        "kubernetes ends pod team/gpt-0, 30 s after it was read: evicted", f"worker {worker('node-1', 0).name} was ended by SIGTERM",
    ]  # fmt: skip


@pytest.mark.parametrize("end", [lost(BEGAN + 2)[0], event("peer.lost", node("node-1"), BEGAN + 2, seen_by="node-0")])
def test_fault_a_launcher_that_is_gone_after_a_notice_was_preempted(end: Event) -> None:
    assert told(claims_of(SchedulerNotices(), [cut_frame(BEGAN, notice()), cut_frame(BEGAN + 2, end)]))[1:] == [("node.preempted", "node-1", True)]


def test_fault_a_notice_that_is_read_after_its_effect_explains_it() -> None:
    frames = [cut_frame(BEGAN, killed(BEGAN)), cut_frame(BEGAN + 5, notice(BEGAN + 5, began=BEGAN - 1))]
    assert told(claims_of(SchedulerNotices(), frames))[1:] == [("node.preempted", "node-1", True)]


def test_fault_of_a_whole_job_any_of_its_workers_shows_it() -> None:
    frames = [cut_frame(BEGAN, notice(who=job(), subject="Slurm job 7", reason="preempted")), cut_frame(BEGAN + 2, killed(BEGAN + 2, "node-0"))]
    assert told(claims_of(SchedulerNotices(), frames))[1:] == [("job.preempted", JOB, True)]


@pytest.mark.parametrize(
    "end",
    [
        killed(BEGAN - 60), killed(BEGAN + 3600), killed(BEGAN + 2, "node-0"), killed(BEGAN + 2, expected="1"),
        event("exit", worker("node-1", 0), BEGAN + 2, code="1", signal="", last_lines="RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        event("exit", worker("node-1", 0), BEGAN + 2, code="-9", signal="SIGKILL", status="out of memory"), lost(BEGAN + 2)[1],
    ],
    ids=["before it began", "an hour later", "elsewhere", "by its launcher", "broke by itself", "out of memory", "the agent's session alone"],
)  # fmt: skip
def test_twin_what_a_notice_does_not_explain_is_not_put_down_to_it(end: Event) -> None:
    frames = sorted([cut_frame(BEGAN, notice()), cut_frame(end.time, end), tick(BEGAN + 100)], key=lambda frame: frame.time)
    assert {claim.kind for claim in claims_of(SchedulerNotices(), frames)} == {"scheduler.preemption"}


def test_twin_a_notice_that_was_called_off_or_passed_explains_nothing_afterwards() -> None:
    off = claims_of(SchedulerNotices(), [cut_frame(BEGAN, notice()), cut_frame(BEGAN + 1, withdrawn(BEGAN + 1)), cut_frame(BEGAN + 2, killed(BEGAN + 2))])
    assert told(off) == [("scheduler.preemption", "node-1", True), ("scheduler.preemption", "node-1", False)]
    undated = [cut_frame(BEGAN, notice(deadline=None)), tick(BEGAN + 899), tick(BEGAN + 901), cut_frame(BEGAN + 902, killed(BEGAN + 902))]
    assert told(claims_of(SchedulerNotices(), undated)) == told(off)


def test_twin_what_an_agent_says_of_another_node_counts_for_nothing() -> None:
    foreign = [msgspec.structs.replace(each, node="node-0") for each in (notice(), state(BEGAN, "drain"))]
    assert claims_of(SchedulerNotices(), [cut_frame(BEGAN, *foreign), cut_frame(BEGAN + 2, killed(BEGAN + 2))]) == []


def test_twin_before_a_time_limit_a_death_is_not_put_down_to_it() -> None:
    limit = notice(who=job(), subject="Slurm job 7", reason="time_limit", began=BEGAN + 300, deadline=BEGAN + 300)
    assert told(claims_of(SchedulerNotices(), [cut_frame(BEGAN, limit), cut_frame(BEGAN + 60, killed(BEGAN + 60))])) == [("scheduler.preemption", JOB, True)]
    assert told(claims_of(SchedulerNotices(), [cut_frame(BEGAN, limit), cut_frame(BEGAN + 301, killed(BEGAN + 301))]))[1:] == [("job.preempted", JOB, True)]


@pytest.mark.parametrize("times", [{"began": "nan", "deadline": "inf"}, {"began": "-1e300", "deadline": "1e300"}, {"began": "soon", "deadline": ""}])
def test_fault_times_that_cannot_be_are_no_times(times: dict[str, str]) -> None:
    odd = event("scheduler.preemption", node("node-1"), BEGAN, **times)
    assert told(claims_of(SchedulerNotices(), [cut_frame(BEGAN, odd), tick(BEGAN + 899), tick(BEGAN + 901)])) == [("scheduler.preemption", "node-1", True), ("scheduler.preemption", "node-1", False)]


def test_a_preemption_is_over_a_while_after_the_job_has_gone_on_and_at_once_when_it_is_over() -> None:
    began = [cut_frame(BEGAN, notice()), cut_frame(BEGAN + 2, killed(BEGAN + 2))]
    goes_on = [*began, cut_frame(BEGAN + 4, event("epoch.started", job(), BEGAN + 4, epoch="2", reason="node lost")), tick(BEGAN + 33), tick(BEGAN + 35)]
    (over,) = [claim for claim in claims_of(SchedulerNotices(), goes_on) if not claim.active]
    assert (over.kind, over.evidence[-1].value) == ("node.preempted", BEGAN + 35)
    ended = [*began, cut_frame(BEGAN + 4, event("job.failed", job(), BEGAN + 4, epoch="1"))]
    assert told(claims_of(SchedulerNotices(), ended))[-1] == ("node.preempted", "node-1", False)


def test_a_node_state_is_claimed_until_each_scheduler_takes_it_back() -> None:
    frames = [cut_frame(BEGAN, state(BEGAN, "drain", reason="fan broken"), state(BEGAN, "not_ready", "kubernetes")), cut_frame(BEGAN + 1, state(BEGAN + 1, "", "kubernetes"))]
    claims = claims_of(SchedulerNotices(), [*frames, cut_frame(BEGAN + 2, state(BEGAN + 2, ""))])
    assert (claims[0].kind, claims[0].evidence[0].text) == ("scheduler.node_state", "slurm says of node-1: drain (fan broken)")
    assert [(claim.active, len(claim.evidence)) for claim in claims][:2] == [(True, 1), (True, 2)]
    assert not claims[-1].active


# --- the diagnosis


def test_fault_a_node_that_is_preempted_is_no_lost_node_and_nobody_is_accused() -> None:
    """Its notice, the cries of its peers, the loss that liveness would claim."""
    found = chain().feed(cut_frame(BEGAN, notice()), cut_frame(BEGAN + 3, *lost(BEGAN + 2), raised(worker("node-0", 0), BEGAN + 2.5)))
    (incident,) = found.opened.values()
    assert verdicts([incident]) == [("preempted", [], Severity.SEV3, True)]
    found.take(Diagnosis().diagnose(tuple(found.opened.values()), [finding(node("node-1"), "node.lost", BEGAN + 2, BEGAN + 7)], found.topology))
    assert verdicts(list(found.opened.values())) == [("preempted", [], Severity.SEV3, True)]
    found.feed(cut_frame(BEGAN + 9, event("epoch.started", job(), BEGAN + 9, epoch="2", reason="node lost")), tick(BEGAN + 60))
    assert verdicts(found.latest) == [("preempted", [], Severity.SEV3, False)], "what it explained accuses nobody when it is over"


def test_fault_workers_that_a_scheduler_kills_are_no_reason_to_restart_or_evict_anything() -> None:
    found = chain().feed(cut_frame(BEGAN, notice()), cut_frame(BEGAN + 2, killed(BEGAN + 2), killed(BEGAN + 2, slot=1)))
    assert verdicts(found.latest) == [("preempted", [], Severity.SEV3, True)]
    escalation = escalation_of("preempted", Severity.SEV3)
    assert (escalation.levels, escalation.evidence, escalation.self_healed) == ((), (), True)


def test_twin_without_a_notice_they_were_killed_and_an_hour_after_one_too() -> None:
    assert verdicts(chain().feed(cut_frame(BEGAN + 2, killed(BEGAN + 2))).accusing) == [("worker killed", [worker("node-1", 0).name], Severity.SEV2, True)]
    late = chain().feed(cut_frame(BEGAN, notice()), tick(BEGAN + 100), cut_frame(BEGAN + 3600, killed(BEGAN + 3600)))
    assert [each.cause for each in late.accusing] == ["worker killed"]


def test_twin_a_gpu_that_breaks_while_its_node_is_preempted_is_still_a_broken_gpu() -> None:
    found = chain()
    found.topology = msgspec.structs.replace(found.topology, gpus={"GPU-x": "node-1"})
    found.feed(cut_frame(BEGAN, notice()), cut_frame(BEGAN + 2, killed(BEGAN + 2)))
    broken = finding(Entity(kind=Kind.GPU, name="GPU-x"), "gpu.lost", BEGAN + 1.5, BEGAN + 3)
    found.take(Diagnosis().diagnose(tuple(found.opened.values()), [broken], found.topology))
    assert ("gpu lost", ["GPU-x"], Severity.SEV1, True) in verdicts(found.latest)


def test_a_notice_and_a_state_inform_and_accuse_nobody() -> None:
    found = chain().feed(cut_frame(BEGAN, notice(), state(BEGAN, "drain")))
    assert sorted(verdicts(found.latest)) == [("node state", [], Severity.INFO, True), ("preemption notice", [], Severity.INFO, True)]
