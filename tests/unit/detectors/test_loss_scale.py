"""The scale of an fp16 loss falls and falls."""

from collections.abc import Iterable, Iterator

import numpy as np

from detectors.loss_scale import KIND, LossScale
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Kind, Step
from fakes.synthetic_events import claims_of, cut_frame, event, job
from fakes.synthetic_frames import JOB, layout_of

WORKERS = layout_of(1, 2).workers
SETTLED = [65536.0, 32768.0, 16384.0, *[8192.0] * 40]
"""How it begins: it comes down, and stays."""


def frames(scales: Iterable[float], epoch: int = 1) -> Iterator[Frame]:
    """A step a tick."""
    for number, scale in enumerate(scales):
        step = Step(number=number, epoch=epoch, workers=WORKERS, end=float(number), values={"loss_scale": np.full(2, scale, np.float32)})
        yield Frame(job=JOB, number=number + 1, generation=1, time=float(number), tick=True, steps=(step,))


def printed(scales: Iterable[float]) -> Iterator[Frame]:
    """A line each tenth tick, of rank 0."""
    for number, scale in enumerate(scales):
        for tick in range(10):
            column = np.array([scale if not tick else np.nan, np.nan], np.float32)
            yield Frame(
                job=JOB, number=10 * number + tick + 1, generation=1, time=float(10 * number + tick), tick=True,
                entities={Kind.WORKER: WORKERS}, metrics={Kind.WORKER: {"printed_loss_scale": column}},
            )  # fmt: skip


def halved(scale: float, times: int) -> list[float]:
    return [scale / 2.0**number for number in range(1, times + 1)]


def claims(scales: Iterable[float]) -> list[Claim]:
    return claims_of(LossScale(), frames(scales))


def test_fault_a_scale_that_has_settled_and_is_halved_in_each_step_is_told_after_six() -> None:
    [found] = claims([*SETTLED, *halved(8192.0, 40)])
    assert (found.kind, found.entity, found.active) == (KIND, job(), True)
    assert found.since == len(SETTLED), "when it began to fall: what follows from one fault begins soon after it"
    assert "from 8192 to 128 in step 48" in found.evidence[0].text


def test_fault_what_is_printed_alone_is_judged_too() -> None:
    [found] = claims_of(LossScale(), printed([*SETTLED, 64.0, 1.0, 1.0]))
    assert (found.kind, found.since) == (KIND, 10.0 * len(SETTLED))


def test_fault_a_scale_that_never_settles_is_told_when_it_is_down_to_one_and_stays_told() -> None:
    [found] = claims([*halved(131072.0, 17), *[1.0] * 100])
    assert (found.active, found.since, found.evidence[0].value) == (True, 1.0, 1.0)


def test_one_at_or_below_one_that_rises_again_is_over() -> None:
    first, last = claims([*SETTLED, *halved(8192.0, 15), *[0.25] * 30, 0.5, *[0.5] * 30])
    assert (first.active, last.active) == (True, False)
    assert "rises again, to 0.5" in last.evidence[-1].text


def test_one_that_settles_again_is_over() -> None:
    first, last = claims([*SETTLED, *halved(8192.0, 8), *[32.0] * 30])
    assert (first.active, last.active) == (True, False)
    assert "settled at 32" in last.evidence[-1].text


def test_twin_a_scaler_that_comes_down_from_where_it_begins_is_none() -> None:
    assert claims([*halved(2.0**33, 20), *[4096.0] * 60]) == []


def test_twin_odd_batches_and_a_scale_that_shrinks_over_the_training_are_none() -> None:
    odd = [*SETTLED, 4096.0, 2048.0, 1024.0, *[1024.0] * 10, 512.0, *[512.0] * 30, *[1024.0] * 30]
    shrinking = [scale for power in range(10) for scale in [65536.0 / 2**power] * 25]
    assert claims(odd) == []
    assert claims(shrinking) == []


def test_twin_a_scale_of_one_from_the_start_or_none_at_all_is_none() -> None:
    assert claims([1.0] * 100) == []
    assert claims([float("nan"), 0.0, float("inf")] * 20) == []


def test_twin_another_epoch_begins_anew() -> None:
    detector = LossScale()
    assert claims_of(detector, frames(SETTLED)) == []
    begun = cut_frame(200.0, event("epoch.started", job(), 200.0, epoch=2))
    assert claims_of(detector, [begun, *frames([*halved(8192.0, 8), *[32.0] * 30], epoch=2)]) == []
    assert claims_of(detector, frames([1.0], epoch=1)) == []
