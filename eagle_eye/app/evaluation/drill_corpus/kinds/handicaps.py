"""What makes a drill hard: telemetry that is lost, late, short, of a wrong clock or a lie, a collector that fails, a second suspect. Who then accuses nobody is right, too.

They have numbers of their own: the drill itself is the one that it would be without.
"""

from collections.abc import Callable

import msgspec
import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, StepSignals, TickSignals, no_change
from eagle_eye.types import Entity, Event, Kind, RankPlacement

from .of_nodes import node_named
from .signs import worker_of

OF_LAUNCHERS = frozenset({"exit", "exception", "worker.finished", "epoch.started", "job.finished", "job.failed", "session.lost", "session.opened", "peer.lost", "launcher.lost", "budget.exhausted"})
"""Events that no agent has to be there for."""
TIMERS = {"forward_s": 1.0 / 3.0, "backward_s": 1.0 / 1.5}
"""Share of the compute time that a step reports as this (drill_frames.py)."""
OWN = ("telemetry late", "clock skewed", "telemetry failing", "doubtful timers")
"""Causes that a handicap may be told as."""
_Handicap = Callable[[DrillJob, np.random.Generator], None]


def handicap(job: DrillJob, seed: int) -> str:
    """Make a job's drill harder, one way or another; the name of the way."""
    rng, left_out = np.random.default_rng((seed, 1)), _unfit(job)
    names = [name for name in HANDICAPS if name not in left_out]
    name = names[int(rng.integers(len(names)))]
    HANDICAPS[name](job, rng)
    return name


def _unfit(job: DrillJob) -> set[str]:
    """Handicaps that would change nothing in this drill."""
    ends = any(event.name in ("exit", "exception") for _, event in job.effect.told)
    lasts = job.effect.step is not no_change or job.effect.tick is not no_change
    told = any(event.node == job.target.node for _, event in job.effect.told)
    return {name for name, fits in (("short", lasts), ("second suspect", ends), ("telemetry late", told)) if not fits}


def _lost(job: DrillJob, rng: np.random.Generator) -> None:
    """The agent of the node at fault is gone from shortly before the onset on: no readings, no steps, no events of it."""
    node, who = job.target.node, job.indices(job.target.node)
    gone = job.onset - float(rng.uniform(0.0, 5.0))
    job.effect.told = [(at, event) for at, event in job.effect.told if event.node != node or event.name in OF_LAUNCHERS]

    def tick(signals: TickSignals) -> None:
        signals.reporting[node] = gone
        for kind, names in signals.entities.items():
            mine = np.array([node_named(kind, name) == node for name in names])
            for values in signals.metrics[kind].values():
                values[mine] = np.nan

    _after(job, tick=tick, step=lambda step: _report(step, who, np.nan))


def _late(job: DrillJob, rng: np.random.Generator) -> None:
    """What is told of the node at fault comes seconds late."""
    more = float(rng.uniform(4.0, 12.0))
    job.effect.told = [(at + more if event.node == job.target.node else at, event) for at, event in job.effect.told]


def _short(job: DrillJob, rng: np.random.Generator) -> None:
    """It is over after a few seconds, as far as it is slow or odd."""
    ends, step_before, tick_before = job.onset + float(rng.uniform(4.0, 9.0)), job.effect.step, job.effect.tick

    def step(signals: StepSignals) -> None:
        if signals.begin < ends:
            step_before(signals)

    def tick(signals: TickSignals) -> None:
        if signals.time < ends:
            tick_before(signals)

    job.effect.step, job.effect.tick = step, tick


def _clock(job: DrillJob, rng: np.random.Generator) -> None:
    """The clock of a node, of that at fault in half of the drills, is off; it was put right to within two seconds."""
    nodes = [job.target.node, _other(job, rng).node]
    node, off = nodes[int(rng.integers(2))], float(rng.uniform(-2.0, 2.0))
    job.effect.told = [(at, _moved(event, off, at) if event.node == node else event) for at, event in job.effect.told]

    def tick(signals: TickSignals) -> None:
        signals.clocks[node] = 30.0

    _after(job, tick=tick)


def _lie(job: DrillJob, rng: np.random.Generator) -> None:
    """The timers of a healthy worker say that it computes longer than it does; in half of the drills its collector is known to fail."""
    place, times = _other(job, rng), float(rng.uniform(1.2, 2.0))
    if rng.random() < 0.5:
        _tell_failing(job, place, "process")
    _after(job, step=lambda step: _report(step, [place.rank], times))


def _failing(job: DrillJob, rng: np.random.Generator) -> None:
    """A collector of the node at fault fails; what is told of it is true all the same."""
    _tell_failing(job, job.target, ("process", "training")[int(rng.integers(2))])


def _suspect(job: DrillJob, rng: np.random.Generator) -> None:
    """A healthy worker ends without a word within half a second of the onset of what happens, before it or after it."""
    place = _other(job, rng)
    first = min((event.time for _, event in job.effect.told if event.name in ("exit", "exception")), default=0.0)
    if first:
        job.tell(first + float(rng.uniform(-0.5, 0.5)), "exit", worker_of(place), code=1, signal="", rank=place.rank)


HANDICAPS: dict[str, _Handicap] = {
    "telemetry lost": _lost, "telemetry late": _late, "short": _short, "clock off": _clock, "a sensor lies": _lie, "collector fails": _failing, "second suspect": _suspect,
}  # fmt: skip


def _after(job: DrillJob, *, tick: Callable[[TickSignals], None] | None = None, step: Callable[[StepSignals], None] | None = None) -> None:
    """Behind what happens already."""
    tick_before, step_before = job.effect.tick, job.effect.step

    def ticks(signals: TickSignals) -> None:
        tick_before(signals)
        if tick is not None:
            tick(signals)

    def steps(signals: StepSignals) -> None:
        step_before(signals)
        if step is not None:
            step(signals)

    job.effect.tick, job.effect.step = ticks, steps


def _report(step: StepSignals, who: list[int], times: float) -> None:
    """What these workers' timers say; NaN: nothing comes."""
    for name, share in TIMERS.items():
        values = np.array(step.logged.get(name, step.compute_s * share), np.float32)
        values[who] *= np.float32(times)
        step.logged[name] = values


def _moved(event: Event, off: float, arrives: float) -> Event:
    return msgspec.structs.replace(event, time=min(event.time + off, arrives))


def _other(job: DrillJob, rng: np.random.Generator) -> RankPlacement:
    """A worker of another node."""
    elsewhere = [place for place in job.layout.placements if place.node != job.target.node]
    return elsewhere[int(rng.integers(len(elsewhere)))]


def _tell_failing(job: DrillJob, place: RankPlacement, collector: str) -> None:
    job.tell(job.onset - 1.0, "collector.failing", Entity(kind=Kind.NODE, name=place.node), node=place.node, late_s=0.1, collector=collector, reason="timed out")
