"""Metrics of each job: goodput, steps, tokens, step time.

Goodput is the share of time in which steps were done *for the first time*. A step counts with its own duration, never
with more than has passed since the step before; what is done again after a roll-back counts nothing.
"""

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from eagle_eye.types import Event
from eagle_eye.types.job_snapshot import JobSnapshot, SnapshotStep

JOBS_KEPT = 500
"""The job that was silent for longest is forgotten beyond so many."""
FORGET_S = 900.0
"""A job that was silent or over for so long, in the time of the stream, is no longer shown."""
WINDOW_S = 3600.0
SAMPLE_S = 10.0
STEPS_KEPT = 32
ENDINGS = ("job.finished", "job.failed")


@dataclass(slots=True)
class _Job:
    """What was seen of one job; times are of the stream."""

    began: float = math.nan
    """Of the first step or epoch; NaN: nothing runs yet."""
    seen: float = 0.0
    over: bool = False
    elapsed: float = 0.0
    productive: float = 0.0
    highest: int = -1
    committed: float = math.nan
    """When the newest step ended."""
    steps: int = 0
    repeated: int = 0
    tokens: float = 0.0
    workers: int = 0
    epoch: int = 0
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))
    samples: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=int(WINDOW_S / SAMPLE_S)))
    """(elapsed, productive) every so often."""

    def observe_event(self, event: Event) -> None:
        if event.name in ENDINGS:
            self.over = True
        elif event.name == "epoch.started":
            self.over = False
            self._begin(event.time)

    def tick(self, time: float) -> None:
        """Time goes on, as long as the job is to run."""
        if math.isfinite(self.began) and not self.over:
            self.elapsed += max(0.0, time - max(self.seen, self.began))
            if not self.samples or self.elapsed - self.samples[-1][0] >= SAMPLE_S:
                self.samples.append((self.elapsed, self.productive))
        self.seen = max(self.seen, time)

    def take(self, step: SnapshotStep) -> None:
        duration = self._duration(step)
        self._begin(step.end - duration)
        if math.isfinite(self.committed):
            duration = min(duration, max(0.0, step.end - self.committed))
        self.committed = step.end if math.isnan(self.committed) else max(self.committed, step.end)
        self.durations.append(duration)
        self.workers, self.epoch = step.workers, max(self.epoch, step.epoch)
        if step.number <= self.highest:
            self.repeated += 1
            return
        self.highest = step.number
        self.steps += 1
        self.productive += duration
        self.tokens += step.tokens or 0.0

    @property
    def goodput(self) -> float:
        """Over the last hour; NaN before there is a value."""
        elapsed, productive = self.samples[0] if len(self.samples) == self.samples.maxlen else (0.0, 0.0)
        if self.elapsed <= elapsed:
            return math.nan
        return min(1.0, (self.productive - productive) / (self.elapsed - elapsed))

    def _begin(self, time: float) -> None:
        if math.isnan(self.began):
            self.began = time

    def _duration(self, step: SnapshotStep) -> float:
        """Of the slowest worker; else since the step before."""
        if step.step_s is not None:
            return max(0.0, step.step_s)
        return max(0.0, step.end - self.committed) if math.isfinite(self.committed) else 0.0


class JobMetrics:
    """Of all jobs with a layout or a step; nodes without a job are none."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, _Job] = OrderedDict()
        self._now = 0.0

    def observe_job(self, snapshot: JobSnapshot) -> None:
        """Take one mark of one job in."""
        job = self._jobs.get(snapshot.job)
        if job is None:
            if snapshot.layout is None and not snapshot.steps:
                return
            job = self._jobs[snapshot.job] = _Job()
            self._bound()
        self._now = max(self._now, snapshot.time)
        for step in snapshot.steps:
            job.take(step)
        for event in snapshot.events:
            job.observe_event(event)
        if snapshot.tick:
            job.tick(snapshot.time)
        self._jobs.move_to_end(snapshot.job)

    def collect(self) -> Iterator[Metric]:
        """One sample a job and family."""
        self._forget()
        for family, title, text, value in _FAMILIES:
            metric = family(title, text, labels=["job"])
            for name, job in self._jobs.items():
                number = value(job)
                if math.isfinite(number):
                    metric.add_metric([name], number)
            yield metric

    def _bound(self) -> None:
        while len(self._jobs) > JOBS_KEPT:
            self._jobs.popitem(last=False)

    def _forget(self) -> None:
        for name, job in list(self._jobs.items()):
            last = job.committed if job.over and math.isfinite(job.committed) else job.seen
            if last and self._now - last > FORGET_S:
                del self._jobs[name]


def _step_seconds(job: _Job) -> float:
    return median(job.durations) if job.durations else math.nan


_FAMILIES: tuple[tuple[type, str, str, Callable[[_Job], float]], ...] = (
    (GaugeMetricFamily, "eagle_eye_job_goodput_ratio", "Share of the last hour in which the job did steps for the first time.", lambda job: job.goodput),
    (CounterMetricFamily, "eagle_eye_job_elapsed_seconds", "Time in which the job was to run.", lambda job: job.elapsed),
    (CounterMetricFamily, "eagle_eye_job_productive_seconds", "Time in which the job did steps for the first time.", lambda job: job.productive),
    (CounterMetricFamily, "eagle_eye_job_steps", "Steps that all workers completed, each once.", lambda job: job.steps),
    (CounterMetricFamily, "eagle_eye_job_repeated_steps", "Steps that were done again after a roll-back.", lambda job: job.repeated),
    (CounterMetricFamily, "eagle_eye_job_tokens", "Tokens of those steps, as the training script logs them; each step once.", lambda job: job.tokens),
    (GaugeMetricFamily, "eagle_eye_job_step_seconds", "Median duration of the last 32 steps, of the slowest worker.", _step_seconds),
    (GaugeMetricFamily, "eagle_eye_job_last_step_timestamp_seconds", "When the newest step was completed.", lambda job: job.committed),
    (GaugeMetricFamily, "eagle_eye_job_workers", "Workers of the newest step.", lambda job: job.workers),
    (GaugeMetricFamily, "eagle_eye_job_epoch", "Epoch of the newest step: rises with each restart or change of the layout.", lambda job: job.epoch),
    (GaugeMetricFamily, "eagle_eye_job_ended", "1 once the job has finished or failed.", lambda job: float(job.over)),
)
