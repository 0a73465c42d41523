"""Diagnosis of a launcher that is lost alone: one incident, which holds what its workers and their peers went through, whenever that is told."""

from dataclasses import replace

import msgspec
import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.types import Event, Severity
from fakes.diagnosis_chain import LAYOUT, Chain, raised, verdicts
from fakes.synthetic_events import cut_frame, event, job, node, worker
from fakes.synthetic_frames import BEGAN, job_frames

A, B, C, D = (worker(name, slot) for name in ("node-0", "node-1") for slot in (0, 1))


def twelve() -> list[Frame]:
    """Seconds of a healthy job."""
    return list(job_frames(2, 2, 12, np.random.default_rng(0)))


def cut(time: float, *events: Event) -> Frame:
    return cut_frame(time, *events, layout=LAYOUT)


def begun(time: float) -> Event:
    return event("epoch.started", job(), time, epoch=2, reason="death")


def test_a_launcher_alone_is_lost_with_its_workers_and_never_the_node() -> None:
    hit = BEGAN + 5.05
    frames = twelve()
    lost = event("session.lost", node("node-1"), hit, role="launcher")
    orphans = [msgspec.structs.replace(event("exit", who, hit + 0.3, code="-9", signal="SIGKILL", epoch=1, step=20, launcher="ended"), node="node-1") for who in (C, D)]
    frames.insert(5, cut(hit + 0.1, lost, raised(A, hit + 0.02), raised(B, hit + 0.02)))
    frames.insert(6, cut(hit + 0.4, *orphans))
    chain = Chain().feed(*frames)
    assert verdicts(chain.accusing) == [("launcher lost", ["node-1"], Severity.SEV2, True)]
    opened = event("session.opened", node("node-1"), hit + 8, role="launcher")
    chain.feed(cut(hit + 8, opened), cut_frame(hit + 9, begun(hit + 9), layout=msgspec.structs.replace(LAYOUT, epoch=2)))
    assert verdicts(chain.latest) == [("launcher lost", ["node-1"], Severity.SEV2, False)], "not of what followed from it, which was over before"


def test_ends_of_workers_that_are_told_when_their_launcher_is_back_belong_to_its_loss() -> None:
    """A launcher that is started again within a tenth of a second is back before its agent has looked."""
    hit = BEGAN + 5.05
    stopped = event("budget.exhausted", job(), hit + 0.02, kind="node lost", nodes="node-1", epoch=1)
    opened = event("session.opened", node("node-1"), hit + 0.3, role="launcher")
    orphans = [msgspec.structs.replace(event("exit", who, hit + 0.45, code="", epoch=1, launcher="ended"), node="node-1") for who in (C, D)]
    lost = event("session.lost", node("node-1"), hit, role="launcher")
    frames = twelve()
    for at, events in enumerate(((lost, raised(A, hit), raised(B, hit), stopped), (opened,), tuple(orphans))):
        frames.insert(5 + at, replace(cut(max(each.time for each in events) + 0.01, *events), reporting=frames[4].reporting))
    chain = Chain().feed(*frames)
    assert verdicts(chain.accusing) == [("launcher lost", ["node-1"], Severity.SEV2, True)]
    assert len({incident.id for incident in chain.reported}) == 1


def test_a_launcher_whose_loss_is_told_when_its_node_is_back_in_the_job_explains_what_its_peers_cried() -> None:
    hit = BEGAN + 5.3
    without, back = (
        msgspec.structs.replace(LAYOUT, epoch=2 + after, time=hit + 0.4 * (after + 1), reason=reason, placements=tuple(each for each in LAYOUT.placements if after or each.node != "node-1"))
        for after, reason in ((0, "node lost"), (1, "node returned"))
    )
    frames = [replace(frame, layout=back) if frame.time > hit else frame for frame in twelve()]
    cries = [event("peer.lost", node("node-1"), hit, seen_by="node-0"), raised(A, hit), raised(B, hit)]
    frames.insert(5, replace(cut(hit + 0.01, *cries), reporting=frames[4].reporting))
    for after, layout in enumerate((without, back)):
        started = event("epoch.started", job(), layout.time, epoch=layout.epoch, reason=layout.reason)
        frames.insert(6 + after, replace(cut_frame(layout.time, started, layout=layout), reporting=frames[4].reporting))
    chain = Chain().feed(*frames)
    assert [(each.cause, [who.entity.name for who in each.culprits], each.active) for each in chain.latest] == [("launcher lost", ["node-1"], False)]
