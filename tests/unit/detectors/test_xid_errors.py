"""What the GPU driver reports."""

import numpy as np

from detectors.xid_errors import XidErrors
from eagle_eye.types import Entity, Event, Kind
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import BEGAN, job_frames

GPU = Entity(kind=Kind.GPU, name="GPU-node-0/1")


def xid(code: int, time: float = BEGAN) -> Event:
    return event("gpu.xid", GPU, time, code=code)


def test_fault_a_double_bit_error_is_told_with_the_vendors_advice() -> None:
    (claim,) = claims_of(XidErrors(), [cut_frame(BEGAN, xid(48))])
    assert (claim.entity, claim.kind, claim.score) == (GPU, "gpu.xid", 1.0)
    assert claim.evidence[0].value == 48
    assert "drain" in claim.evidence[0].text


def test_twin_what_a_program_quotes_of_the_driver_is_no_proof() -> None:
    quoted = [event("gpu.xid", GPU, BEGAN, code=79, written_by="watch"), event("gpu.lost", GPU, BEGAN, reason="fallen off the bus", written_by="a program")]
    assert claims_of(XidErrors(), [cut_frame(BEGAN, *quoted)]) == []
    (claim,) = claims_of(XidErrors(), [cut_frame(BEGAN, *quoted, xid(79))])
    assert claim.kind == "gpu.xid"


def test_twin_a_cleanup_after_an_ended_process_scores_low() -> None:
    (claim,) = claims_of(XidErrors(), [cut_frame(BEGAN, xid(45))])
    assert claim.score < 0.5


def test_a_second_code_revises_the_claim_and_keeps_the_worst() -> None:
    claims = claims_of(XidErrors(), [cut_frame(BEGAN, xid(79)), cut_frame(BEGAN + 1, xid(45, BEGAN + 1))])
    assert [line.value for line in claims[-1].evidence] == [79, 45]
    assert claims[-1].score == 1.0
    assert claims[-1].since == BEGAN


def test_what_a_restart_cures_is_over_with_the_epoch_and_broken_hardware_is_not() -> None:
    begun = event("epoch.started", job(), BEGAN + 2, epoch=2)
    cured = claims_of(XidErrors(), [cut_frame(BEGAN, xid(31)), cut_frame(BEGAN + 2, begun)])
    broken = claims_of(XidErrors(), [cut_frame(BEGAN, xid(79)), cut_frame(BEGAN + 2, begun)])
    assert ([claim.active for claim in cured], [claim.active for claim in broken]) == ([True, False], [True])


def test_hardware_is_forgotten_after_a_quiet_while_and_a_lost_gpu_is_back_when_it_is_read() -> None:
    ticks = list(job_frames(1, 2, 5, np.random.default_rng(0), gpus=True))
    detector = XidErrors(withdraw_after_s=3.0)
    lost = event("gpu.lost", GPU, BEGAN, reason="fell off the bus")
    claims = claims_of(detector, [cut_frame(BEGAN, xid(79), lost), *ticks])
    over = [(claim.kind, claim.evidence[-1].text) for claim in claims if not claim.active]
    assert over == [("gpu.lost", "over: it is read again"), ("gpu.xid", "over: no other for 3 s")]


def advice(action: str, time: float = BEGAN) -> Event:
    return event("gpu.recovery_action", GPU, time, action=action)


def test_the_drivers_advice_is_a_line_of_the_gpus_xid_and_changes_neither_score_nor_code() -> None:
    before, after = claims_of(XidErrors(), [cut_frame(BEGAN, xid(48)), cut_frame(BEGAN + 1, advice("drain-and-reset", BEGAN + 1))])
    assert (after.score, after.since) == (before.score, before.since)
    assert [line.metric for line in after.evidence] == ["xid", "recovery_action"]
    assert "the driver advises drain-and-reset" in after.evidence[-1].text


def test_an_advice_alone_informs_and_is_over_when_the_driver_takes_it_back() -> None:
    ticks = list(job_frames(1, 2, 5, np.random.default_rng(0), gpus=True))
    frames = [cut_frame(BEGAN, advice("reset")), *ticks, cut_frame(BEGAN + 9, advice("reboot", BEGAN + 9)), cut_frame(BEGAN + 10, advice("none", BEGAN + 10))]
    claims = claims_of(XidErrors(), frames)
    assert [(claim.kind, claim.score, claim.active) for claim in claims] == [("gpu.xid", 0.3, True), ("gpu.xid", 0.3, True), ("gpu.xid", 0.3, False)]
    assert [line.text for line in claims[1].evidence if "advises reset" in line.text] == [], "the newest one counts"
    assert not any(line.status for line in claims[0].evidence), "no code, so that no cause accuses"


def test_an_advice_that_is_over_leaves_the_xid() -> None:
    frames = [cut_frame(BEGAN, xid(48), advice("reset")), cut_frame(BEGAN + 1, advice("none", BEGAN + 1))]
    claims = claims_of(XidErrors(), frames)
    assert [line.metric for line in claims[-1].evidence] == ["xid"]
    assert claims[-1].active


def test_twin_an_advice_that_never_was_is_not_over() -> None:
    assert claims_of(XidErrors(), [cut_frame(BEGAN, advice("none"))]) == []


def test_a_lost_gpu_is_back_when_the_agent_says_so_also_under_a_name_that_was_not_known() -> None:
    nameless = Entity(kind=Kind.GPU, name="gpu-1")
    frames = [cut_frame(BEGAN, event("gpu.lost", nameless, BEGAN, reason="x")), cut_frame(BEGAN + 1, event("gpu.returned", GPU, BEGAN + 1, was="gpu-1"))]
    assert [(claim.entity, claim.active) for claim in claims_of(XidErrors(), frames)] == [(nameless, True), (nameless, False)]
