"""Records → frames: what lies between two marks of one job, aligned over all its nodes.

`FrameBuilder` is fed the sealed records of one job in the order of the stream; `tick` and `cut` close a frame.
It has no clock and makes no choice by chance: the same records and marks give the same frames.
"""

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec
import numpy as np

from .deduplication import Writers
from .errors import WireError
from .event_attributes import epoch_of, is_outdated
from .frame_columns import Columns, Rows
from .layout_facts import LayoutFacts
from .node_clocks import NodeClocks
from .outside_records import OutsideRecords
from .reporting_node import ReportingNode
from .step_assembly import EPOCHS_KEPT, StepAssembly
from .topology import with_layout
from .types import (
    EPOCH_JUMP,
    LARGEST,
    Baseline,
    Event,
    Floats,
    Integers,
    Kind,
    Layout,
    Mark,
    SchemaRecord,
    Step,
    Topology,
)
from .types.entity import LATEST
from .wire import BatchHeader, Schemas, Sealed, SealedBatch, Shape, schema_for, step_arrays

Past = Callable[[Kind, str, float], Floats]
"""(kind, name, seconds) → float32 array of ticks × present columns, oldest first; NaN where nothing was read."""

WAITING_KEPT = 4096
"""Batches kept until their schema comes; the oldest are dropped (and counted) beyond."""
PLANS_SPARE = 4096
NODES_KEPT = GPUS_KEPT = 50_000
WORKERS_KEPT = 200_000
"""Names come over a wire: beyond so many those that were heard of first are forgotten."""
BASELINES_KEPT = 64
"""Of one job; a detector reads one."""
FITTED_AHEAD_S = 3600.0
AHEAD_S = 5.0
"""A time so far beyond the mark's comes from a wrong clock: it is told, and not believed."""
EPOCHS_AHEAD = 16
"""Steps may be told of before the layout of their epoch is: of so many epochs that the launchers have not declared yet."""


def _no_past(kind: Kind, name: str, seconds: float) -> Floats:
    raise LookupError(
        f"this frame has no window to look {seconds} s back for {kind}/{name}: only tick frames have one, and only where a detector says"
        f" how far it looks back: give its class `past_s: ClassVar[float] = {seconds}`"
    )


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
    clocks: Mapping[str, float] = field(default_factory=dict)
    """Node whose clock is off → seconds that it is ahead of the marks' clock, less than 0 where it is behind (node_clocks.py)."""
    past: Past = _no_past


@dataclass
class Counts:
    """What a builder did not put into frames, and why."""

    duplicates: int = 0
    late: int = 0
    """Readings older than what a frame already held of their source; they count for the history alone."""
    waiting: int = 0
    """Batches that had to wait for a schema."""
    dropped: int = 0
    """Batches that waited for a schema in vain, or whose schema does not fit."""
    unbelieved: int = 0
    """Layouts, events and steps of an epoch that is too far beyond those that the job's launchers have declared."""
    outdated: int = 0
    """Events that tell how the job was in an epoch that is over."""
    impossible: int = 0
    """Steps with a number, an epoch or a time that cannot be; baselines of the future."""


class _Part(NamedTuple):
    """One block of a shape, resolved: what it holds and where that goes."""

    schema: SchemaRecord
    places: Integers
    """Readings: columns of the kind; steps: ids of the workers."""
    begin: int = 0
    end: int = 0
    """Of readings: within the body."""


class _Plan(NamedTuple):
    """What to do with every batch of one shape."""

    shape: Shape
    """Held, so that its id stays its own."""
    readings: tuple[_Part, ...]
    steps: tuple[_Part, ...]


class _Group(NamedTuple):
    """All blocks of readings that came under one schema in a tick."""

    schema: SchemaRecord
    places: list[Integers]
    data: list[bytes]
    headers: list[BatchHeader]
    used: list[dict[str, BatchHeader]]
    """What their nodes have used so far, to be updated."""

    def rows(self) -> Rows:
        values = np.frombuffer(b"".join(self.data), dtype="<f4").reshape(-1, len(self.schema.names))
        return Rows(self.schema.names, np.concatenate(self.places), values)


def _time_of(batch: SealedBatch) -> float:
    return batch.header.time


