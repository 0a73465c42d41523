"""The frames of one job of a drill, second by second: what its agents and workers would send, and what happens to it. Nothing is kept but the second that is made."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec
import numpy as np

from detectors.features.worker_positions import ACTIVITIES
from detectors.runtime.hot_window import HotWindow
from eagle_eye.frames import Frame
from eagle_eye.topology import with_layout
from eagle_eye.training.messages import PHASES
from eagle_eye.types import Doubles, Event, Floats, Kind, Layout, Step, Topology

from .drill_job import BEGAN, DrillJob, Standstill, StepSignals, TickSignals

NOISE, COMMON_NOISE = 0.02, 0.01
"""Of a worker's compute time, and of all in a step."""
TOKENS = 4096.0
STARTS_S = 1.5
"""From the beginning of an epoch to its first step."""
MARKS_PER_STEP, MARKS_WAITING = 10, 5
CUT_S = 0.05
"""Events that arrive so close together share a cut frame."""
LINK_EVERY_S, PROBE_EVERY_S = 5, 10
PORTS = ("mlx5_0:1", "mlx5_1:1")
MOUNT = "mnt/data"
LINK_RATE = 400e9 / 8
IDLE_POWER = 0.4
"""Share of its power that a GPU takes while its job stands."""

_NODES = {"cpu_percent": (10.0, 1.0), "processors": (96.0, 0.0), "memory_percent": (50.0, 0.5), "load_1": (10.0, 0.4), "net_sent_bytes_per_s": (5e7, 1e6), "power_watts": (6000.0, 60.0)}
_GPUS = {
    "utilisation_percent": (95.0, 1.0), "power_watts": (600.0, 8.0), "temperature_celsius": (62.0, 0.7), "sm_clock_mhz": (1900.0, 10.0), "memory_percent": (75.0, 0.1),
    "ecc_uncorrected_per_s": (0.0, 0.0), "ecc_corrected_per_s": (0.0, 0.0), "remap_pending": (0.0, 0.0), "pcie_width": (16.0, 0.0), "throttled_thermal_percent": (0.0, 0.0),
}  # fmt: skip
_WORKERS = {"cpu_percent": (95.0, 1.0), "runqueue_percent": (1.0, 0.2), "rss_bytes": (2e9, 1e6)}
"""name → (mean, standard deviation) of a healthy machine."""


