"""Job snapshots: the small summary of a frame that the leader needs, sent from the detect role through the stream."""

from .entity import Name, Noun, Number, Real, Time
from .observations import Event, Layout


class SnapshotStep(Noun, frozen=True, kw_only=True):
    """A completed step of a job, summarised over its workers."""

    number: Number
    epoch: Number
    end: Time
    """Time at which the last worker completed it."""
    workers: Number
    """Workers that took part."""
    tokens: Real | None = None
    """Of all workers; None if the script does not log it."""
    loss: Real | None = None
    """Mean over the workers that logged one; None if none did."""
    step_s: Real | None = None
    """Seconds of the slowest worker; None if not logged."""
    finite: bool = True
    """The loss is finite on every worker, or not logged."""


class JobSnapshot(Noun, frozen=True, kw_only=True):
    """Snapshot of one job at one mark. Identity: (job, generation, number); generation and number rise along the stream."""

    job: Name
    generation: Number
    """Lease term of the partition's owner."""
    number: Number
    """Of the mark."""
    time: Time
    """Of the mark."""
    tick: bool
    """False: a cut, with events only."""
    heard: Time = 0.0
    """Time of the oldest of the nodes' newest batches; 0 if a node has sent none. Ticks only."""
    steps: tuple[SnapshotStep, ...] = ()
    events: tuple[Event, ...] = ()
    """Events that the leader acts on or writes down: SNAPSHOT_EVENTS."""
    layout: Layout | None = None
    """The layout if it changed since the last snapshot of this owner; None: unchanged."""
    entities: dict[str, Number] = {}
    """Kind → number of entities in the frame. Ticks only."""
    behind_s: Real = 0.0
    """Age of the newest batch at the mark: the lag of telemetry in seconds. Ticks only."""
    late: dict[str, Real] = {}
    """Node of the layout → age in seconds of its newest batch at the mark, by the node's own clock (negative: that clock is
    ahead), where it exceeds LATE_S; since 1970 if the node never sent one. Ticks only."""


LATE_S = 3.0
"""One batch interval, the latency of a batch, and one tick."""

SNAPSHOT_EVENTS = frozenset({
    "epoch.started", "restart.delayed", "budget.exhausted", "job.finished", "job.failed", "checkpoint.saved", "resumed", "transition.done",
    "node.changed", "job.changed", "checkpoint.safe",
})  # fmt: skip
"""Names of the events that a snapshot carries; other events reach the leader as evidence of findings."""
