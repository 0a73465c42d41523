"""Timers that add up to more than the step: what they say beyond it is told, and makes nobody slow."""

from collections.abc import Callable, Iterator
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from detectors.fail_slow import FailSlow
from detectors.features.peer_roles import peer_roles
from detectors.features.phase_sums import PhaseSums
from detectors.straggler import Straggler
from detectors.timer_sums import KIND, TimerSums
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Doubles, Layout, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import BEGAN, JOB, layout_of

Values = dict[str, Doubles]
Change = Callable[[int, Values], None]
Compute = Callable[[int, Doubles], None]
ONSET, STEPS, WHO = 20, 80, 3
LIAR = f"run/node-{WHO // 2}/{WHO % 2}"
ACCUSING = {"worker.slow", "worker.slower", "worker.unequal_compute"}


def nothing(_number: int, _of: object) -> None:
    """As it is."""


def frames(report: Change = nothing, compute: Compute = nothing, *, layout: Layout | None = None, steps: int = STEPS) -> Iterator[Frame]:
    """All wait for the slowest in communication. `compute` changes what workers do, `report` what they tell of it."""
    layout, rng, end = layout or layout_of(4, 2), np.random.default_rng(1), BEGAN
    count = len(layout.placements)
    for number in range(steps):
        row = np.exp(rng.normal(0.0, 0.02, count))
        compute(number, row)
        longest = float(row.max()) + 0.1
        end += longest
        values: Values = {"step_s": np.full(count, longest), "forward_s": row / 3, "backward_s": row / 1.5, "communication_s": longest - row, "tokens": np.full(count, 4096.0)}
        report(number, values)
        step = Step(number=number, epoch=1, workers=layout.workers, end=end, values={name: each.astype(np.float32) for name, each in values.items()})
        yield Frame(job=JOB, number=number + 1, generation=1, time=end, tick=True, steps=(step,), layout=layout)


def lie(times: float, *, begin: int = ONSET, end: int = 1 << 30, who: tuple[int, ...] = (WHO,)) -> Change:
    def report(number: int, values: Values) -> None:
        if begin <= number < end:
            for name in ("forward_s", "backward_s"):
                values[name][list(who)] *= times

    return report


def slower(times: float, *, begin: int = ONSET, who: int = WHO) -> Compute:
    def compute(number: int, row: Doubles) -> None:
        if number >= begin:
            row[who] *= times

    return compute


def twice(*who: int) -> Change:
    """Communication beside backward is counted in both."""

    def report(_number: int, values: Values) -> None:
        for index in who:
            values["communication_s"][index] += 0.3 * values["backward_s"][index]

    return report


def both(*changes: Change) -> Change:
    def report(number: int, values: Values) -> None:
        for change in changes:
            change(number, values)

    return report


def accused(report: Change = nothing, compute: Compute = nothing, *, layout: Layout | None = None) -> set[str]:
    found = [claim for detector in (Straggler(), FailSlow()) for claim in claims_of(detector, frames(report, compute, layout=layout))]
    return {claim.entity.name for claim in found if claim.kind in ACCUSING}


def told(report: Change = nothing, compute: Compute = nothing, *, layout: Layout | None = None) -> list[Claim]:
    return claims_of(TimerSums(), frames(report, compute, layout=layout))


class TestLies:
    @pytest.mark.parametrize("times", [1.06, 1.2, 1.5, 2.0])
    @pytest.mark.parametrize("begin", [0, ONSET])
    def test_timers_that_say_more_than_the_step_lasted_accuse_nobody(self, times: float, begin: int) -> None:
        assert accused(lie(times, begin=begin)) == set()

    @pytest.mark.parametrize("times", [1.2, 2.0])
    @pytest.mark.parametrize("begin", [0, ONSET])
    def test_the_fault_is_told(self, times: float, begin: int) -> None:
        (claim,) = told(lie(times, begin=begin))
        assert (claim.kind, claim.entity.name, claim.active) == (KIND, LIAR, True)
        assert claim.evidence[0].text.startswith(f"the timers of worker {LIAR} add up to ")

    def test_they_creep(self) -> None:
        def creeps(number: int, values: Values) -> None:
            lie(1.0 + 0.01 * number)(number, values)

        assert accused(creeps) == set()
        assert [claim.entity.name for claim in told(creeps)] == [LIAR]

    def test_it_is_over_when_they_add_up_again_and_with_the_epoch(self) -> None:
        assert [claim.active for claim in told(lie(1.5, end=40))] == [True, False]
        detector = TimerSums()
        claims_of(detector, frames(lie(1.5)))
        (over,) = claims_of(detector, [cut_frame(BEGAN, event("epoch.started", job(), BEGAN, epoch=2))])
        assert not over.active

    def test_who_is_slow_beside_a_liar_is_named_alone(self) -> None:
        assert accused(lie(1.5), slower(1.6, who=6)) == {"run/node-3/0"}

    def test_who_is_slow_and_says_more_is_slow_by_what_it_is(self) -> None:
        found = [claim for claim in claims_of(Straggler(), frames(lie(1.3), slower(1.6))) if claim.kind == "worker.slow"]
        assert [claim.entity.name for claim in found] == [LIAR]
        assert found[0].evidence[0].value == pytest.approx(1.6, abs=0.08)


