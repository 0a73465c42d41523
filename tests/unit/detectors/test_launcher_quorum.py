"""What a coordinator waits for, as a finding that accuses nobody."""

from detectors.launcher_quorum import LauncherQuorum
from eagle_eye.types import Claim, Event
from fakes.synthetic_events import claims_of, cut_frame, event, job, node


def claims(*events: Event) -> list[Claim]:
    return claims_of(LauncherQuorum(), [cut_frame(each.time, each) for each in events])


def isolated(time: float = 10.0) -> Event:
    return event("coordinator.isolated", job(), time, epoch=3, reason="node-1 cannot be reached")


def held(time: float = 11.0) -> Event:
    return event("node.held", node("node-1"), time, epoch=4, reason="processes 7 do not end", seen_by="node-0")


def test_fault_what_is_waited_for_is_claimed_of_the_job_until_it_is_over() -> None:
    began, ended = claims(isolated(), event("coordinator.reunited", job(), 14.0, epoch=3))
    assert (began.entity, began.kind, began.active, began.since) == (job(), "job.waiting", True, 10.0)
    assert (ended.active, ended.evidence[-1].text) == (False, "over: the launchers can be reached again")


def test_another_reason_is_a_revision_and_an_epoch_ends_them_all() -> None:
    first, both, one, over = claims(
        isolated(), held(), event("coordinator.reunited", job(), 12.0, epoch=3), event("epoch.started", job(), 13.0, epoch=4, reason="node lost")
    )
    assert [len(each.evidence) for each in (first, both, one)] == [1, 2, 1]
    assert not over.active


def test_twin_a_lost_session_and_an_epoch_are_no_claim() -> None:
    assert claims(event("peer.lost", node("node-1"), 1.0), event("epoch.started", job(), 2.0, epoch=2, reason="node lost")) == []
