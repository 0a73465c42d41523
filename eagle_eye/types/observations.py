"""Observations: layouts, readings, batches, events, marks and steps."""

from typing import Literal

from .entity import Doubles, Entity, Floats, Integers, Kind, Name, Noun, Number, Real, Time, Uptime

EPOCH_JUMP = 1 << 20
"""How far an epoch may be beyond the highest one known of its job and still be believed: one that begins each second takes twelve days."""


class RankPlacement(Noun, frozen=True, kw_only=True, gc=False):
    """Rank, node and GPU of one worker in a layout. `gc=False`: there may be a hundred thousand of them."""

    worker: str
    node: str
    rank: Number
    local_rank: Number
    gpu: str = ""
    """UUID of its GPU; empty on a machine without."""
    port: str = ""
    """The link (node/port) next to its GPU, as the node's agent says; the detecting servers fill it in."""
    dp: Number = 0
    pp: Number = 0
    tp: Number = 0
    cp: Number = 0
    ep: Number = 0


class NodePlace(Noun, frozen=True, kw_only=True, gc=False):
    """Where a node is: what it shares with its neighbours when that fails. '' is unknown."""

    switch: Name = ""
    """The one that it hangs at, the nearest of several in a row."""
    rack: Name = ""
    zone: Name = ""
    source: Name = ""
    """Who said so: configuration, slurm, labels, lldp; with commas between where they said different things."""


class Layout(Noun, frozen=True, kw_only=True):
    """Placement of all ranks of a job in one epoch; its coordinator writes one into the stream at each transition."""

    job: Name
    epoch: Number
    time: Time
    coordinator: str
    """Node whose launcher coordinates this epoch."""
    launchers: dict[str, str]
    """Node → host:port of its launcher's control channel, in the order of coordinator election."""
    placements: tuple[RankPlacement, ...]
    excluded: tuple[str, ...] = ()
    """Evicted nodes: they take no part until they are released."""
    reason: str = ""
    """Why this epoch was started: start, death, command, node lost, node returned, node released, join, stall, broken, rebalance, resize."""
    plan: str = ""
    resume_step: Number = -1
    """Load the newest complete checkpoint at or before this step; -1: the newest of all."""
    rolled_back: tuple[tuple[Number, Number], ...] = ()
    """(epoch, resume step) of each epoch of the run that began by going back: what earlier ones had behind that step is not gone on from any more."""
    skipped: tuple[Number, ...] = ()
    """Steps whose batch is drawn and skipped."""
    restarts: Number = 0
    """What the job has spent of its heal budget within the budget's window."""
    restarts_by_kind: dict[str, Number] = {}
    """The same by kind of failure."""
    in_place: bool = False
    """Its elastic workers continue from the epoch before, without new processes."""
    places: dict[str, NodePlace] = {}
    """Node → where it is: what the launchers knew when the epoch began, and, in the servers' copy, what agents have said since."""

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(place.worker for place in self.placements)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.placements))

    @property
    def voters(self) -> tuple[str, ...]:
        """The launchers whose votes count for the next epoch: all but the evicted."""
        return tuple(node for node in self.launchers if node not in self.excluded)

    def node_of(self, worker: str) -> str:
        """Node of a worker, '' if the layout does not know it."""
        return next((place.node for place in self.placements if place.worker == worker), "")

    def rank_of(self, worker: str) -> int:
        """Rank of a worker, -1 if the layout does not know it."""
        return next((place.rank for place in self.placements if place.worker == worker), -1)


class Reading(Noun, frozen=True, kw_only=True, eq=False):
    """What a collector returns: one source's metrics of several entities. Rates, never raw counters."""

    source: str
    kind: Kind
    entities: tuple[str, ...]
    names: tuple[str, ...]
    """Metric names with their unit, e.g. `power_watts`."""
    matrix: Floats
    """entities × names; NaN where there is no reading."""
    time: Time


class StepReading(Noun, frozen=True, kw_only=True, eq=False):
    """Steps that workers have completed; the training collector returns them beside its readings."""

    source: str
    workers: tuple[str, ...]
    names: tuple[str, ...]
    numbers: Integers
    """rows: step numbers, ascending."""
    epochs: Integers
    """rows: the job's epoch in which the step was done."""
    ends: Doubles
    """rows × workers: time at which the worker completed the step; NaN if it has not."""
    values: Doubles
    """rows × workers × names."""


