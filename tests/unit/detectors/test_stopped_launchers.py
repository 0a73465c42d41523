"""A launcher that is stopped by a signal: it is told as that, and not as lost, also where the job has gone on without it."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.stopped_launchers import StoppedLaunchers
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Severity
from fakes.diagnosis_chain import LAYOUT, Chain, verdicts
from fakes.synthetic_events import claims_of, cut_frame, event, job, node, worker
from fakes.synthetic_frames import BEGAN, job_frames

NOW = BEGAN + 3.05
NODE = node("node-1")


def stopped(time: float = NOW, **more: object) -> Event:
    told = event("launcher.stopped", NODE, time, pid=7, **more)
    return msgspec.structs.replace(told, message="the launcher of team/gpt/run on node-1 (process 7) is stopped by a signal")


def continued(time: float = NOW + 1.0) -> Event:
    return event("launcher.continued", NODE, time, pid=7)


def claims(*events: Event) -> list[Claim]:
    return claims_of(StoppedLaunchers(), [cut_frame(each.time, each) for each in events])


def session(role: str, incarnation: str) -> Event:
    return event("session.opened", NODE, NOW + 1.0, role=role, incarnation=incarnation)


@pytest.mark.parametrize(
    "over", [continued(), session("launcher", "l"), session("agent", "new"), event("job.finished", job(), NOW + 1.0, epoch=1)],
    ids=["it runs again", "it answers again", "another agent reports, and does not say so", "the job has ended"],
)  # fmt: skip
def test_fault_a_stopped_launcher_is_claimed_until_it_is_not_stopped_any_more(over: Event) -> None:
    began, ended = claims(stopped(), stopped(NOW + 0.5), over)
    assert (began.entity, began.kind, began.active, began.since) == (NODE, "launcher.stopped", True, NOW)
    assert "process 7" in began.evidence[0].text
    assert not ended.active


def test_twin_what_another_nodes_agent_says_counts_for_nothing_and_an_agent_that_is_heard_again_ends_nothing() -> None:
    assert claims(msgspec.structs.replace(stopped(), node="node-0")) == []
    assert [claim.active for claim in claims(stopped(), session("agent", stopped().incarnation))] == [True]
    assert claims(continued(), session("launcher", "l")) == []


def test_while_the_job_trains_it_is_an_incident_that_informs_and_accuses_nobody() -> None:
    assert verdicts(Chain().feed(*job_of(stopped())).latest) == [("launcher stopped", [], Severity.INFO, True)]


LEFT = NOW + 13.0
"""The job goes on without the node, since a worker elsewhere has died and the launcher does not answer."""


@pytest.mark.parametrize(
    ("seen", "cause"),
    [((stopped(),), "launcher stopped"), ((stopped(), continued(LEFT + 0.1)), "launcher stopped"), ((stopped(), continued(LEFT - 2.0)), "launcher lost"), ((), "launcher lost")],
    ids=["it is stopped", "it was, until a moment ago", "twin that ran again before", "twin that is gone"],
)  # fmt: skip
def test_a_launcher_without_which_the_job_goes_on_is_told_as_stopped_where_that_was_seen(seen: tuple[Event, ...], cause: str) -> None:
    broke = event("peer.lost", NODE, LEFT - 1.0, seen_by="node-0")
    latest = [each for each in verdicts(Chain().feed(*job_of(*seen, broke, left=LEFT)).latest) if each[3]]
    assert latest == [(cause, ["node-1"], Severity.SEV2, True)]


def test_twin_a_stopped_launcher_that_is_killed_is_lost() -> None:
    died = event("exit", worker("node-1", 0), LEFT - 0.4, launcher="ended", code="")
    latest = Chain().feed(*job_of(stopped(), continued(LEFT - 0.4), died, left=LEFT)).latest
    assert ("launcher lost", ["node-1"], Severity.SEV2, True) in verdicts(latest)


def job_of(*events: Event, left: float = float("inf")) -> list[Frame]:
    """Its agents report all the time; from `left` on it has an epoch without node-1."""
    without = tuple(place for place in LAYOUT.placements if place.node != "node-1")
    fewer = msgspec.structs.replace(LAYOUT, epoch=LAYOUT.epoch + 1, reason="node lost", time=left, placements=without)
    frames = [*job_frames(2, 2, 20, np.random.default_rng(0)), *(cut_frame(each.time, each) for each in events)]
    known: dict[str, float] = {}
    told = []
    for frame in sorted(frames, key=lambda frame: frame.time):
        known = dict(frame.reporting) or known
        told.append(replace(frame, reporting=known, layout=LAYOUT if frame.time < left else fewer))
    return told
