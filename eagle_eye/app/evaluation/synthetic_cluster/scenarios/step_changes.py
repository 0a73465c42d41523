"""How a scenario changes steps and readings from the onset on; changes are made in the order in which they were asked for."""

from collections.abc import Callable

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, StepSignals, TickSignals
from eagle_eye.types import Kind


def each_step(job: DrillJob, change: Callable[[StepSignals], None]) -> None:
    """Of each step that begins at or after the onset."""
    before = job.effect.step

    def changed(step: StepSignals) -> None:
        before(step)
        change(step)

    job.effect.step = changed


def each_tick(job: DrillJob, change: Callable[[TickSignals], None]) -> None:
    """Of each tick from the onset on."""
    before = job.effect.tick

    def changed(signals: TickSignals) -> None:
        before(signals)
        change(signals)

    job.effect.tick = changed


def slower(job: DrillJob, who: list[int], times: float) -> None:
    """These workers compute so many times as long."""

    def change(step: StepSignals) -> None:
        step.compute_s[who] *= times

    each_step(job, change)


def slower_all(job: DrillJob, times: float) -> None:
    """All compute so many times as long."""
    slower(job, list(range(len(job.layout.placements))), times)


def waits_more(job: DrillJob, seconds: float) -> None:
    """All wait longer in collectives."""

    def change(step: StepSignals) -> None:
        step.wait_s += seconds

    each_step(job, change)


def reads(job: DrillJob, kind: Kind, entity: str, values: dict[str, float]) -> None:
    """What is read of a part is this, whenever it is read; of others nothing changes."""

    def change(signals: TickSignals) -> None:
        at = signals.place(kind, entity)
        for name, value in values.items():
            row = signals.metrics[kind][name]
            if np.isfinite(row[at]):
                row[at] = value

    each_tick(job, change)


def reads_times(job: DrillJob, kind: Kind, entity: str, times: dict[str, float]) -> None:
    """What is read of a part, or of all of the kind ('' ), is so many times what it was."""

    def change(signals: TickSignals) -> None:
        at = signals.place(kind, entity) if entity else slice(None)
        for name, factor in times.items():
            signals.metrics[kind][name][at] *= np.float32(factor)

    each_tick(job, change)


def reads_everywhere(job: DrillJob, kind: Kind, values: dict[str, float]) -> None:
    """Of all parts of the kind."""

    def change(signals: TickSignals) -> None:
        for name, value in values.items():
            row = signals.metrics[kind][name]
            row[np.isfinite(row)] = value

    each_tick(job, change)


class StepCount:
    """Steps since the first one that it was asked about."""

    def __init__(self) -> None:
        self._first: int | None = None

    def since(self, step: StepSignals) -> int:
        """0 of the first."""
        if self._first is None:
            self._first = step.number
        return step.number - self._first
