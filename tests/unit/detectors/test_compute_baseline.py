"""A worker's own past that outlives the server: learned in healthy hours, taken over by the next server, believed only beside peers that changed alike."""

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.fail_slow import NAME, FailSlow, FailSlowLearner
from detectors.features.compute_baseline import ComputeLevels, recalled
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Doubles, Layout
from fakes.synthetic_frames import JOB, layout_of
from unit.detectors.test_fail_slow import Shape, first, frames, slower, staged, told

LEVELS = np.array([1.0, 0.9, 1.1, 0.95, 1.05, 0.88, 1.12, 1.1])
"""Machines that have always differed: beside its peers nobody is slow by a little."""
LATER = 1000
"""First step that the next server sees."""


def unlike(_: int, row: Doubles) -> None:
    row *= LEVELS


def learned(seen: Iterable[Frame], before: bytes = b"") -> Baseline:
    learner = FailSlowLearner()
    samples = [learner.sample(frame) for frame in seen]
    assert len({names for names, _ in samples}) == 1
    return learner.fit({"job": JOB, "time": 1.0, "names": samples[0][0], "matrix": np.concatenate([each for _, each in samples]), "before": before})


def with_past(seen: Iterable[Frame], baseline: Baseline) -> Iterator[Frame]:
    return (replace(frame, baselines={NAME: baseline}) for frame in seen)


def after_a_restart(*shapes: Shape, past: Baseline, steps: int = 45, layout: Layout | None = None, tokens: float | None = 4096.0) -> list[tuple[int, str]]:
    """(step, worker) of all that the next server accuses, while it has no past of its own."""
    found = told(with_past(frames(steps, *shapes, first=LATER, seed=7, layout=layout, tokens=tokens), past), FailSlow())
    return [(step, claim.entity.name) for step, claim in found if claim.kind == "worker.slower"]


@pytest.fixture(scope="module")
def past() -> Baseline:
    return learned(frames(130, unlike))


def test_fault_who_became_slower_while_no_server_watched_is_named_by_the_past_that_the_last_one_left(past: Baseline) -> None:
    became_slower = slower(3, 1.1, LATER)
    assert [worker for _, worker in after_a_restart(unlike, became_slower, past=past)] == ["run/node-1/1"]
    assert told(frames(45, unlike, became_slower, first=LATER, seed=7), FailSlow()) == [], "beside its peers it is one of many that differ"


def test_twin_machines_that_have_always_differed_are_as_they_were(past: Baseline) -> None:
    assert after_a_restart(unlike, past=past, steps=90) == []


@pytest.mark.parametrize("times", [0.7, 1.4])
def test_twin_a_new_version_of_the_script_that_computes_more_or_less_accuses_nobody(past: Baseline, times: float) -> None:
    everybody = tuple(range(8))
    assert after_a_restart(unlike, slower(everybody, times, LATER), past=past, steps=90) == []


@pytest.mark.parametrize("times", [0.7, 1.4])
def test_twin_a_layer_that_moved_to_another_stage_accuses_nobody(times: float) -> None:
    layout = staged(2, 5)
    before = learned(frames(130, layout=layout))
    last_stage = tuple(index for index, place in enumerate(layout.placements) if place.pp == 1)
    assert after_a_restart(slower(last_stage, times, LATER), past=before, layout=layout, steps=90) == []
    few = staged(2, 2)
    assert after_a_restart(slower((1, 3), times, LATER), past=learned(frames(130, layout=few)), layout=few, steps=90) == []


def test_twin_new_machines_among_the_old_ones_accuse_nobody(past: Baseline) -> None:
    known = recalled(past.data)
    for kept in (4, 6):
        some = dict(list(known.by_worker.items())[:kept])
        encoded = ComputeLevels(known.split, zlib.compress("\n".join(some).encode()), np.array(list(some.values()), "<f4").tobytes())
        mixed = msgspec.structs.replace(past, digest=f"kept-{kept}", data=msgspec.msgpack.encode(encoded))
        for times in (0.7, 1.0, 1.4):
            assert after_a_restart(unlike, slower(tuple(range(8)), times, LATER), past=mixed, steps=80) == []


def test_twin_levels_of_another_split_or_of_steps_instead_of_tokens_are_not_compared() -> None:
    scaled = np.linspace(0.6, 1.5, 8)

    def other_work(_: int, row: Doubles) -> None:
        row *= scaled

    before = learned(frames(130, layout=layout_of(8, 1)))
    for layout, tokens in ((staged(2, 4), 4096.0), (layout_of(8, 1), None)):
        assert told(with_past(frames(45, other_work, first=LATER, seed=7, layout=layout, tokens=tokens), before), FailSlow()) == []


def test_the_best_time_is_kept_over_servers_that_saw_a_worse_one(past: Baseline) -> None:
    crept = learned(frames(130, unlike, slower(3, 1.03, 0)), before=past.data)
    levels, kept = recalled(crept.data).by_worker, recalled(past.data).by_worker
    assert levels["run/node-1/1"] == pytest.approx(kept["run/node-1/1"])
    away = learned(frames(130, layout=layout_of(2, 2)), before=past.data)
    assert set(recalled(away.data).by_worker) == set(kept), "who is away for a while keeps its level"
    assert recalled(learned(frames(130, tokens=None), before=past.data).data).split.startswith("compute_of_a_step")


def test_a_learner_asks_for_half_a_window_at_least() -> None:
    with pytest.raises(ValueError, match="collect at least 30"):
        learned(frames(20))


def test_a_tick_without_steps_or_phases_is_no_sample() -> None:
    tick = next(frames(1))
    step = tick.steps[0]
    assert FailSlowLearner().sample(replace(tick, steps=()))[0] == ()
    bare = msgspec.structs.replace(step, values={"step_s": step.values["step_s"]}) if isinstance(step, msgspec.Struct) else replace(step, values={"step_s": step.values["step_s"]})
    assert FailSlowLearner().sample(replace(tick, steps=(bare,)))[0] == ()


GOOD = ComputeLevels("s", zlib.compress(b"a\nb"), np.array([1.0, 2.0], "<f4").tobytes())


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, workers=b"not deflated")),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, levels=b"123")),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, levels=np.array([1.0], "<f4").tobytes())),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, levels=np.array([1.0, np.inf], "<f4").tobytes())),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, workers=zlib.compress(b"\xff\n\xff"))),
    ],
)
def test_a_baseline_that_holds_no_levels_is_passed_over(past: Baseline, bad: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- msgspec, zlib and ours each say it in their words
        recalled(bad)
    found = told(with_past(frames(30, slower(3, 1.25, 1)), msgspec.structs.replace(past, data=bad)), FailSlow())
    assert first(found)[1].entity.name == "run/node-1/1", "and detection goes on"
