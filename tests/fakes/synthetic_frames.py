"""Frames of a job that was never run: for tests, the evaluation bench and whoever writes a detector.

>>> import numpy as np
>>> frames = list(job_frames(nodes=2, workers_per_node=2, ticks=3, rng=np.random.default_rng(1)))
>>> [frame.number for frame in frames], frames[0].entities[Kind.WORKER][0]
([1, 2, 3], 'run/node-0/0')
>>> frames[-1].past(Kind.NODE, "cpu_percent", 60.0).shape
(3, 2)

A fault is any callable that changes a tick's `Draft` before it becomes a frame:

>>> def deaf(draft):
...     if draft.tick >= 1:
...         draft.metrics[Kind.NODE]["cpu_percent"][0] = np.nan
>>> frames = list(job_frames(nodes=2, workers_per_node=2, ticks=3, rng=np.random.default_rng(1), faults=[deaf]))
>>> bool(np.isnan(frames[-1].metrics[Kind.NODE]["cpu_percent"][0]))
True
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from detectors.features.worker_positions import ACTIVITIES
from detectors.runtime.hot_window import HotWindow
from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.frames import Frame
from eagle_eye.types import Entity, Event, Floats, Integers, Kind, Layout, RankPlacement, Step, Topology

JOB = "team/gpt/run"
BEGAN = 1_700_000_000.0
STEP_S = 0.5

NODE_NORMALS = {
    "cpu_percent": (40.0, 2.0),
    "processors": (4.0, 0.0),
    "load_1": (4.0, 0.2),
    "memory_available_bytes": (64e9, 1e8),
    "memory_percent": (50.0, 0.5),
    "swap_percent": (0.0, 0.0),
    "disk_read_bytes_per_s": (2e6, 1e5),
    "disk_write_bytes_per_s": (1e6, 1e5),
    "net_received_bytes_per_s": (5e7, 1e6),
    "net_sent_bytes_per_s": (5e7, 1e6),
    "context_switches_per_s": (9000.0, 300.0),
}
GPU_NORMALS = {
    "utilisation_percent": (95.0, 1.0),
    "memory_used_bytes": (60e9, 1e7),
    "memory_percent": (75.0, 0.1),
    "power_watts": (600.0, 8.0),
    "temperature_celsius": (62.0, 0.7),
    "sm_clock_mhz": (1900.0, 10.0),
    "memory_clock_mhz": (2600.0, 0.0),
    "throttle_reasons": (0.0, 0.0),
    "ecc_corrected_per_s": (0.0, 0.0),
    "ecc_uncorrected_per_s": (0.0, 0.0),
}
"""name → (mean, standard deviation) of a healthy machine."""


@dataclass
class StepDraft:
    """A step before it becomes a `Step`: change `values`, or take workers out of `reported`."""

    number: int
    epoch: int
    end: float
    values: dict[str, Floats]
    """name → float32 over the workers of the layout."""


@dataclass
class Draft:
    """One tick before it becomes a frame: faults change it in place."""

    tick: int
    """From 0."""
    time: float
    layout: Layout
    entities: dict[Kind, tuple[str, ...]]
    metrics: dict[Kind, dict[str, Floats]]
    reporting: dict[str, float]
    """Node → time of its newest batch: leave a node's old value in to silence it."""
    steps: list[StepDraft]
    events: list[Event]
    clocks: dict[str, float] = field(default_factory=dict)
    """Node → seconds that its clock is ahead."""

    def column(self, kind: Kind, name: str) -> int:
        """Column of an entity."""
        return self.entities[kind].index(name)

    def tell(self, name: str, entity: Entity, **attributes: str) -> None:
        """Add an event, as its writer on the entity's node would."""
        number = self.tick * 1000 + len(self.events)
        node = entity.name.split("/")[1] if entity.kind is Kind.WORKER else entity.name
        self.events.append(
            Event(
                name=name,
                job=self.layout.job,
                entity=entity,
                time=self.time,
                node=node,
                incarnation="synthetic",
                number=number,
                attributes=attributes,
            )
        )


Fault = Callable[[Draft], None]


@dataclass
class SlowWorker:
    """One worker computes `factor` times longer from a tick on; the others wait for it in communication."""

    worker: int
    factor: float
    begin: int
    end: int = 1 << 60

    def __call__(self, draft: Draft) -> None:
        if not self.begin <= draft.tick < self.end:
            return
        for step in draft.steps:
            values = step.values
            extra = np.zeros_like(values["forward_s"])
            for phase in ("forward_s", "backward_s"):
                before = values[phase][self.worker]
                values[phase][self.worker] = before * self.factor
                extra[self.worker] += values[phase][self.worker] - before
            values["communication_s"] += extra.max() - extra
            values["step_s"] += extra.max()