@dataclass
class JobFrames:
    """Iterates over tick and cut frames, in the order of their times."""

    job: DrillJob
    until: float
    _window: HotWindow = field(init=False)
    _entities: dict[Kind, tuple[str, ...]] = field(init=False)
    _layout: Layout = field(init=False)
    _topology: Topology = field(init=False)
    _number: int = field(default=0, init=False)
    """Of the newest mark."""
    _step: StepSignals | None = field(default=None, init=False)
    _next: int = field(default=0, init=False)
    _begin: float = field(default=BEGAN, init=False)
    _done: float = field(default=BEGAN, init=False)
    """End of the newest step."""
    _begun: bool = field(default=False, init=False)
    """A tick was made."""

    def __post_init__(self) -> None:
        layout = self.job.layout
        nodes = layout.nodes
        self._window = HotWindow(60.0)
        self._entities = {
            Kind.NODE: nodes, Kind.WORKER: layout.workers, Kind.GPU: tuple(place.gpu for place in layout.placements),
            Kind.LINK: tuple(f"{node}/{port}" for node in nodes for port in PORTS), Kind.MOUNT: tuple(f"{node}/{MOUNT}" for node in nodes),
        }  # fmt: skip
        self._take(layout)

    def __iter__(self) -> Iterator[Frame]:
        waiting = sorted(self.job.effect.told, key=lambda arrival: (arrival[0], arrival[1].id))
        for second in range(1, round(self.until - BEGAN) + 1):
            time = BEGAN + second
            arrived = [each for each in waiting if each[0] <= time]
            waiting = waiting[len(arrived) :]
            for at, events in _together(arrived):
                self._renew(at)
                yield self._frame(at, events=tuple(map(self._counted, events)))
            self._renew(time)
            yield self._tick(time)

    def _counted(self, event: Event) -> Event:
        """A `stall` event with the step and the marks that its worker has come to; it was told with the marks of this step alone."""
        if event.name != "stall":
            return event
        marks = str(MARKS_PER_STEP * self._next + int(event.attributes["marks"]))
        return msgspec.structs.replace(event, attributes={**event.attributes, "step": str(self._next), "marks": marks, "step_marks": marks})

    def _take(self, layout: Layout) -> None:
        self._layout, self._topology = layout, with_layout(Topology(), layout)

    def _renew(self, time: float) -> None:
        """The next epoch begins."""
        effect = self.job.effect
        if effect.restart is None or time < effect.restart or self._layout.epoch > 1:
            return
        places = [place for place in self._layout.placements if place.node not in effect.without]
        renumbered = tuple(msgspec.structs.replace(place, rank=rank) for rank, place in enumerate(places))
        self._take(msgspec.structs.replace(self._layout, epoch=2, time=effect.restart, placements=renumbered, reason="death"))
        self._step, self._begin = None, effect.restart + STARTS_S

    def _frame(self, time: float, *, events: tuple[Event, ...] = ()) -> Frame:
        self._number += 1
        return Frame(job=self.job.name, number=self._number, generation=1, time=time, tick=False, events=events, layout=self._layout, topology=self._topology)

    def _tick(self, time: float) -> Frame:
        steps = tuple(self._steps(time))
        signals = self._signals(time)
        self.job.effect.machines(signals)
        if time >= self.job.onset:
            self.job.effect.tick(signals)
        first, self._begun = not self._begun, True
        self._number += 1
        moved = {kind: np.full(len(names), -1) if first else np.arange(len(names)) for kind, names in signals.entities.items()}
        frame = Frame(
            job=self.job.name, number=self._number, generation=1, time=time, tick=True, entities=signals.entities, metrics=signals.metrics, moved=moved,
            steps=steps, layout=self._layout, topology=self._topology, reporting=signals.reporting,
            clocks=signals.clocks,
        )  # fmt: skip
        return self._window.add(frame)

    # --- steps -----------------------------------------------------------------------------------------------------

    def _steps(self, time: float) -> Iterator[Step]:
        """Those that are completed by then."""
        while self._begin <= time:
            step = self._step = self._step or self._drawn()
            end = self._end(step)
            if end > time:
                return
            yield self._made(step, end)
            self._next, self._begin, self._done, self._step = self._next + 1, end, end, None

    def _drawn(self) -> StepSignals:
        rng, workers = self.job.rng, len(self._layout.placements)
        compute = np.exp(rng.normal(0.0, NOISE, workers) + rng.normal(0.0, COMMON_NOISE))
        loss = 2.0 + 4.0 * np.exp(-self._next / 300.0) + rng.normal(0.0, 0.01, workers)
        step = StepSignals(
            number=self._next, begin=self._begin, compute_s=compute, data_s=0.03 * np.exp(rng.normal(0.0, 0.1, workers)), tokens=np.full(workers, TOKENS), loss=loss,
            grad_norm=np.full(workers, 1.0 + rng.normal(0.0, 0.05)),
        )  # fmt: skip
        self.job.effect.script(step)
        if self._begin >= self.job.onset and self._layout.epoch == 1:
            self.job.effect.step(step)
        return step

    def _end(self, step: StepSignals) -> float:
        end = self._begin + float((step.compute_s + step.data_s).max()) + step.wait_s
        still = self.job.effect.still
        if still is not None and self._layout.epoch == 1 and self._begin < still.end and end > still.begin:
            end = still.end + max(0.0, end - still.begin)
        return end

    def _made(self, step: StepSignals, end: float) -> Step:
        longest = float((step.compute_s + step.data_s).max()) + step.wait_s
        if "evaluation_s" in step.logged:
            longest += float(step.logged["evaluation_s"].max())
        values: dict[str, Doubles] = {
            "step_s": np.full(len(step.compute_s), longest), "data_s": step.data_s, "forward_s": step.compute_s / 3.0, "backward_s": step.compute_s / 1.5,
            "communication_s": longest - step.compute_s - step.data_s, "tokens": step.tokens, "loss": step.loss, "grad_norm": step.grad_norm,
        }  # fmt: skip
        with np.errstate(over="ignore"):
            told: dict[str, Floats] = {name: np.asarray(each, np.float32) for name, each in values.items() if name not in step.without}
        return Step(number=step.number, epoch=self._layout.epoch, workers=self._layout.workers, end=end, values=told | step.logged)

    # --- metrics ---------------------------------------------------------------------------------------------------

    def _signals(self, time: float) -> TickSignals:
        rng, second = self.job.rng, round(time - BEGAN)
        metrics = {kind: _normal(normals, len(self._entities[kind]), rng) for kind, normals in ((Kind.NODE, _NODES), (Kind.GPU, _GPUS))}
        metrics[Kind.WORKER] = self._workers(time)
        metrics[Kind.LINK] = _read({"port_active": 1.0, "link_rate_bytes_per_s": LINK_RATE, "symbol_errors_per_s": 0.0, "receive_errors_per_s": 0.0, "discards_per_s": 0.0}, len(self._entities[Kind.LINK]), second % LINK_EVERY_S == 0)
        metrics[Kind.MOUNT] = _read({"hung": 0.0, "read_only": 0.0}, len(self._entities[Kind.MOUNT]), second % LINK_EVERY_S == 0)
        metrics[Kind.MOUNT] |= _read({"stat_s": 0.001, "read_s": 0.002}, len(self._entities[Kind.MOUNT]), second % PROBE_EVERY_S == 0)
        if time - self._done > 3.0:
            metrics[Kind.GPU]["power_watts"] *= np.float32(IDLE_POWER)
            metrics[Kind.NODE]["power_watts"] *= np.float32(IDLE_POWER)
        late = rng.uniform(0.05, 0.4, len(self._entities[Kind.NODE]))
        reporting = dict(zip(self._entities[Kind.NODE], (time - late).tolist(), strict=True))
        return TickSignals(time=time, entities=dict(self._entities), metrics=metrics, reporting=reporting)

    def _workers(self, time: float) -> dict[str, Floats]:
        """Where each worker is: in its step, or where it stands."""
        count = len(self._entities[Kind.WORKER])
        marks = float(MARKS_PER_STEP * self._next)
        still = self.job.effect.still if self._layout.epoch == 1 else None
        stands = still is not None and still.begin <= time < still.end
        age = max(0.1, time - (still.begin if stands and still is not None else max(self._done, self._begin)))
        same = {
            "step": self._next, "marks": marks, "step_marks": marks, "phase": 3.0, "running": 1.0, "state": float(ord("R")), "throttled_percent": 0.0, "cpu_quota": np.nan,
            "activity": np.nan, "activity_seen_s": np.nan, "step_age_s": age, "progress_age_s": age if stands else min(age, 0.3),
        }  # fmt: skip
        rows = _normal(_WORKERS, count, self.job.rng) | {name: np.full(count, value, np.float32) for name, value in same.items()}
        if stands and still is not None:
            _stand(rows, still, age)
        return rows


