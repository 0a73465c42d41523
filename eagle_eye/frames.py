"""Records → frames: what lies between two marks of one job, aligned over all its nodes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from .types import Baseline, Event, Floats, Integers, Kind, Layout, Step, Topology

Past = Callable[[Kind, str, float], Floats]
"""(kind, name, seconds) → float32 array of ticks × present columns, oldest first; NaN where nothing was read."""


def _no_past(kind: Kind, name: str, seconds: float) -> Floats:
    raise LookupError(f"this frame has no window to look {seconds} s back for {kind}/{name}; only tick frames have one")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Frame:
    """What lies between two ticks of one job (a tick frame), or the events since the last mark (a cut frame)."""

    job: str
    number: int
    """Of the mark that closed it; rises over ticks and cuts alike."""
    generation: int
    """Of the mark's owner."""
    time: float
    """Of the mark."""
    tick: bool
    """False: a cut frame, with events only; no entities, metrics or steps."""
    entities: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    metrics: Mapping[Kind, Mapping[str, Floats]] = field(default_factory=dict)
    """kind → name → float32 array over `entities[kind]`; NaN = no reading since the last tick."""
    moved: Mapping[Kind, Integers] = field(default_factory=dict)
    """kind → for each entity its column in the tick frame before, −1 = new."""
    steps: tuple[Step, ...] = ()
    events: tuple[Event, ...] = ()
    layout: Layout | None = None
    topology: Topology = field(default_factory=Topology)
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    reporting: Mapping[str, float] = field(default_factory=dict)
    """Node → time of its newest batch of this job (kept while the job lasts, so silence can be seen)."""
    past: Past = _no_past
