"""Pauses in a job's course, and what was heard of its nodes meanwhile: a job that stood still is told from numbers that nobody wrote."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dashboard.sources import Sources
from eagle_eye.types import Doubles

GAP = 4.0
"""A pause so many times longer than usual is a gap in the lines."""
MOST = 3
"""The longest ones, of which it is asked whether nodes were heard."""
LOOK_S = 30.0
"""On both sides of its middle at most, as nodes tell numbers every second; and not to its ends, where they begin again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A time in which no step was completed. Seconds since 1970."""

    begin: float
    end: float
    heard: bool = True
    """Numbers of its nodes were written meanwhile, so that it was the job that stood still; else nothing was written."""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


def breaks(times: Doubles) -> Any:
    """Indices before which a line over these times breaks."""
    between = np.diff(times)
    if not len(between):
        return np.empty(0, np.int64)
    return np.flatnonzero(between > GAP * max(float(np.median(between)), 1e-6)) + 1


def pauses(sources: Sources, job: str, times: Doubles) -> tuple[Pause, ...]:
    """Between the times at which steps were completed; longest first. Of those beyond MOST it is taken that the job stood still."""
    found = [Pause(begin=float(times[row - 1]), end=float(times[row])) for row in breaks(times)]
    longest = sorted(found, key=lambda pause: -pause.seconds)
    return (*_asked(sources, job, longest[:MOST]), *longest[MOST:])


def _asked(sources: Sources, job: str, found: Iterable[Pause]) -> Iterator[Pause]:
    table = next((name for name in sources.metrics() if not name.startswith("steps")), "")
    for pause in found:
        middle, reach = (pause.begin + pause.end) / 2, min(pause.seconds / 4, LOOK_S)
        yield Pause(begin=pause.begin, end=pause.end, heard=not table or _told(sources, table, job, middle - reach, middle + reach))


def _told(sources: Sources, table: str, job: str, since: float, until: float) -> bool:
    found = sources.ask(table, "SELECT count(*) AS told FROM {rows} WHERE job = $job", {"job": job}, since=since, until=until)
    return found is not None and int(found["told"][0]) > 0
