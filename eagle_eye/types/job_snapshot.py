"""What decisions need of a frame: small enough to be sent, so that who decides need not be where it was judged."""

from .entity import Noun
from .observations import Event, Layout


class SnapshotStep(Noun, frozen=True, kw_only=True):
    """A step that a job has completed, over all its workers."""

    number: int
    epoch: int
    end: float
    """Time at which the last worker completed it."""
    workers: int
    """How many took part."""
    tokens: float | None = None
    """Of all workers; None if the script does not tell."""
    loss: float | None = None
    """Mean over the workers that told a number; None if none did."""
    step_s: float | None = None
    """Seconds of the slowest worker; None if it does not tell."""
    finite: bool = True
    """The loss is a number on every worker, or is not told."""


class JobSnapshot(Noun, frozen=True, kw_only=True):
    """One mark of one job. Identity: (job, generation, number); both rise in the order of the stream."""

    job: str
    generation: int
    """Term of the partition's owner."""
    number: int
    """Of the mark."""
    time: float
    """Of the mark."""
    tick: bool
    """False: a cut, with events only."""
    heard: float = 0.0
    """Every node of the layout has sent a batch at this time or later; 0 if one never did. Of a tick."""
    steps: tuple[SnapshotStep, ...] = ()
    events: tuple[Event, ...] = ()
    """Those that decisions hang on: SNAPSHOT_EVENTS."""
    layout: Layout | None = None
    """When it is new to who writes the snapshots; None: as before."""
    entities: dict[str, int] = {}
    """Kind → how many have columns in the frame. Of a tick."""
    behind_s: float = 0.0
    """Age of the newest batch at the mark: how far telemetry lags. Of a tick."""
    late: dict[str, float] = {}
    """Node of the layout → age of its newest batch at the mark, by the node's own clock (negative: that is ahead), where it
    is further off than LATE_S; since 1970 if it never sent one. Of a tick."""


LATE_S = 3.0
"""A batch a second, the way of one, and a tick that has just missed it."""

SNAPSHOT_EVENTS = frozenset({"epoch.begun", "budget.spent", "job.finished", "job.failed", "checkpoint.saved", "resumed", "transition.done"})
"""Names of the events that a snapshot carries; all others count as evidence within findings."""
