"""Early ends: a worker that is done while the others are not, told from the end of the training."""

import pytest

from detectors.diagnosis import Diagnosis
from detectors.early_ends import EarlyEnds
from detectors.exceptions import Exceptions
from detectors.exits import Exits
from detectors.stall import Stall
from eagle_eye.config import StallConfig
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Event, Finding, Incident, Severity, Topology
from fakes.synthetic_events import claims_of, cut_frame, event, job, worker
from fakes.synthetic_frames import JOB, layout_of

A, B, C, D = (worker(name, slot) for name in ("node-0", "node-1") for slot in (0, 1))
LAYOUT = layout_of(2, 2)
RESET = "[pair.cc:553] Connection closed by peer [127.0.0.1]:51122"


def ended(who: Entity, time: float, step: object = 12, epoch: int = 1) -> Event:
    return event("worker.finished", who, time, rank=1, epoch=epoch, step=step, pid=7)


def cried(who: Entity, time: float, step: object = 12, epoch: int = 1) -> Event:
    return event("exception", who, time, type="RuntimeError", message=RESET, step=step, epoch=epoch)


def begun(time: float, epoch: int = 2, **more: object) -> Event:
    return event("epoch.started", job(), time, epoch=epoch, reason="death", **more)


def waits(who: Entity, time: float, activity: str = "awaits peers", age_s: float = 1.2, **more: object) -> Event:
    return event("stall", who, time, step=12, step_marks=2, marks=40, phase="communication", age_s=age_s, state="S", epoch=1, activity=activity, **more)


def tick(time: float) -> Frame:
    return Frame(job=JOB, number=int(time), generation=1, time=time, tick=True, layout=LAYOUT)


def told(*frames: Frame) -> list[Claim]:
    return claims_of(EarlyEnds(), frames)


def cuts(*events: Event) -> list[Frame]:
    return [cut_frame(event.time + 0.01, event, layout=LAYOUT) for event in events]


def who_ended_early(*events: Event) -> list[tuple[str, bool]]:
    return [(claim.entity.name, claim.active) for claim in told(*cuts(*events))]


# --- the others break ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0)])
def test_fault_a_worker_that_ends_with_zero_in_the_middle_is_named_with_its_step_whatever_is_told_first(order: tuple[int, ...]) -> None:
    events = (ended(B, 10.0), cried(A, 10.02), cried(C, 10.05))
    (claim,) = told(*cuts(*(events[index] for index in order)))
    assert (claim.entity, claim.kind, claim.active, claim.since) == (B, "worker.ended_early", True, 10.0)
    assert claim.evidence[0].text == f"worker {B.name} ended with exit code 0 in step 12 while others still needed it"
    assert claim.evidence[0].event == events[0].id
    assert claim.evidence[1].event in {event.id for event in events[1:]}


def test_it_is_over_with_the_next_epoch() -> None:
    assert who_ended_early(ended(B, 10.0), cried(A, 10.02), begun(11.0)) == [(B.name, True), (B.name, False)]


def test_an_end_that_is_overtaken_by_the_next_epoch_is_told_all_the_same() -> None:
    assert who_ended_early(cried(A, 10.02), begun(11.0), ended(B, 10.0)) == [(B.name, True), (B.name, False)]
    assert who_ended_early(cried(A, 10.02), begun(11.0), begun(12.0, epoch=3), begun(13.0, epoch=4), ended(B, 10.0)) == []


def test_twin_the_last_one_at_the_end_of_the_training_whom_most_have_left() -> None:
    """It loses its connections in its last barrier; two of four that ended early break both others."""
    assert who_ended_early(ended(A, 10.0), ended(B, 10.02), cried(C, 10.05)) == []
    assert who_ended_early(ended(A, 10.0), ended(B, 10.02), cried(C, 10.05), cried(D, 10.06)) == [(A.name, True), (B.name, True)]


def test_twin_workers_that_end_one_after_the_other_at_the_end_of_the_training() -> None:
    assert who_ended_early(*(ended(who, 10.0 + 2 * index, step=99) for index, who in enumerate((A, B, C, D)))) == []


def test_twin_a_job_that_goes_on_without_it_did_not_need_it() -> None:
    """By the steps where they are known, else by the clock."""
    assert who_ended_early(ended(B, 10.0, step=2), cried(A, 12.0, step=14)) == []
    assert who_ended_early(ended(B, 10.0, step=""), cried(A, 60.0, step="")) == []
    assert who_ended_early(ended(B, 10.0, step=""), cried(A, 10.1, step="")) == [(B.name, True)]


def test_twin_who_cries_for_another_that_was_killed() -> None:
    killed = event("exit", C, 10.01, code=-9, signal="SIGKILL", epoch=1, step=12)
    assert who_ended_early(ended(B, 10.0), killed, cried(A, 10.05)) == []
    assert who_ended_early(ended(B, 10.0), cried(A, 10.05), killed) == [(B.name, True), (B.name, False)]