class TestTwins:
    @pytest.mark.parametrize("times", [1.05, 1.1, 1.25, 1.6, 2.5])
    def test_its_twin_a_slow_worker_is_no_liar(self, times: float) -> None:
        assert accused(nothing, slower(times)) == {LIAR}
        assert told(nothing, slower(times)) == []

    @pytest.mark.parametrize("who", [tuple(range(8)), (WHO,)])
    def test_phases_that_overlap_by_design_on_all_or_on_one_hide_no_slow_worker(self, who: tuple[int, ...]) -> None:
        assert accused(twice(*who)) == set()
        assert accused(twice(*who), slower(1.25)) == accused(twice(*who), slower(1.6)) == {LIAR}
        assert told(twice(*who)) == told(twice(*who), slower(1.6)) == []

    def test_a_slow_worker_with_slack_is_no_liar(self) -> None:
        """A pipeline: the stage that computes longest sets the pace, and the other waits for it."""
        layout = layout_of(4, 2)
        places = tuple(msgspec.structs.replace(place, dp=place.rank // 2, pp=place.rank % 2) for place in layout.placements)
        layout = msgspec.structs.replace(layout, placements=places)

        def stages(number: int, row: Doubles) -> None:
            row[1::2] *= 2.0
            if number >= ONSET:
                row[2] *= 1.6

        assert accused(nothing, stages, layout=layout) == {"run/node-1/0"}
        assert told(nothing, stages, layout=layout) == []

    @pytest.mark.parametrize("left_out", [("communication_s",), ("step_s",), ("forward_s", "backward_s")])
    def test_what_is_not_measured_says_nothing(self, left_out: tuple[str, ...]) -> None:
        def without(_number: int, values: Values) -> None:
            for name in left_out:
                del values[name]

        assert told(without, slower(1.6)) == []
        assert accused(without, slower(1.6)) == ({LIAR} if left_out == ("communication_s",) else set())

    def test_a_gpu_whose_phases_lag_behind_the_steps_of_its_host_is_none(self) -> None:
        """Times of events on a GPU: what one step says too much the next says too little."""
        rng = np.random.default_rng(7)

        def lags(_number: int, values: Values) -> None:
            values["backward_s"] += rng.normal(0.0, 0.04, 8)

        assert told(lags) == told(lags, slower(1.6)) == []
        assert accused(lags) == set()
        assert accused(lags, slower(1.6)) == {LIAR}

    def test_more_tokens_are_more_work(self) -> None:
        def uneven(_number: int, values: Values) -> None:
            values["tokens"][WHO] *= 2

        assert accused(both(uneven, lie(2.0, begin=0))) == set()

    def test_nothing_is_told_of_workers_without_peers(self) -> None:
        assert told(lie(1.5, who=(1,)), layout=layout_of(2, 1)) == []


class TestSums:
    layout: ClassVar[Layout] = layout_of(4, 2)

    def beyond(self, report: Change) -> list[float]:
        sums, roles = PhaseSums(), peer_roles(self.layout.workers, self.layout, 3)
        for frame in frames(report, layout=self.layout, steps=ONSET + 1):
            (step,) = frame.steps
            seconds = sums.beyond(step, step.values["forward_s"] + step.values["backward_s"], roles)
        return [round(each, 2) for each in seconds.tolist()]

    def test_nobody_becomes_faster_than_its_peers(self) -> None:
        """Half of all cannot lie without the median saying so, too."""
        assert self.beyond(nothing) == [0.0] * 8
        assert self.beyond(lie(1.5)) == [0.0] * 3 + [pytest.approx(0.5, abs=0.04)] + [0.0] * 4
        assert self.beyond(lie(1.5, who=(0, 1, 2, 3, 4))) == [0.0] * 8

    def test_a_worker_that_is_not_there_is_left_out(self) -> None:
        def gone(_number: int, values: Values) -> None:
            values["step_s"][0] = np.nan

        assert self.beyond(both(gone, lie(1.5)))[0] == 0.0


class TestBesideOthers:
    def test_where_a_liar_is_no_worse_in_truth_others_are_waited_for(self) -> None:
        """A slow worker is not off the critical path because another says to compute for as long."""
        (found,) = [claim for claim in claims_of(Straggler(), frames(lie(1.6), slower(1.6, who=6))) if claim.kind == "worker.slow"]
        assert (found.entity.name, [line.status for line in found.evidence if line.status]) == ("run/node-3/0", [])

    def test_workers_that_tell_no_compute_make_no_slow_ones_of_the_others(self) -> None:
        """Their agent is gone, or their script marks no phases there."""

        def silent(number: int, values: Values) -> None:
            if number >= ONSET:
                for name in ("forward_s", "backward_s"):
                    values[name][:3] = np.nan

        assert accused(silent) == set()
        assert accused(silent, slower(1.6)) == {LIAR}
