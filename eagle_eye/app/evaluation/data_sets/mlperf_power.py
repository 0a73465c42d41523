"""Power of each node of real trainings that ended well: nobody is accused as they are, and a node whose power is changed by hand is named.

Into the readings of one node, at a moment drawn from a seed, is written: a third of its power (it computes nothing), 70 and 80 % of it (throttled: it slows all), or the reading before
that moment again and again (a stuck meter). The moment is in training, behind `SETTLED` readings of it; the node's readings and the others' work go on for `GOES_ON` readings after it, since
of a node that is not read, or in a pause, nothing can be told.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from detectors.runtime.evaluator import Prototypes
from eagle_eye.app import plugin_wiring
from eagle_eye.app.evaluation.figures import Figure
from eagle_eye.app.evaluation.job_steps import layout_of
from eagle_eye.app.evaluation.judged_frames import judged
from eagle_eye.app.evaluation.labelled_files import REMEDY, arrays_of
from eagle_eye.config import Config
from eagle_eye.errors import DataSetError
from eagle_eye.frames import Frame
from eagle_eye.types import Doubles, Kind, Layout

TICK_S = 2.0
"""As often as each node is read."""
FAULTS = {"computes nothing (35 % of its power)": 0.35, "throttled (70 %)": 0.7, "throttled (80 %)": 0.8, "stuck meter": None}
"""What is written → times the power; None: the same reading again and again."""
PER_RUN = 4
"""Moments and nodes that are drawn for each run and fault."""
SETTLED, BEFORE, GOES_ON, AFTER = 26, 75, 6, 12
"""Readings: in training before the fault; that are shown before it; in training after it; until which it must be told."""
TRAINS = 0.75
"""Share of the highest power of the median node."""
RECALL, CULPRIT, DELAY_S, RATE_HOURS = 0.99, 0.975, 10.0, 10_000.0
FEWEST_NODES = 4
OTHERS = {"recall": "ResiHP 99.4 %; Minder 0.883 (on their own clusters)", "culprit": "Holmes 97.2 % (on their own cluster)", "delay": ""}


class PowerRun(NamedTuple):
    """One run on the ticks of the server."""

    name: str
    watts: Doubles
    """Nodes × ticks; NaN where nothing was read since the tick before."""

    @property
    def hours(self) -> float:
        return float(self.watts.shape[1] * TICK_S / 3600.0)


class WrittenFault(NamedTuple):
    """One case, and what was made of it."""

    kind: str
    found: bool
    """Anybody was named at or after the moment."""
    right: bool
    """The node alone, and nobody before."""
    delay_s: float
    """Until it was named; infinite if it was not."""


def figures(folder: Path) -> Iterator[Figure]:
    """As they are, then with faults. Raises DataSetError."""
    runs = [_run(path) for path in sorted(folder.glob("*.npz"))]
    if not runs:
        raise DataSetError(f"{folder}: it has no run (.npz); {REMEDY}")
    detectors = plugin_wiring.detectors(Config())
    yield _healthy(runs, detectors)
    cases = [case for run in runs for case in _injected(run, detectors)]
    if cases:
        yield from _of_faults(cases)


def _healthy(runs: Sequence[PowerRun], detectors: Prototypes) -> Figure:
    verdicts = [judged(_frames(run.watts, layout_of([0] * len(run.watts))), layout_of([0] * len(run.watts)), detectors) for run in runs]
    accused, acting, named = (sum(each) for each in zip(*((verdict.accused, verdict.acting, len(verdict.named)) for verdict in verdicts), strict=True))
    hours = sum(run.hours for run in runs)
    return Figure(
        what=f"{len(runs)} healthy runs, {hours:.1f} run-hours of up to {max(len(run.watts) for run in runs)} nodes",
        figure=f"incidents with a culprit: {accused}; that act: {acting}; nodes that a finding is about: {named}",
        goal="≤ 1 with a culprit in 10,000 run-hours, none that acts",
        met=not accused and not acting,
        reason="" if accused or acting or hours >= RATE_HOURS else f"none in {hours:.1f} hours shows no rate of 1 in 10,000",
    )


def _of_faults(cases: Sequence[WrittenFault]) -> Iterator[Figure]:
    found, right = (sum(each) / len(cases) for each in ([case.found for case in cases], [case.right for case in cases]))
    kinds = {kind: [case for case in cases if case.kind == kind] for kind in FAULTS}
    missed = "; ".join(f"{kind}: {sum(case.right for case in some)} of {len(some)}" for kind, some in kinds.items())
    yield Figure(what=f"{len(cases)} faults injected: found", figure=f"{found:.3f}", goal=f"≥ {RECALL}", met=found >= RECALL, others=OTHERS["recall"], reason="" if found >= RECALL else missed)
    yield Figure(what="the same: its node named, and nobody else", figure=f"{right:.3f} ({missed})", goal=f"≥ {CULPRIT}", met=right >= CULPRIT, others=OTHERS["culprit"])
    delays = np.array([case.delay_s for case in cases if np.isfinite(case.delay_s)] or [np.inf])
    late = int(np.count_nonzero(delays > DELAY_S))
    yield Figure(
        what="the same: from the first changed reading until it is named",
        figure=f"median {np.median(delays):.0f} s, longest {delays.max():.0f} s; {late} of {len(delays)} later than {DELAY_S:.0f} s",
        goal=f"≤ {DELAY_S:.0f} s",
        met=not late and bool(np.isfinite(delays).all()),
        reason=f"{late} had to wait: readings that were missing or not of one side" if late else "",
    )


def _injected(run: PowerRun, detectors: Prototypes) -> Iterator[WrittenFault]:
    nodes, ticks = run.watts.shape
    if nodes < FEWEST_NODES:
        return
    median = np.nanmedian(run.watts, axis=0)
    trains = median > TRAINS * np.nanmax(median)
    moments = [tick for tick in range(SETTLED, ticks - GOES_ON) if trains[:tick].sum() >= SETTLED and trains[tick : tick + GOES_ON].all()]
    rng = np.random.default_rng(zlib.crc32(run.name.encode()))
    for kind, times in FAULTS.items():
        for _ in range(PER_RUN if moments else 0):
            moment, node = int(rng.choice(moments)), int(rng.integers(nodes))
            if np.isfinite(run.watts[node, moment - 1 : moment + GOES_ON]).all():
                yield _judged(run, (kind, times), moment, node, detectors)


def _judged(run: PowerRun, fault: tuple[str, float | None], moment: int, node: int, detectors: Prototypes) -> WrittenFault:
    first = max(0, moment - BEFORE)
    watts = run.watts[:, first : moment + AFTER].copy()
    struck = slice(moment - first, None)
    watts[node, struck] = watts[node, struck] * fault[1] if fault[1] is not None else watts[node, moment - first - 1]
    layout = layout_of([0] * len(watts))
    named = judged(_frames(watts, layout), layout, detectors).named
    began = (moment - first) * TICK_S
    at = named.get(layout.nodes[node], np.inf)
    return WrittenFault(fault[0], any(time > began for time in named.values()), list(named) == [layout.nodes[node]] and at > began, at - began)


def _frames(watts: Doubles, layout: Layout) -> Iterable[Frame]:
    """Tick n is at n × TICK_S."""
    names = {Kind.NODE: layout.nodes}
    for tick, row in enumerate(watts.T.astype(np.float32), 1):
        yield Frame(job=layout.job, number=tick, generation=1, time=tick * TICK_S, tick=True, entities=names, metrics={Kind.NODE: {"power_watts": row}}, layout=layout)


def _run(path: Path) -> PowerRun:
    """Each node's newest reading of each tick. Raises DataSetError."""
    columns = arrays_of(path, "ac_time_ms", "ac_watt")
    times, watts = columns["ac_time_ms"] / 1000.0, columns["ac_watt"].astype(np.float64)
    if times.ndim != 2 or times.shape != watts.shape or not (times > 0.0).any():
        raise DataSetError(f"{path}: its times and powers are no two tables of one size; {REMEDY}")
    begin, end = times[times > 0.0].min(), times.max()
    ticks = np.arange(begin + TICK_S, end + TICK_S, TICK_S)
    grid = np.full((len(watts), len(ticks)), np.nan)
    for node, (when, read) in enumerate(zip(times, watts, strict=True)):
        there = when > 0.0
        tick = np.clip(np.ceil((when[there] - begin) / TICK_S).astype(np.int64) - 1, 0, len(ticks) - 1)
        grid[node, tick] = read[there]  # of several in one tick the newest stays
    return PowerRun(path.stem, grid)
