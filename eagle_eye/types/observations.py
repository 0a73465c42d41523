"""What is seen: layouts, readings, batches, events, marks and steps."""

from typing import Literal

from .entity import Doubles, Entity, Floats, Integers, Kind, Noun


class RankPlacement(Noun, frozen=True, kw_only=True, gc=False):
    """One worker's place in a layout; the garbage collector need not look into it, as there are a hundred thousand."""

    worker: str
    node: str
    rank: int
    local_rank: int
    gpu: str = ""
    """UUID of its GPU; empty on a machine without."""
    dp: int = 0
    pp: int = 0
    tp: int = 0


class Layout(Noun, frozen=True, kw_only=True):
    """Which worker is which rank in an epoch of a job: a record in the stream at each transition."""

    job: str
    epoch: int
    time: float
    coordinator: str
    """Node whose launcher coordinates this epoch."""
    launchers: dict[str, str]
    """Node → host:port of its launcher's control channel, in the order of succession."""
    placements: tuple[RankPlacement, ...]
    excluded: tuple[str, ...] = ()
    """Nodes that must not take part until they are released."""
    reason: str = ""
    """Why this epoch was begun: start, death, command, node lost, node returned, node released, join, stall, broken, rebalance, resize."""
    plan: str = ""
    resume_step: int = -1
    """Roll back to the newest whole checkpoint at or before this step; -1: the newest of all."""
    skipped: tuple[int, ...] = ()
    """Steps whose batch is drawn and thrown away."""
    restarts: int = 0
    """How many restarts the job has spent of its own budget."""
    in_place: bool = False
    """Its elastic workers lived on from the epoch before."""

    @property
    def workers(self) -> tuple[str, ...]:
        return tuple(place.worker for place in self.placements)

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(place.node for place in self.placements))

    def node_of(self, worker: str) -> str:
        """Node of a worker, '' if the layout does not know it."""
        return next((place.node for place in self.placements if place.worker == worker), "")

    def rank_of(self, worker: str) -> int:
        """Rank of a worker, -1 if the layout does not know it."""
        return next((place.rank for place in self.placements if place.worker == worker), -1)


class Reading(Noun, frozen=True, kw_only=True, eq=False):
    """What a collector returns: one source's block of numbers. Rates, never raw counters."""

    source: str
    kind: Kind
    entities: tuple[str, ...]
    names: tuple[str, ...]
    """Metric names with their unit, e.g. `power_watts`."""
    matrix: Floats
    """entities × names; NaN where there is no reading."""
    time: float


class StepReading(Noun, frozen=True, kw_only=True, eq=False):
    """What the training collector returns beside its readings: the steps that its workers have completed."""

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
    """Names of the columns of a block; written to the stream before the first batch that uses it."""

    id: str
    """Digest of source, kind and names."""
    source: str
    kind: Kind
    names: tuple[str, ...]
    steps: bool = False


class Block(Noun, frozen=True, kw_only=True, eq=False):
    """One source's part of a batch."""

    schema_id: str
    reading: Reading | StepReading


class Batch(Noun, frozen=True, kw_only=True, eq=False):
    """One record a second per node and job. Identity: (node, boot, job, number)."""

    node: str
    boot: str
    """Random id of the agent's process: numbers start again with it."""
    job: str
    number: int
    time: float
    blocks: tuple[Block, ...]


class Event(Noun, frozen=True, kw_only=True):
    """Something that happened once, sent at once by who saw it. Identity: (node, boot, number)."""

    name: str
    """exit, exception, stall, session.opened, session.lost, peer.lost, epoch.begun, epoch.failed, xid, gpu.lost, ... : docs/wire.md."""
    job: str
    entity: Entity
    time: float
    node: str
    """Of the writer."""
    boot: str
    number: int
    message: str = ""
    attributes: dict[str, str] = {}

    @property
    def id(self) -> str:
        return f"{self.node}/{self.boot}/{self.number}"


class Baseline(Noun, frozen=True, kw_only=True):
    """What a learner fitted (`data`: msgpack, never pickle): immutable, stored by digest, read by detectors as `frame.baselines[name]`."""

    name: str
    """Name of the detector that reads it."""
    job: str
    digest: str
    fitted: float
    data: bytes


class ConfigChange(Noun, frozen=True, kw_only=True):
    """A configuration takes effect everywhere at the tick after this record."""

    digest: str
    text: str


class Mark(Noun, frozen=True, kw_only=True):
    """Written by the partition's owner: a tick each second, a cut as soon as an event was read.

    Marks of a lower generation than the highest seen are skipped.
    """

    mark: Literal["tick", "cut"]
    generation: int
    number: int
    time: float


Record = Batch | Event | Layout | SchemaRecord | Baseline | ConfigChange | Mark
"""Everything that is written to the topic of observations."""


class Step(Noun, frozen=True, kw_only=True, eq=False):
    """One step of a job, when all workers have reported it or three ticks after the first did."""

    number: int
    epoch: int
    workers: tuple[str, ...]
    end: float
    """Time at which the last worker completed it."""
    values: dict[str, Floats]
    """Name → one number per worker, NaN = not reported: step_s, forward_s, loss, tokens, ..."""


class Topology(Noun, frozen=True, kw_only=True):
    """Which node hangs at which switch, which GPU in which node."""

    nodes: dict[str, str] = {}
    """Node → switch ('' = unknown)."""
    gpus: dict[str, str] = {}
    """GPU UUID → node."""
    workers: dict[str, str] = {}
    """Worker → node, of the newest layouts."""