def test_twin_what_the_others_die_of_afterwards_is_no_other_fault() -> None:
    odd = event("exception", C, 12.0, type="ValueError", message="too few gradients", epoch=1, step=12)
    assert who_ended_early(ended(B, 10.0), cried(A, 10.05), odd) == [(B.name, True)]


def test_twin_who_cried_before_it_ended() -> None:
    assert who_ended_early(cried(A, 5.0), ended(B, 10.0)) == []


def test_elastic_workers_that_must_meet_again_without_it_needed_it() -> None:
    again = begun(11.0)
    again = event("epoch.started", job(), 11.0, epoch=2, reason="broken", in_place=1)
    assert who_ended_early(ended(B, 10.0), again) == [(B.name, True), (B.name, False)]
    assert who_ended_early(ended(B, 10.0), event("epoch.started", job(), 11.0, epoch=2, reason="join", in_place=1)) == []


# --- the others wait -------------------------------------------------------------------------------------------------


def test_fault_a_worker_for_which_all_others_wait_is_named_once_they_have_waited_for_long() -> None:
    events = cut_frame(12.0, ended(B, 10.0), *(waits(who, 11.9) for who in (A, C, D)), layout=LAYOUT)
    assert told(events, tick(30.0)) == []
    (claim,) = told(events, tick(30.0), tick(42.0), tick(43.0))
    assert (claim.entity, claim.active) == (B, True)
    assert "3 others wait for their peers for more than 30 s" in claim.evidence[1].text


@pytest.mark.parametrize("activity", ["working", "standing", "unknown", "hung"])
def test_twin_the_others_wait_for_one_that_is_still_there(activity: str) -> None:
    events = cut_frame(12.0, ended(B, 10.0), waits(A, 11.9), waits(C, 11.9), waits(D, 11.9, activity), layout=LAYOUT)
    assert told(events, *(tick(12.0 + second) for second in range(100))) == []


@pytest.mark.parametrize(("recorded", "named"), [({"collective": "all_reduce", "collective_number": 7, "collective_pending": 1}, True), ({}, False)])
def test_fault_and_twin_what_gpus_exchange_is_seen_by_their_flight_recorders_alone(recorded: dict[str, object], named: bool) -> None:
    events = cut_frame(12.0, ended(B, 10.0), *(waits(who, 11.9, gpu=1, **recorded) for who in (A, C, D)), layout=LAYOUT)
    assert bool(told(events, tick(42.0), tick(43.0))) is named
    assert told(events, tick(620.0)), "the patience is over"


def test_twin_who_moves_again_waited_for_nobody() -> None:
    events = cut_frame(12.0, ended(B, 10.0), *(waits(who, 11.9) for who in (A, C, D)), layout=LAYOUT)
    moved = cut_frame(20.0, event("resumed", C, 20.0, step=12, epoch=1), layout=LAYOUT)
    assert told(events, moved, *(tick(21.0 + second) for second in range(60))) == []


def test_the_patience_is_the_section_stalls() -> None:
    events = cut_frame(12.0, ended(B, 10.0), *(waits(who, 11.9) for who in (A, C, D)), layout=LAYOUT)
    assert len(claims_of(EarlyEnds(stall=StallConfig(standing_s=2.0)), [events, tick(14.0)])) == 1


def test_nobody_else_is_accused_of_the_stall_that_it_leaves_behind() -> None:
    """Of two workers the one that is left waits alone."""
    two = layout_of(1, 2)
    stall = Stall()
    events = (ended(B, 10.0), waits(A, 11.9))
    frames = [cut_frame(10.0 + index, happened, layout=two) for index, happened in enumerate(events)]
    frames += [Frame(job=JOB, number=second, generation=1, time=12.0 + second, tick=True, layout=two) for second in range(40)]
    claims = claims_of(stall, frames)
    assert {claim.kind for claim in claims} == {"job.paused", "job.stalled"}, "shown, and it counts as stalled in the end"


# --- one incident ----------------------------------------------------------------------------------------------------


def test_it_is_one_incident_which_names_the_worker_and_no_eviction_can_follow() -> None:
    detectors = (Exits(), Exceptions(), EarlyEnds())
    opened: dict[str, Incident] = {}
    for frame in cuts(cried(A, 10.02), cried(C, 10.03), ended(B, 10.0), event("exit", A, 10.2, code=1, exception="RuntimeError", epoch=1)):
        claims = [(type(each).__name__, claim) for each in detectors for claim in each.update(frame)]
        findings = [
            Finding(
                id=f"{name}-{claim.entity.name}-{claim.kind}", revision=1, detector=name, digest="d", job=JOB, entity=claim.entity, kind=claim.kind,
                score=claim.score, since=claim.since, time=frame.time, evidence=claim.evidence, active=claim.active,
            )
            for name, claim in claims
        ]  # fmt: skip
        for incident in Diagnosis().diagnose(tuple(opened.values()), findings, Topology()):
            opened[incident.id] = incident
    (incident,) = opened.values()
    assert (incident.cause, [culprit.entity for culprit in incident.culprits], incident.severity) == ("worker ended early", [B], Severity.SEV2)
