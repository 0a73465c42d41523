"""What every job of a synthetic cluster shows, whatever happens to it: the same metrics and the same values of steps, in the resolution of real sensors.

A column that only sick jobs had, or a power with a fraction that only a fault leaves, would give the labels away.
"""

from collections.abc import Mapping

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_frames import COMMON_NOISE, PROBE_EVERY_S
from eagle_eye.app.evaluation.drill_corpus.drill_job import BEGAN, DrillJob, StepSignals, TickSignals
from eagle_eye.frames import Frame
from eagle_eye.types import Floats, Integers, Kind

from .recorded_data import RecordedData

DIGESTS = 1 << 24
DIGEST_EVERY = 5
"""Steps."""
SEQUENCE, SCALES = 2048.0, (4096.0, 8192.0, 16384.0, 32768.0, 65536.0)
TEMPERATURE, MEMORY_TEMPERATURE, SPREAD = 62.0, 70.0, 3.0
"""Mean of GPUs in degrees, and how far the usual ones of two lie apart (standard deviation)."""
METER_S = 2.0
FREE_BYTES = 4e13

_ALWAYS: Mapping[Kind, Mapping[str, float]] = {
    Kind.GPU: {"throttle_reasons": 0.0, "throttled_power_percent": 0.0, "remapped_rows_uncorrected": 0.0, "nvlinks_active": 18.0, "nvlinks_down": 0.0, "nvlink_crc_errors_per_s": 0.0, "nvlink_recoveries_per_s": 0.0},
    Kind.LINK: {"recoveries_per_s": 0.0},
}  # fmt: skip
"""Healthy machines show these always, where they are read at all."""
RESOLUTION: Mapping[Kind, Mapping[str, float]] = {
    Kind.GPU: {"utilisation_percent": 1.0, "power_watts": 1.0, "temperature_celsius": 1.0, "memory_temperature_celsius": 1.0, "sm_clock_mhz": 15.0, "memory_percent": 1.0},
    Kind.NODE: {"cpu_percent": 1.0, "memory_percent": 1.0, "load_1": 0.25, "net_sent_bytes_per_s": 65536.0, "power_watts": 1.0, "clock_offset_s": 0.001},
    Kind.WORKER: {"cpu_percent": 1.0, "runqueue_percent": 0.25, "rss_bytes": 1048576.0, "throttled_percent": 1.0},
    Kind.MOUNT: {"stat_s": 0.0005, "read_s": 0.0005, "free_bytes": 4096.0},
}  # fmt: skip
"""In which each metric is told."""


def make_healthy(job: DrillJob, recorded: RecordedData, seed: int) -> None:
    """Put it under what happens to the job. It draws from numbers of its own, so that a scenario is the same on any data."""
    steps, own = HealthySteps(recorded, np.random.default_rng((seed, 1))), job.effect.script
    machines = HealthyMachines(job, recorded, np.random.default_rng((seed, 2)))

    def script(step: StepSignals) -> None:
        without = job.effect.without if len(step.loss) < len(job.layout.placements) else ()
        steps.change(step, np.array([place.pp for place in job.layout.placements if place.node not in without]))
        own(step)

    job.effect.script, job.effect.machines = script, machines.change


class HealthySteps:
    """Values of steps."""

    def __init__(self, recorded: RecordedData, rng: np.random.Generator) -> None:
        self._noise, self._rng = recorded.noise, rng
        self._scale = float(rng.choice(SCALES))

    def change(self, step: StepSignals, stages: Integers) -> None:
        """Workers of one stage hold the same parameters, and have batches of their own."""
        count = len(step.loss)
        if self._noise is not None:
            step.compute_s[:] = np.exp(self._rng.choice(self._noise, count) + self._rng.normal(0.0, COMMON_NOISE))
        same = self._rng.integers(1, DIGESTS, int(stages.max()) + 1).astype(np.float32)
        digests = same[stages] if step.number % DIGEST_EVERY == 0 else np.full(count, np.nan, np.float32)
        fixed = {"garbage_collection_s": 0.0, "evaluation_s": 0.0, "sequence_length": SEQUENCE, "loss_scale": self._scale}
        step.logged |= {name: np.full(count, value, np.float32) for name, value in fixed.items()}
        step.logged |= {"batch_digest": self._rng.integers(1, DIGESTS, count).astype(np.float32), "replica_digest": digests}


class HealthyMachines:
    """Readings of machines: their own usual temperatures and powers, and metrics that nothing happens to."""

    def __init__(self, job: DrillJob, recorded: RecordedData, rng: np.random.Generator) -> None:
        self._rng = rng
        gpus, nodes = len(job.layout.placements), job.layout.nodes
        self._warmer = _drawn(recorded.temperature, TEMPERATURE, gpus, rng) - np.float32(TEMPERATURE)
        self._memory = _drawn(recorded.memory_temperature, MEMORY_TEMPERATURE, gpus, rng)
        self._rows = (rng.random(gpus) < 0.02).astype(np.float32)  # remapped long ago
        self._node_of_gpu: Integers = np.array([nodes.index(place.node) for place in job.layout.placements], np.int64)
        self._power = recorded.power
        if self._power is not None:
            self._meters = rng.integers(0, len(self._power), len(nodes))
            self._begin = int(rng.integers(0, self._power.shape[1]))

    def change(self, signals: TickSignals) -> None:
        """One tick."""
        gpus, nodes = signals.metrics[Kind.GPU], signals.metrics[Kind.NODE]
        for kind, values in _ALWAYS.items():
            for name, value in values.items():
                signals.metrics[kind][name] = _where_read(signals, kind, value)
        gpus["temperature_celsius"] += self._warmer
        gpus["memory_temperature_celsius"] = self._memory + self._rng.normal(0.0, 0.7, len(self._memory)).astype(np.float32)
        gpus["remapped_rows_uncorrected"] += self._rows
        nodes["clock_offset_s"] = self._rng.normal(0.0, 0.002, len(signals.entities[Kind.NODE])).astype(np.float32)
        probed = round(signals.time - BEGAN) % PROBE_EVERY_S == 0
        signals.metrics[Kind.MOUNT]["free_bytes"] = np.full(len(signals.entities[Kind.MOUNT]), FREE_BYTES if probed else np.nan, np.float32)
        if self._power is not None:
            now = self._power[self._meters, (self._begin + int((signals.time - BEGAN) / METER_S)) % self._power.shape[1]]
            nodes["power_watts"] *= now
            gpus["power_watts"] *= now[self._node_of_gpu]


def as_sensors_tell(frame: Frame) -> None:
    """Round the readings of a frame, in place: the window that detectors look back through holds the same arrays."""
    for kind, resolutions in RESOLUTION.items():
        for name, resolution in resolutions.items():
            if (values := frame.metrics.get(kind, {}).get(name)) is not None:
                np.multiply(np.round(values / np.float32(resolution)), np.float32(resolution), out=values)
    for step in frame.steps:
        np.round(step.values["tokens"], out=step.values["tokens"])


def _drawn(points: Floats | None, mean: float, count: int, rng: np.random.Generator) -> Floats:
    return (rng.normal(mean, SPREAD, count) if points is None else rng.choice(points, count)).astype(np.float32)


def _where_read(signals: TickSignals, kind: Kind, value: float) -> Floats:
    """As often as what is read of it already."""
    first = next(iter(signals.metrics[kind].values()))
    return np.where(np.isfinite(first), np.float32(value), np.float32(np.nan)).astype(np.float32)
