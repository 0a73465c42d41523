"""Looking at a collector for a while, and taking apart what it found."""

from typing import Any

import numpy as np

from collectors.training import TrainingCollector
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event, Reading, StepReading


def events_of(found: list[Any], name: str = "") -> list[Event]:
    return [each for each in found if isinstance(each, Event) and name in {"", each.name}]


def reading_of(found: list[Any]) -> dict[str, dict[str, float]]:
    (reading,) = [each for each in found if isinstance(each, Reading)]
    assert reading.matrix.dtype == np.float32
    return {
        worker: dict(zip(reading.names, row.tolist(), strict=True))
        for worker, row in zip(reading.entities, reading.matrix, strict=True)
    }


def steps_of(found: list[Any]) -> list[StepReading]:
    return [each for each in found if isinstance(each, StepReading)]


def watch(collector: TrainingCollector, clock: FakeClock, seconds: float) -> list[Any]:
    """Look five times a second, for so many seconds."""
    found: list[Any] = []
    for _ in range(round(seconds * 5)):
        clock.advance(0.2)
        found += collector.collect()
    return found
