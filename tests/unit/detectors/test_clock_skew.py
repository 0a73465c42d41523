"""Clocks that are off: told of the node, and of nobody where it is the server's, or where the node has left the job."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from detectors.clock_skew import ClockSkew
from detectors.runtime.hang_watch import HangWatch
from eagle_eye.frames import Frame
from eagle_eye.types import Baseline, Kind, Layout, RankPlacement
from fakes.runner_partition import JOB, World
from fakes.synthetic_events import claims_of, node
from fakes.synthetic_frames import job_frames, layout_of

OFF = "node-1"


def frames(ticks: int = 40) -> list[Frame]:
    return list(job_frames(4, 1, ticks, np.random.default_rng(0)))


@pytest.mark.parametrize(("ahead", "words"), [(40.0, "40 s ahead"), (-31.0, "31 s behind")])
def test_fault_a_clock_that_is_off_is_told_until_it_is_right(ahead: float, words: str) -> None:
    told, over = claims_of(ClockSkew(), [replace(frame, clocks={OFF: ahead} if 5 <= index < 20 else {}) for index, frame in enumerate(frames())])
    assert (told.kind, told.entity, told.active) == ("clock.skewed", node(OFF), True)
    assert words in told.evidence[0].text
    assert (over.active, over.evidence[-1].text) == (False, "over: the clock is right again")


@pytest.mark.parametrize("ahead", [4.0, -9.0])
def test_twin_a_clock_that_is_a_little_off_is_nothing(ahead: float) -> None:
    assert claims_of(ClockSkew(), [replace(frame, clocks={OFF: ahead}) for frame in frames()]) == []


@pytest.mark.parametrize(("limit", "least"), [(5.0, 3.6), (-10.0, -7.1)])
def test_a_clock_that_is_off_by_just_about_the_limit_is_told_once(limit: float, least: float) -> None:
    rng = np.random.default_rng(0)
    ahead = [limit * 1.1] * 5 + [float(each) for each in least + rng.random(200) * (limit * 1.2 - least)]
    (claim,) = claims_of(ClockSkew(), [replace(frame, clocks={OFF: each}) for frame, each in zip(frames(205), ahead, strict=True)])
    assert (claim.entity, claim.active) == (node(OFF), True)


def test_twin_a_clock_that_leaps_for_a_tick_or_two_is_nothing_and_right_for_as_long_it_is_not_right_yet() -> None:
    assert claims_of(ClockSkew(), [replace(frame, clocks={OFF: 40.0} if index % 3 else {}) for index, frame in enumerate(frames())]) == []
    (claim,) = claims_of(ClockSkew(), [replace(frame, clocks={OFF: 40.0} if index < 5 or index % 3 == 0 else {}) for index, frame in enumerate(frames())])
    assert claim.active


def test_where_the_servers_clock_is_off_by_just_about_the_limit_the_job_is_told_once() -> None:
    rng = np.random.default_rng(0)
    told = [replace(frame, clocks={name: float(rng.uniform(4.6, 6.0)) for name in frame.reporting}) for frame in frames(200)]
    claims = claims_of(ClockSkew(), told)
    assert [(claim.entity.kind, claim.active) for claim in claims if claim.entity.kind is Kind.JOB] == [(Kind.JOB, True)]
    assert sum(claim.active for claim in claims) <= 2


def test_twin_where_all_clocks_are_off_alike_it_is_the_servers() -> None:
    (told,) = claims_of(ClockSkew(), [replace(frame, clocks=dict.fromkeys(frame.reporting, 40.0)) for frame in frames()])
    assert told.entity.kind is Kind.JOB
    assert "the server's clock" in told.evidence[0].text


def test_twin_a_node_that_left_the_job_has_no_clock_that_counts() -> None:
    layout = layout_of(4, 1)
    fewer = msgspec.structs.replace(layout, placements=tuple(place for place in layout.placements if place.node != OFF))
    told = [replace(frame, clocks={OFF: 40.0}, layout=fewer if index >= 10 else frame.layout) for index, frame in enumerate(frames())]
    assert [(claim.entity, claim.active) for claim in claims_of(ClockSkew(), told)] == [(node(OFF), True), (node(OFF), False)]


class HealthyTicks:
    """In the place of the learner of baselines: which ticks count as healthy."""

    def __init__(self) -> None:
        self.watch = HangWatch()
        self.told: list[bool] = []

    def tick(self, frames: Iterable[tuple[Frame, bool]]) -> list[Baseline]:
        self.told += [healthy for _, healthy in frames]
        return []

    def close(self) -> None: ...


def test_batches_of_a_real_stream_show_it_until_it_is_right() -> None:
    world = World()
    try:
        place = RankPlacement(worker="r/n/0", node="n", rank=0, local_rank=0)
        world.put(Layout(job=JOB, epoch=1, time=world.clock.now(), coordinator="n", launchers={"n": "127.0.0.1:1"}, placements=(place,)))
        learner = HealthyTicks()
        runner = world.runner(ClockSkew(), learner=learner)
        for ahead_s, count in ((0.0, 5), (-60.0, 8), (0.0, 5)):
            world.ahead_s = ahead_s
            for _ in range(count):
                world.second(runner)
        assert [(each.kind, each.entity.name, each.active) for each in world.findings] == [("clock.skewed", "n", True), ("clock.skewed", "n", False)]
        assert "60 s behind" in world.findings[0].evidence[0].text
        assert any(frame.clocks for frame in world.frames)
        assert learner.told, "no tick was told"
        assert all(learner.told), "what is learned of a node does not wait for somebody to set its clock"
    finally:
        world.close()
