"""Loss curves of real trainings that ended well, step by step through detectors and diagnosis: nobody may be accused."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from detectors.runtime.evaluator import Prototypes
from eagle_eye.frames import Frame
from eagle_eye.types import Doubles, Entity, Event, Floats, Kind, Step

from .figures import Figure
from .job_steps import layout_of
from .judged_frames import judged

RATE_HOURS = 10_000.0
LAYOUT = layout_of([0, 0])
EPOCHS = {epoch: msgspec.structs.replace(LAYOUT, epoch=epoch) for epoch in (1, 2)}


class LossCurve(NamedTuple):
    """One run."""

    name: str
    times: Doubles
    """Ends of the steps that were logged, in seconds, rising."""
    steps: Doubles
    """Their numbers, rising."""
    losses: Doubles
    """Mean over the workers; NaN: none was logged."""
    step_s: Doubles
    """Seconds that a step took; NaN: not logged."""
    hours: float
    """That it ran."""

    def part(self, which: slice) -> "LossCurve":
        """Some of its steps."""
        return self._replace(times=self.times[which], steps=self.steps[which], losses=self.losses[which], step_s=self.step_s[which])

    def with_losses(self) -> "LossCurve":
        """Those of its steps that have one."""
        known = np.isfinite(self.losses)
        return self._replace(times=self.times[known], steps=self.steps[known], losses=self.losses[known], step_s=self.step_s[known])


class WrittenCurve(NamedTuple):
    """A curve as two workers log it, and what was written into it."""

    curve: LossCurve
    norms: Doubles | None = None
    """Of the gradient."""
    restart: int | None = None
    """Place of the first step of a second epoch."""
    first_bad: int | None = None
    """Place of the step in which the loss of the second worker alone is no number; behind it that of both."""


def healthy(curves: Sequence[LossCurve], detectors: Prototypes) -> Figure:
    """All of them as they are."""
    told: Counter[str] = Counter()
    accused = acting = 0
    for curve in curves:
        verdict = judged(frames_of(WrittenCurve(curve)), LAYOUT, detectors)
        told.update(kind for _, kind in verdict.told)
        accused, acting = accused + verdict.accused, acting + verdict.acting
    hours, losses = sum(curve.hours for curve in curves), sum(int(np.isfinite(curve.losses).sum()) for curve in curves)
    notices = ", ".join(f"{kind} {count}" for kind, count in sorted(told.items())) or "none"
    return Figure(
        what=f"{len(curves)} healthy runs, {hours:.1f} run-hours, {losses} losses",
        figure=f"incidents with a culprit: {accused}; that act: {acting}; findings: {notices}",
        goal="≤ 1 with a culprit in 10,000 run-hours, none that acts",
        met=not accused and not acting,
        reason="" if accused or acting or hours >= RATE_HOURS else f"none in {hours:.1f} hours shows no rate of 1 in 10,000",
    )


def frames_of(written: WrittenCurve) -> Iterator[Frame]:
    """A tick for each step that was logged."""
    curve, epoch = written.curve, 1
    for place, time in enumerate(curve.times.tolist()):
        events: tuple[Event, ...] = ()
        if place == written.restart:
            epoch, events = 2, (_restarted(time),)
        step = Step(number=int(curve.steps[place]), epoch=epoch, workers=LAYOUT.workers, end=time, values=_values(written, place))
        yield Frame(job=LAYOUT.job, number=place + 1, generation=1, time=time, tick=True, steps=(step,), events=events, layout=EPOCHS[epoch])


def _values(written: WrittenCurve, place: int) -> dict[str, Floats]:
    curve, count = written.curve, len(LAYOUT.workers)
    values: dict[str, Floats] = {"loss": np.full(count, curve.losses[place], np.float32)}
    if np.isfinite(curve.step_s[place]):
        values["step_s"] = np.full(count, curve.step_s[place], np.float32)
    if written.norms is not None:
        values["grad_norm"] = np.full(count, written.norms[place], np.float32)
    if written.first_bad is not None and place >= written.first_bad:
        values["loss"][1 if place == written.first_bad else 0 :] = np.nan
        values["loss_nan"] = np.where(np.isnan(values["loss"]), np.float32(1.0), np.float32(np.nan))
    return values


def _restarted(time: float) -> Event:
    job = Entity(kind=Kind.JOB, name=LAYOUT.job)
    return Event(name="epoch.started", job=LAYOUT.job, entity=job, time=time, node="node-0", incarnation="a", number=2, attributes={"epoch": "2", "reason": "death", "restarts": "1"})