def _stand(rows: dict[str, Floats], still: Standstill, age: float) -> None:
    who = list(still.who)
    everybody = {"phase": float(PHASES.index(still.others_phase)), "state": float(ord("S"))}
    if still.others:
        everybody |= {"activity": _activity(still.others), "activity_seen_s": min(age, 0.6)}
    for name, value in everybody.items():
        rows[name][:] = value
    for name in ("marks", "step_marks"):
        rows[name] += MARKS_WAITING
        rows[name][who] -= 1.0
    rows["phase"][who] = float(PHASES.index(still.phase))
    rows["state"][who] = float(ord(still.state))
    rows["activity"][who] = _activity(still.activity) if still.activity else np.nan


def _activity(name: str) -> float:
    return float(next(at for at, kind in enumerate(ACTIVITIES) if kind.value == name))


def _normal(normals: Mapping[str, tuple[float, float]], count: int, rng: np.random.Generator) -> dict[str, Floats]:
    return {name: np.maximum(mean + spread * rng.standard_normal(count, dtype=np.float32), 0.0) if spread else np.full(count, mean, np.float32) for name, (mean, spread) in normals.items()}


def _read(values: Mapping[str, float], count: int, now: bool) -> dict[str, Floats]:
    """What is read from time to time; NaN in between."""
    return {name: np.full(count, value if now else np.nan, np.float32) for name, value in values.items()}


def _together(arrived: list[tuple[float, Event]]) -> Iterator[tuple[float, tuple[Event, ...]]]:
    """Events by cut frame, with its time."""
    if not arrived:
        return
    ends = [at for at, (one, other) in enumerate(pairwise(arrived), 1) if other[0] - one[0] > CUT_S]
    for begin, end in pairwise((0, *ends, len(arrived))):
        yield arrived[end - 1][0], tuple(event for _, event in arrived[begin:end])


