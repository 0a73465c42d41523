"""A node that is here, and without which its job trains."""

import numpy as np

from detectors.unused_nodes import UnusedNodes
from eagle_eye.types import Claim, Event, Severity
from fakes.diagnosis_chain import Chain, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event, job, node
from fakes.synthetic_frames import BEGAN, job_frames


def claims(*events: Event) -> list[Claim]:
    return claims_of(UnusedNodes(), [cut_frame(each.time, each) for each in events])


def unused(time: float = 10.0, epoch: int = 3) -> Event:
    return event("node.unused", node("node-1"), time, epoch=epoch, reason="--heal none", seen_by="node-0")


def test_fault_a_node_that_is_left_out_is_claimed_until_its_launcher_goes() -> None:
    began, ended = claims(unused(), event("peer.lost", node("node-1"), 14.0, seen_by="node-0"))
    assert (began.entity, began.kind, began.active, began.since) == (node("node-1"), "node.unused", True, 10.0)
    assert (ended.active, ended.evidence[-1].text) == (False, "over: its launcher has gone")


def test_an_epoch_and_the_end_of_the_job_are_the_end_of_it() -> None:
    for over in (event("epoch.started", job(), 12.0, epoch=4, reason="command"), event("job.finished", job(), 12.0, epoch=3)):
        assert [claim.active for claim in claims(unused(), over)] == [True, False]


def test_told_again_it_is_claimed_once() -> None:
    assert len(claims(unused(), unused(11.0))) == 1


def test_twin_a_coordinator_that_was_left_behind_does_not_speak_for_the_job() -> None:
    assert claims(event("epoch.started", job(), 9.0, epoch=5, reason="node lost"), unused()) == []


def test_twin_a_lost_session_of_a_node_in_use_is_no_claim() -> None:
    assert claims(event("peer.lost", node("node-1"), 1.0, seen_by="node-0")) == []


def test_it_is_an_incident_that_informs_and_accuses_nobody() -> None:
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0)))
    frames.insert(6, cut_frame(BEGAN + 6.05, unused(BEGAN + 6.05)))
    assert verdicts(Chain().feed(*frames).latest) == [("node unused", [], Severity.INFO, True)]