SEEN_S = 0.6
"""Since the looks began on which a worker's activity rests."""


@dataclass
class FrozenWorker:
    """One worker stops in the middle of a step; no step is completed from then on, the others wait for it."""

    worker: int
    begin: int
    state: str = "S"
    """Letter of its process: T = stopped by a signal, R = running, S = asleep."""
    activity: ActivityKind = ActivityKind.HUNG
    """What its agent sees of its process; the others await it."""
    _marks: Floats | None = field(default=None, repr=False)

    def __call__(self, draft: Draft) -> None:
        if draft.tick < self.begin:
            self._marks = None
            return
        metrics = draft.metrics[Kind.WORKER]
        if self._marks is None:
            self._marks = metrics["marks"].copy()
            self._marks[np.arange(len(self._marks)) != self.worker] += 1
        draft.steps.clear()
        age = np.float32(draft.tick - self.begin + 1)
        metrics["marks"][:] = metrics["step_marks"][:] = self._marks
        metrics["activity"][:] = ACTIVITIES.index(ActivityKind.AWAITS_PEERS)
        metrics["activity"][self.worker] = ACTIVITIES.index(self.activity)
        metrics["activity_seen_s"][:] = np.minimum(age, SEEN_S)
        for name in ("step_age_s", "progress_age_s"):
            metrics[name][:] = age
        metrics["phase"][:] = 4  # communication: where the others wait
        metrics["phase"][self.worker] = 2
        metrics["state"][self.worker] = ord(self.state)


@dataclass
class SilentNode:
    """Nothing comes from a node from a tick on: no batches, no steps (they need all workers)."""

    node: str
    begin: int

    def __call__(self, draft: Draft) -> None:
        if draft.tick < self.begin:
            return
        draft.steps.clear()
        draft.reporting[self.node] = BEGAN + self.begin
        for kind, entities in draft.entities.items():
            mine = [self.node in entity.replace("GPU-", "").split("/") for entity in entities]
            for values in draft.metrics[kind].values():
                values[np.array(mine, dtype=bool)] = np.nan


def layout_of(nodes: int, workers_per_node: int, job: str = JOB, epoch: int = 1, gpus: bool = False) -> Layout:
    """A layout of `nodes` × `workers_per_node` data-parallel workers."""
    run = job.rsplit("/", 1)[-1]
    places = tuple(
        RankPlacement(
            worker=f"{run}/node-{node}/{slot}",
            node=f"node-{node}",
            rank=node * workers_per_node + slot,
            local_rank=slot,
            gpu=f"GPU-node-{node}/{slot}" if gpus else "",
            dp=node * workers_per_node + slot,
        )
        for node in range(nodes)
        for slot in range(workers_per_node)
    )
    return Layout(
        job=job,
        epoch=epoch,
        time=BEGAN,
        coordinator="node-0",
        launchers={f"node-{node}": f"127.0.0.1:{29500 + node}" for node in range(nodes)},
        placements=places,
        reason="start",
    )


def job_frames(
    nodes: int,
    workers_per_node: int,
    ticks: int,
    rng: np.random.Generator,
    *,
    faults: Sequence[Fault] = (),
    gpus: bool = False,
    job: str = JOB,
    step_s: float = STEP_S,
    layout: Layout | None = None,
) -> Iterator[Frame]:
    """Tick frames of a steady job, one a second, with a working `past`; faults change them."""
    layout = layout or layout_of(nodes, workers_per_node, job, gpus=gpus)
    entities = {Kind.NODE: layout.nodes, Kind.WORKER: layout.workers}
    if gpus:
        entities[Kind.GPU] = tuple(place.gpu for place in layout.placements)
    window = HotWindow()
    seen: dict[Kind, tuple[str, ...]] = {}
    for tick in range(ticks):
        draft = _draft(tick, layout, entities, step_s, rng)
        for fault in faults:
            fault(draft)
        frame = window.add(_frame(draft, seen))
        seen = dict(draft.entities)
        yield frame


def shuffled(frames: Iterator[Frame], at: int, rng: np.random.Generator) -> Iterator[Frame]:
    """The same frames, but from the tick with index `at` on all columns stand in another order, as `moved` says."""
    window = HotWindow()
    orders: dict[Kind, Integers] = {}
    for index, frame in enumerate(frames):
        if index == at:
            orders = {kind: rng.permutation(len(names)) for kind, names in frame.entities.items()}
        if not orders or not frame.tick:
            yield window.add(frame)
            continue
        yield window.add(_reordered(frame, orders, fresh=index == at))


def _reordered(frame: Frame, orders: dict[Kind, Integers], *, fresh: bool) -> Frame:
    moved = {kind: order if fresh else np.arange(len(order)) for kind, order in orders.items()}
    return replace(
        frame,
        entities={kind: tuple(frame.entities[kind][column] for column in order) for kind, order in orders.items()},
        metrics={
            kind: {name: values[order] for name, values in frame.metrics.get(kind, {}).items()}
            for kind, order in orders.items()
        },
        moved=moved,
    )


