"""One worker evaluates, logs or saves alone while the others wait for it in their next collective: whoever waits is no culprit, whatever the marks say."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from detectors.stall import Stall
from eagle_eye.config import StallConfig
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Event, Kind
from fakes.synthetic_events import claims_of, event, job, with_events, worker
from fakes.synthetic_frames import BEGAN, Draft, job_frames, layout_of

LAYOUT = layout_of(2, 2)
PAUSES = ("data", "evaluation", "checkpoint")
NOW = BEGAN + 6.0
FIRST = "run/node-0/0"


class Place(NamedTuple):
    """Where a worker stands, by its marks and by its stack."""

    phase: str
    activity: str
    step: int = 12
    step_marks: int = 6
    at: str = "train.py:9 step"


def stalls(places: list[Place], age_s: float) -> list[Event]:
    """One stall event per worker."""
    return [
        event("stall", worker(place.node, place.local_rank), NOW, epoch=1, state="S", age_s=age_s, step=there.step, marks=100 + there.step_marks,
              step_marks=there.step_marks, phase=there.phase, activity=there.activity, place=there.at, doing="is there")
        for place, there in zip(LAYOUT.placements, places, strict=True)
    ]  # fmt: skip


class Still:
    """Ticks in which all are where the events say, looked at again each time."""

    def __init__(self, age_s: float) -> None:
        self.age_s = age_s

    def __call__(self, draft: Draft) -> None:
        draft.steps.clear()
        metrics = draft.metrics[Kind.WORKER]
        metrics["progress_age_s"][:] = draft.tick + self.age_s
        metrics["activity_seen_s"][:] = 0.6
        for name in ("step", "marks", "step_marks", "phase"):
            metrics[name][:] = np.nan


@cache
def seconds(age_s: float) -> tuple[Frame, ...]:
    return tuple(job_frames(2, 2, 4, np.random.default_rng(0), faults=[Still(age_s)]))


def told(places: list[Place], age_s: float = 31.0) -> list[tuple[str, str]]:
    """What is claimed of them in the next seconds."""
    first, *rest = seconds(age_s)
    claims: list[Claim] = claims_of(Stall(), [with_events(first, *stalls(places, age_s)), *rest])
    return sorted({(claim.kind, claim.entity.name) for claim in claims})


ALONE = {
    "it has marked its evaluation": Place("evaluation", "working", step_marks=7, at="eval.py:3 run"),
    "it has marked nothing": Place("optimizer", "working", at="eval.py:3 run"),
    "it has marked more than they": Place("forward", "working", step_marks=40, at="eval.py:3 run"),
    "it has not begun their step": Place("evaluation", "working", step=11, step_marks=8, at="eval.py:3 run"),
    "it has begun a step that they have not": Place("data", "working", step=13, step_marks=1, at="eval.py:3 run"),
    "it saves": Place("checkpoint", "working", step_marks=7, at="save.py:3 run"),
}
WAITING = {
    "in a collective of their backward": Place("backward", "awaits peers"),
    "for a batch that it hands out": Place("data", "awaits peers", step_marks=1),
    "in a barrier behind the step": Place("optimizer", "awaits peers"),
    "in a collective that they have marked": Place("communication", "awaits peers"),
    "in the last gather of their own evaluation": Place("evaluation", "awaits peers", step_marks=9),
    "before their own checkpoint": Place("checkpoint", "awaits peers", step_marks=5),
}


@pytest.mark.parametrize("waiting", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("alone", ALONE.values(), ids=ALONE)
def test_twin_nobody_is_accused_while_one_works_alone_and_the_others_wait(alone: Place, waiting: Place) -> None:
    found = told([alone, waiting, waiting, waiting])
    assert not [name for kind, name in found if kind == "worker.stalled"]
    assert ("job.stalled", job().name) not in found


@pytest.mark.parametrize(("activity", "age_s"), [("standing", 31.0), ("working", 601.0)])
@pytest.mark.parametrize("waiting", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("alone", ALONE.values(), ids=ALONE)
def test_fault_the_one_that_hangs_where_it_would_work_is_accused(alone: Place, waiting: Place, activity: str, age_s: float) -> None:
    age_s = 601.0 if alone.phase in PAUSES else age_s  # an evaluation may stand for as long as its user is patient
    hung = alone._replace(activity=activity)
    assert [name for kind, name in told([hung, waiting, waiting, waiting], age_s) if kind == "worker.stalled"] == [FIRST]


@pytest.mark.parametrize(("age_s", "accused"), [(2.0, []), (31.0, [FIRST])])
def test_fault_an_evaluation_with_a_collective_that_the_others_never_enter_is_found_once_nothing_has_moved_for_long(age_s: float, accused: list[str]) -> None:
    """All wait: no evaluation goes on, whatever the mark says, unless its own collective among some of the ranks is slow."""
    inside = Place("evaluation", "awaits peers", step_marks=7, at="eval.py:3 run")
    waiting = Place("backward", "awaits peers")
    assert [name for kind, name in told([inside, waiting, waiting, waiting], age_s) if kind == "worker.stalled"] == accused


def test_twin_those_that_wait_are_not_accused_by_one_that_nobody_has_looked_at() -> None:
    """It has begun a step that they have not; only its node could tell what it does."""
    assert told([Place("data", "", step=13, step_marks=1, at=""), *[Place("backward", "awaits peers")] * 3]) == [("job.paused", job().name)]


def behind_its_loop(*, step: int, waiting: bool = True, ticks: int = 8) -> list[Frame]:
    """Rank 0 has left its loop, on a node whose agent has looked at nobody; the others are told as waiting, or have left it, too."""

    def still(draft: Draft) -> None:
        draft.steps.clear()
        metrics = draft.metrics[Kind.WORKER]
        metrics["progress_age_s"][:] = draft.tick + 2
        metrics["step"][:], metrics["step_marks"][:], metrics["marks"][:] = 12, 6, 106
        metrics["step"][0], metrics["step_marks"][0] = step, 1
        metrics["running"][slice(None) if not waiting else 0] = 0
        metrics["activity_seen_s"][1:] = 0.6  # nobody has looked at rank 0

    before = list(job_frames(2, 2, 4, np.random.default_rng(0)))
    first, *rest = job_frames(2, 2, ticks, np.random.default_rng(0), faults=[still])
    told = stalls([Place("backward", "awaits peers")] * 4, 2.0)[1:] if waiting else []
    return [*before, with_events(first, *told), *rest]


@pytest.mark.parametrize("step", [11, 12, 13])
def test_twin_who_is_waited_for_behind_its_loop_is_told_as_a_pause(step: int) -> None:
    claims = claims_of(Stall(), behind_its_loop(step=step))
    assert {(claim.kind, claim.entity.name) for claim in claims} == {("job.paused", job().name)}
    assert f"worker {FIRST} stands" in claims[-1].evidence[0].text


def test_fault_who_never_comes_back_into_its_loop_is_accused_once_patience_is_over() -> None:
    claims = claims_of(Stall(stall=StallConfig(patience_s=6.0)), behind_its_loop(step=12))
    assert {claim.entity.name for claim in claims if claim.kind == "worker.stalled"} == {FIRST}


def test_twin_that_all_have_left_their_loops_is_no_pause() -> None:
    assert claims_of(Stall(), behind_its_loop(step=12, waiting=False)) == []