class FrameBuilder:
    """Builds the frames of one job."""

    def __init__(self, job: str, schemas: Schemas, topology: Topology | None = None, *, newest_only: bool = False) -> None:
        """`newest_only`: many batches may come between two ticks, all of one node: those whose numbers would not count are let go at once."""
        self.job = job
        self._newest_only = newest_only
        self.counts = Counts()
        self.layout: Layout | None = None
        self.baselines: dict[str, Baseline] = {}
        self._schemas = schemas
        self._switches = topology or Topology()
        self.topology = self._switches
        self._gpus: dict[str, str] = {}
        """Those that events were about → their nodes."""
        self._facts = LayoutFacts()
        self.outside = OutsideRecords()
        """Of nodes that are no part of the job."""
        self._layouts: dict[int, Layout] = {}
        self._nodes: dict[str, ReportingNode] = {}
        self._writers: dict[str, Writers] = {}
        self._reporting: dict[str, float] = {}
        self._newest: dict[str, BatchHeader] = {}
        """Node → its newest batch since the last tick."""
        self._clocks = NodeClocks()
        self._columns: dict[Kind, Columns] = {}
        self._plans: dict[int, _Plan] = {}
        self._pending: list[SealedBatch] = []
        self._waiting: deque[SealedBatch] = deque()
        self._events: list[Event] = []
        self._steps = StepAssembly()
        self._ticks = 0
        self._time = 0.0
        """Of the newest mark."""
        self._replaced = schemas.replaced
        self.reporting_now: set[str] = set()
        """Nodes with a batch since the tick before."""
        self.ahead: dict[str, float] = {}
        """Node → seconds that its clock is ahead of the newest tick, of those that are more than AHEAD_S ahead."""
        self.behind: dict[str, float] = {}
        """Node with a batch since the tick before → seconds that its clock is behind; what is only late is not."""

    def feed(self, record: Sealed) -> None:
        """Take one record of this job in (or a schema). Raises nothing: what cannot be used is counted."""
        if isinstance(record, SealedBatch | Event) and self.outside.holds(record, self._ticks):
            return
        if isinstance(record, SealedBatch):
            self._feed_batch(record)
        elif isinstance(record, Event):
            if is_outdated(record, self._epoch):
                self.counts.outdated += 1
            elif self._believes(epoch_of(record)):
                self._feed_event(record)
        elif isinstance(record, Layout):
            if self._believes(record.epoch):
                self._feed_layout(record)
        elif isinstance(record, Baseline):
            self._feed_baseline(record)
        elif isinstance(record, SchemaRecord):
            with suppress(WireError):  # it stands for something else
                self._schemas.add(record)

    def cut(self, mark: Mark) -> Frame:
        """The events since the last mark, and nothing else."""
        self._time = mark.time
        return Frame(
            job=self.job,
            number=mark.number,
            generation=mark.generation,
            time=mark.time,
            tick=False,
            events=self._take_events(mark),
            layout=self.layout,
            topology=self.topology,
            baselines=self.baselines,
            reporting=self._reporting.copy(),
        )

    def tick(self, mark: Mark) -> Frame:
        """Everything since the last tick, and the events since the last mark."""
        self._ticks += 1
        self._time = mark.time
        self.outside.expire(self._ticks)
        self._let_leave()
        self._add_facts()
        for header in self._newest.values():
            self._clocks.observe(mark.time, header)
        self._newest.clear()
        batches = self._take_batches()
        for columns in self._columns.values():
            columns.settle()
        self.reporting_now = {batch.header.node for batch, _ in batches}
        self.ahead = {batch.header.node: batch.header.time - mark.time for batch, _ in batches if batch.header.time - mark.time > AHEAD_S}
        self.behind = {node: offset for node in self.reporting_now if (offset := self._clocks.offset(node)) > 0.0}
        self._report_steps(batches, mark)
        rows = self._rows_of(batches)
        metrics = {
            kind: columns.metrics(self._ticks, rows.get(kind, ())) for kind, columns in self._columns.items()
        }
        return Frame(
            job=self.job,
            number=mark.number,
            generation=mark.generation,
            time=mark.time,
            tick=True,
            entities={kind: columns.entities for kind, columns in self._columns.items()},
            metrics=metrics,
            moved={kind: columns.moved() for kind, columns in self._columns.items()},
            steps=self._steps.due(self._ticks, self._layouts),
            events=self._take_events(mark),
            layout=self.layout,
            topology=self.topology,
            baselines=self.baselines,
            reporting=self._reporting.copy(),
            clocks=self._clocks.ahead(),
        )

    # --- taking records in ---------------------------------------------------------------------------------------

    def _feed_batch(self, batch: SealedBatch) -> None:
        header = batch.header
        node = self._nodes.get(header.node)
        if node is None:
            node = self._nodes[header.node] = ReportingNode()
            if len(self._nodes) > NODES_KEPT:
                gone = next(iter(self._nodes))
                del self._nodes[gone]
                self._reporting.pop(gone, None)
        if not node.batches.first_time(header.incarnation, header.number):
            self.counts.duplicates += 1
            return
        if node.hear(header, self._ticks):
            self._reporting[header.node] = header.time
        known = self._newest.get(header.node)
        if known is None or not (header.incarnation == known.incarnation and header.number < known.number):
            self._newest[header.node] = header
        if id(batch.shape) in self._plans or self._can_plan(batch.shape):
            if self._newest_only and self._pending and _replaces(batch, self._pending[-1]):
                self._pending.pop()
            self._pending.append(batch)
            return
        self.counts.waiting += 1
        self._waiting.append(batch)
        if len(self._waiting) > WAITING_KEPT:
            self._waiting.popleft()
            self.counts.dropped += 1

    @property
    def _epoch(self) -> int:
        """The highest that the job's launchers have declared; 0: none yet."""
        return self.layout.epoch if self.layout is not None else 0

    def _believes(self, epoch: int) -> bool:
        """False, and counted, for an epoch that no job has reached: after it no real one would count."""
        believed = epoch <= self._epoch + EPOCH_JUMP
        self.counts.unbelieved += not believed
        return believed

    def _feed_event(self, event: Event) -> None:
        writer = self._writers.setdefault(event.node, Writers())
        if len(self._writers) > NODES_KEPT:
            del self._writers[next(iter(self._writers))]
        if writer.first_time(event.incarnation, event.number):
            self._events.append(event)
            self._facts.take(event, self._epoch, self.topology.workers)
            if event.entity.kind is Kind.GPU and len(self._gpus) < GPUS_KEPT and self.topology.gpus.get(event.entity.name) != event.node:
                self._gpus[event.entity.name] = event.node  # its agent wrote it: also a GPU that no layout names has a node
                self.topology = msgspec.structs.replace(self.topology, gpus={**self.topology.gpus, event.entity.name: event.node})
        else:
            self.counts.duplicates += 1

    def _feed_baseline(self, baseline: Baseline) -> None:
        """The newest counts. One that was fitted in the future would be the newest for ever."""
        present = self.baselines.get(baseline.name)
        if self._time and baseline.fitted > self._time + FITTED_AHEAD_S:
            self.counts.impossible += 1
        elif present is None or baseline.fitted >= present.fitted:
            self.baselines = {**self.baselines, baseline.name: baseline}
            if len(self.baselines) > BASELINES_KEPT:
                del self.baselines[next(iter(self.baselines))]

    def _feed_layout(self, layout: Layout) -> None:
        """An older epoch may come late: steps of it are still judged by its own workers."""
        self._layouts[layout.epoch] = layout
        while len(self._layouts) > EPOCHS_KEPT:
            del self._layouts[min(self._layouts)]
        if self.layout is None or (layout.epoch, layout.time) >= (self.layout.epoch, self.layout.time):
            self._take_layout(self._facts.begin(layout, self._epoch))
        for record in self.outside.know(layout, self._layouts.keys()):
            self.feed(record)

    def _take_layout(self, layout: Layout) -> None:
        self.layout = layout
        known = msgspec.structs.replace(self._switches, gpus={**self._gpus, **self._switches.gpus})
        self.topology = with_layout(known, layout)

    def _add_facts(self) -> None:
        """What workers and agents have said since the last tick, into the layout."""
        if self.layout is not None and (layout := self._facts.add(self.layout)) is not self.layout:
            self._take_layout(layout)

    # --- closing a tick ------------------------------------------------------------------------------------------

    def _take_events(self, mark: Mark) -> tuple[Event, ...]:
        events = tuple(self._on_the_marks_clock(event, mark) for event in self._events)
        self._events.clear()
        return events

    def _on_the_marks_clock(self, event: Event, mark: Mark) -> Event:
        time = self._clocks.time_of(event, mark.time, self._newest.get(event.node))
        return event if time == event.time else msgspec.structs.replace(event, time=time)

    def _let_leave(self) -> None:
        left = [columns.leave(self._ticks) for columns in self._columns.values()]
        if self._schemas.replaced != self._replaced:
            self._replaced = self._schemas.replaced
            self._plans.clear()
        if self._steps.names_known > WORKERS_KEPT:
            self._steps.forget()
            self._plans.clear()
        if any(left) or len(self._plans) > 2 * len(self._nodes) + PLANS_SPARE:
            self._plans.clear()

    def _take_batches(self) -> list[tuple[SealedBatch, _Plan]]:
        """All batches since the last tick, by their own time, with what to do with them."""
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            (self._pending if self._can_plan(batch.shape) else self._waiting).append(batch)
        pending, self._pending = self._pending, []
        pending.sort(key=_time_of)
        batches = []
        for batch in pending:
            plan = self._plans.get(id(batch.shape)) or self._plan(batch.shape)
            if plan is None:
                self.counts.dropped += 1
            else:
                batches.append((batch, plan))
        return batches

    def _can_plan(self, shape: Shape) -> bool:
        return all(block.schema_id in self._schemas for block in shape.blocks)

    def _plan(self, shape: Shape) -> _Plan | None:
        """None if a schema does not fit its block."""
        try:
            schemas = [schema_for(block, self._schemas) for block in shape.blocks]
        except WireError:
            return None
        by_id = {schema.id: schema for schema in schemas}
        readings = []
        for block, begin, end in shape.readings:
            schema = by_id[block.schema_id]
            columns = self._columns.setdefault(schema.kind, Columns()).place(block.entities, self._ticks)
            readings.append(_Part(schema, columns, begin, end))
        steps = [_Part(by_id[block.schema_id], self._steps.ids_of(block.entities)) for block in shape.steps]
        plan = self._plans[id(shape)] = _Plan(shape, tuple(readings), tuple(steps))
        return plan

    def _rows_of(self, batches: list[tuple[SealedBatch, _Plan]]) -> dict[Kind, list[Rows]]:
        """All readings that count, by kind: one buffer and one reshape for each schema."""
        groups: dict[str, _Group] = {}
        for batch, plan in batches:
            header = batch.header
            node = self._nodes.get(header.node) or ReportingNode()
            used = node.used
            for schema, places, begin, end in plan.readings:
                before = used.get(schema.id)
                if before is not None and node.is_older(header, before, self._ticks):
                    self.counts.late += 1
                    continue
                group = groups.get(schema.id)
                if group is None:
                    group = groups[schema.id] = _Group(schema, [], [], [], [])
                group.places.append(places)
                group.data.append(batch.payload[batch.begin + begin : batch.begin + end])
                group.headers.append(header)
                group.used.append(used)
        rows: dict[Kind, list[Rows]] = {}
        for schema_id, group in groups.items():
            for used, header in zip(group.used, group.headers, strict=True):
                used[schema_id] = header
            rows.setdefault(group.schema.kind, []).append(group.rows())
        return rows

    def _report_steps(self, batches: list[tuple[SealedBatch, _Plan]], mark: Mark) -> None:
        """Hand step blocks over, those of equal extent together; their times are put on the marks' clock."""
        groups: dict[tuple[str, int, int], tuple[SchemaRecord, list[Integers], list[bytes], list[float]]] = {}
        for batch, plan in batches:
            if not any(batch.header.rows):
                continue
            offset = self._clocks.offset(batch.header.node)
            for part, (_, rows, data) in zip(plan.steps, batch.step_blocks(), strict=True):
                if rows and len(part.places):
                    key = (part.schema.id, rows, len(part.places))
                    group = groups.get(key) or groups.setdefault(key, (part.schema, [], [], []))
                    group[1].append(part.places)
                    group[2].append(data)
                    group[3].append(offset)
        for (_, rows, workers), (schema, places, blocks, offsets) in groups.items():
            numbers, epochs, ends, values = step_arrays(b"".join(blocks), rows, workers, len(schema.names), len(blocks))
            unbelieved = epochs > self._epoch + (EPOCHS_AHEAD if self.layout is not None else EPOCH_JUMP)
            impossible = (numbers < 0) | (numbers > LARGEST) | (epochs < 0) | (np.isinf(ends) | (np.abs(ends) > LATEST)).any(axis=2)
            if unbelieved.any() or impossible.any():
                self.counts.unbelieved += int(unbelieved.sum())
                self.counts.impossible += int(impossible.sum())
                ends = np.where((unbelieved | impossible)[..., None], np.nan, ends)  # as if nobody had completed them
            ends = np.minimum(ends + np.array(offsets)[:, None, None], mark.time)
            self._steps.report(self._ticks, np.stack(places), schema.names, numbers, epochs, ends, values)


def _replaces(batch: SealedBatch, before: SealedBatch) -> bool:
    """Every number of the batch before has a newer one in this."""
    header, old = batch.header, before.header
    same = batch.shape is before.shape and header.incarnation == old.incarnation and header.number > old.number
    return same and not any(old.rows)