def _draft(
    tick: int, layout: Layout, entities: dict[Kind, tuple[str, ...]], step_s: float, rng: np.random.Generator
) -> Draft:
    time = BEGAN + tick + 1
    metrics = {Kind.NODE: _normal(NODE_NORMALS, len(entities[Kind.NODE]), rng)}
    if Kind.GPU in entities:
        metrics[Kind.GPU] = _normal(GPU_NORMALS, len(entities[Kind.GPU]), rng)
    metrics[Kind.WORKER] = _workers(tick, len(layout.placements), step_s, rng)
    first, last = int(tick / step_s), int((tick + 1) / step_s)
    return Draft(
        tick=tick,
        time=time,
        layout=layout,
        entities=dict(entities),
        metrics=metrics,
        reporting=dict.fromkeys(layout.nodes, time - 0.1),
        steps=[_step(number, layout, step_s, rng) for number in range(first, last)],
        events=[],
    )


def _normal(normals: dict[str, tuple[float, float]], count: int, rng: np.random.Generator) -> dict[str, Floats]:
    mean, spread = np.array(list(normals.values())).T[:, :, None]
    return dict(zip(normals, np.maximum(mean + spread * rng.standard_normal((len(normals), count)), 0.0).astype(np.float32), strict=True))


def _workers(tick: int, count: int, step_s: float, rng: np.random.Generator) -> dict[str, Floats]:
    steps = int((tick + 1) / step_s)
    varied = {
        "step_age_s": (step_s / 2, step_s / 20),
        "progress_age_s": (step_s / 10, step_s / 100),
        "cpu_percent": (95.0, 1.0),
        "runqueue_percent": (1.0, 0.2),
        "rss_bytes": (2e9, 1e6),
    }
    same = {
        "step": steps,
        "marks": 10 * steps,
        "phase": 3,
        "running": 1,
        "state": ord("R"),
        "throttled_percent": 0.0,
        "cpu_quota": np.nan,
        "step_marks": 10 * steps,
        "activity": np.nan,
        "activity_seen_s": np.nan,
    }
    table = np.repeat(np.array(list(same.values()), dtype=np.float32)[:, None], count, axis=1)
    return _normal(varied, count, rng) | dict(zip(same, table, strict=True))


def _step(number: int, layout: Layout, step_s: float, rng: np.random.Generator) -> StepDraft:
    count = len(layout.placements)
    parts = np.array([[0.05], [0.25], [0.45], [0.05]]) * step_s * (1 + 0.01 * rng.standard_normal((4, count)))
    busy = parts.sum(axis=0)
    communication = busy.max() - busy + 0.15 * step_s
    loss = 2.0 + 8.0 * np.exp(-number / 200.0) + 0.02 * rng.standard_normal()
    values = np.zeros((len(STEP_VALUES), count), dtype=np.float32)
    values[:6] = busy + communication, *parts, communication
    values[9:] = np.array([[loss], [4096.0], [1.0 + 0.05 * rng.standard_normal()]])
    return StepDraft(number=number, epoch=layout.epoch, end=BEGAN + (number + 1) * step_s, values=dict(zip(STEP_VALUES, values, strict=True)))


STEP_VALUES = (
    "step_s", "data_s", "forward_s", "backward_s", "optimizer_s", "communication_s", "evaluation_s", "checkpoint_s", "other_s", "loss", "tokens", "grad_norm",
)  # fmt: skip


def _frame(draft: Draft, seen: dict[Kind, tuple[str, ...]]) -> Frame:
    moved = {}
    for kind, names in draft.entities.items():
        if names == seen.get(kind):
            moved[kind] = np.arange(len(names))
            continue
        before = {name: column for column, name in enumerate(seen.get(kind, ()))}
        moved[kind] = np.array([before.get(name, -1) for name in names], dtype=np.int64)
    steps = tuple(
        Step(number=step.number, epoch=step.epoch, workers=draft.layout.workers, end=step.end, values=step.values)
        for step in draft.steps
    )
    return Frame(
        job=draft.layout.job,
        number=draft.tick + 1,
        generation=1,
        time=draft.time,
        tick=True,
        entities=draft.entities,
        metrics=draft.metrics,
        moved=moved,
        steps=steps,
        events=tuple(draft.events),
        layout=draft.layout,
        topology=Topology(
            nodes=dict.fromkeys(draft.layout.nodes, "switch-0"),
            gpus={place.gpu: place.node for place in draft.layout.placements if place.gpu},
        ),
        reporting=draft.reporting,
        clocks=draft.clocks,
    )
