"""What a coordinator waits for, as a finding that accuses nobody."""

from dataclasses import replace

import numpy as np

from detectors.launcher_quorum import LauncherQuorum
from eagle_eye.types import Claim, Event, Severity
from fakes.diagnosis_chain import Chain, raised, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event, job, node, worker
from fakes.synthetic_frames import BEGAN, SilentNode, job_frames, layout_of


def claims(*events: Event) -> list[Claim]:
    """Each is told at a tick of its own."""
    return claims_of(LauncherQuorum(), [replace(cut_frame(each.time, each), tick=True) for each in events])


def isolated(time: float = 10.0, **more: str) -> Event:
    return event("coordinator.isolated", job(), time, epoch=3, reason="node-1 cannot be reached", **more)


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


def test_a_job_that_trains_on_waits_for_nothing_until_an_epoch_is_wanted() -> None:
    trains, waits = claims(isolated(trains="1"), isolated(14.0))
    assert [[line.status for line in each.evidence] for each in (trains, waits)] == [["trains"], [""]]
    assert (waits.since, waits.active) == (10.0, True)
    both = claims(isolated(trains="1"), held())[-1]
    assert [line.status for line in both.evidence] == ["", ""], "a node that is held is waited for"


def test_twin_a_coordinator_that_was_left_behind_does_not_speak_for_the_job() -> None:
    assert claims(event("epoch.started", job(), 9.0, epoch=5, reason="node lost"), isolated(), held()) == []


def test_twin_what_is_over_before_the_next_tick_kept_nobody_waiting() -> None:
    withheld = event("vote.withheld", node("node-1"), 12.0, epoch=4, reason="no space left on device", seen_by="node-0")
    begun = event("epoch.started", job(), 12.1, epoch=4, reason="death")
    frames = [cut_frame(12.0, withheld), cut_frame(12.1, begun), replace(cut_frame(13.0), tick=True)]
    assert claims_of(LauncherQuorum(), frames) == []


def test_twin_a_lost_session_and_an_epoch_are_no_claim() -> None:
    assert claims(event("peer.lost", node("node-1"), 1.0), event("epoch.started", job(), 2.0, epoch=2, reason="node lost")) == []


def survivor_waits(*lost: Event, silent: bool) -> Chain:
    """The coordinator of two nodes may not go on alone before the server has seen the other's lease end."""
    hit, layout = BEGAN + 5.05, layout_of(2, 2)
    frames = list(job_frames(2, 2, 12, np.random.default_rng(0), faults=[SilentNode("node-1", 5)] if silent else []))
    seen = [event("peer.lost", node("node-1"), hit, seen_by="the other"), isolated(hit + 0.1)]
    frames.insert(5, cut_frame(hit + 0.11, *lost, *seen, layout=layout))
    return Chain().feed(*frames)


def test_a_job_that_waits_since_a_node_is_lost_is_explained_by_the_loss() -> None:
    gone = [event("session.lost", node("node-1"), BEGAN + 5.05, role=role) for role in ("agent", "launcher")]
    chain = survivor_waits(*gone, raised(worker("node-0", 0), BEGAN + 5.08), silent=True)
    (lost,) = [each for each in chain.latest if each.active]
    assert verdicts([lost]) == [("node lost", ["node-1"], Severity.SEV1, True)]
    assert [each.part_of for each in chain.latest if not each.active] == [lost.id]


def test_twin_a_job_that_waits_while_all_nodes_report_accuses_nobody() -> None:
    assert verdicts(survivor_waits(silent=False).latest) == [("job waiting", [], Severity.SEV2, True)]