class SchemaRecord(Noun, frozen=True, kw_only=True):
    """Column names of a block; written to the stream before the first batch that uses them."""

    id: str
    """Digest of source, kind and names."""
    source: str
    kind: Kind
    names: tuple[str, ...]
    steps: bool = False


class Block(Noun, frozen=True, kw_only=True, eq=False):
    """The part of a batch that comes from one source."""

    schema_id: str
    reading: Reading | StepReading


class Batch(Noun, frozen=True, kw_only=True, eq=False):
    """All readings of a node for one job, one record a second. Identity: (node, incarnation, job, number)."""

    node: str
    incarnation: str
    """Random id of the agent process; numbers start at 0 with each."""
    job: str
    number: Number
    time: Time
    blocks: tuple[Block, ...]
    monotonic_s: Uptime = 0.0
    """The node's monotonic clock at `time`."""


class Event(Noun, frozen=True, kw_only=True):
    """Something that happened once, written at once by the process that saw it. Identity: (node, incarnation, number)."""

    name: str
    """exit, exception, stall, session.opened, session.lost, peer.lost, epoch.started, epoch.failed, xid, gpu.lost, ... : docs/wire.md."""
    job: Name
    entity: Entity
    time: Time
    node: str
    """Node of the process that wrote it."""
    incarnation: str
    number: Number
    message: str = ""
    attributes: dict[str, str] = {}
    monotonic_s: Uptime = 0.0
    """The monotonic clock of the writer's node at `time`: compares with that of the node's batches, whoever sets the wall clock meanwhile."""

    @property
    def id(self) -> str:
        return f"{self.node}/{self.incarnation}/{self.number}"


class Baseline(Noun, frozen=True, kw_only=True):
    """What a learner has fitted (`data`: msgpack): immutable, stored by digest, read by detectors as `frame.baselines[name]`."""

    name: str
    """Name of the detector that reads it."""
    job: Name
    digest: str
    fitted: Time
    data: bytes


class ConfigChange(Noun, frozen=True, kw_only=True):
    """A new configuration of detectors, in effect from the next tick on."""

    digest: str
    text: str


class Mark(Noun, frozen=True, kw_only=True):
    """A watermark that the partition's owner writes: a tick each second, a cut as soon as an event was read.

    A frame is built from the records before a mark, so every reader builds the same frames.

    Marks of a lower generation than the highest seen are ignored.
    """

    mark: Literal["tick", "cut"]
    generation: Number
    number: Number
    time: Time
    stretch: Number = 1
    """`every` of the detectors that are not asked at each tick is multiplied by it: ticks run over."""


Record = Batch | Event | Layout | SchemaRecord | Baseline | ConfigChange | Mark
"""Every type of record in the topic of observations."""


class Step(Noun, frozen=True, kw_only=True, eq=False):
    """One step of a job, emitted when all workers have reported it, or three ticks after the first one did."""

    number: Number
    epoch: Number
    workers: tuple[str, ...]
    end: float
    """Time at which the last worker completed it."""
    values: dict[str, Floats]
    """Name → one number per worker, NaN = not reported: step_s, forward_s, loss, tokens, ..."""


class Topology(Noun, frozen=True, kw_only=True):
    """Physical topology: switch and rack of each node, node and port of each GPU and worker."""

    nodes: dict[str, str] = {}
    """Node → switch ('' = unknown)."""
    racks: dict[str, str] = {}
    """Node → rack, where it is known."""
    gpus: dict[str, str] = {}
    """GPU UUID → node."""
    workers: dict[str, str] = {}
    """Worker → node, of the newest layouts."""
    worker_gpus: dict[str, str] = {}
    """Worker → UUID of its GPU, where it is known."""
    gpu_ports: dict[str, str] = {}
    """GPU UUID → the link next to it, where it is known."""
    jobs: dict[str, tuple[str, ...]] = {}
    """Job → its workers, of the newest layouts: a worker's name has the run alone, and two jobs may have runs of the same name."""


class Telemetry(Noun, frozen=True, kw_only=True):
    """Freshness and clock of one node's telemetry; guards refuse to act on stale data."""

    node: str
    heard: Time = 0.0
    """Time at which its newest batch arrived, by the server's clock; 0: none has."""
    skew_s: Real = 0.0
    """Time of that batch by the node's own clock, minus `heard`; one or two seconds are the latency of a batch."""
