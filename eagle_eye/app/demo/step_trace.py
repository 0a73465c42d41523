"""The committed steps, layouts and events of one job, as its stream recorded them; read by the verdicts and the live view."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eagle_eye.types import Batch, Event, Layout, Record, StepReading

Done = dict[str, dict[str, float]]
"""Worker → its metrics for one step; `end` is the time at which it completed the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    """A step that every worker of its epoch has completed."""

    number: int
    epoch: int
    end: float
    loss: float
    """Mean over the global batch: each worker's loss weighted by its tokens."""
    tokens: float
    """Of the global batch."""
    seconds: float
    """Duration of the slowest worker."""
    workers: int


@dataclass(slots=True)
class StepTrace:
    """Layouts, events and committed steps of one job, in the order of the stream."""

    job: str
    layouts: list[Layout] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    steps: list[CommittedStep] = field(default_factory=list)
    """In the order of their ends; a number comes again when it was done again."""
    _open: dict[tuple[int, int], Done] = field(default_factory=lambda: defaultdict(dict))

    def feed(self, records: Iterable[Record]) -> None:
        """Add records of the stream, in their order."""
        for record in records:
            if isinstance(record, Batch) and record.job == self.job:
                for block in record.blocks:
                    if isinstance(block.reading, StepReading):
                        self._steps(block.reading)
            elif isinstance(record, Layout) and record.job == self.job:
                if not self.layouts or record.epoch > self.layouts[-1].epoch:
                    self.layouts.append(record)
            elif isinstance(record, Event) and record.job == self.job:
                self.events.append(record)

    @property
    def layout(self) -> Layout | None:
        """The newest valid one."""
        return self.layouts[-1] if self.layouts else None

    def highest(self, until: float = math.inf) -> int:
        """The highest step committed by then, -1 before the first."""
        return max((step.number for step in self.steps if step.end <= until), default=-1)

    def after(self, time: float, *, epoch: int = 0) -> list[CommittedStep]:
        """Steps committed after a moment, in `epoch` or a later one."""
        return [step for step in self.steps if step.end > time and step.epoch >= epoch]

    def throughput_per_worker(self, steps: Iterable[CommittedStep]) -> float:
        """Median tokens per second and worker; NaN without a step."""
        rates = [step.tokens / step.seconds / step.workers for step in steps if step.seconds > 0]
        return statistics.median(rates) if rates else math.nan

    def steady_throughput(self, steps: Sequence[CommittedStep], count: int) -> float:
        """The best that `count` steps in succession kept up: what else the machine did meanwhile does not count against the job."""
        windows = [steps[start : start + count] for start in range(max(1, len(steps) - count + 1))]
        return max((rate for rate in map(self.throughput_per_worker, windows) if not math.isnan(rate)), default=math.nan)

    def losses(self) -> dict[int, float]:
        """Step → its loss when it was last done."""
        return {step.number: step.loss for step in self.steps}

    def _steps(self, reading: StepReading) -> None:
        for row, (number, epoch) in enumerate(zip(reading.numbers.tolist(), reading.epochs.tolist(), strict=True)):
            done = self._open[epoch, number]
            for column, worker in enumerate(reading.workers):
                end = float(reading.ends[row, column])
                if not math.isnan(end):
                    done[worker] = dict(zip(reading.names, reading.values[row, column].tolist(), strict=True)) | {"end": end}
            self._commit(epoch, number, done)

    def _commit(self, epoch: int, number: int, done: Done) -> None:
        layout = next((layout for layout in self.layouts if layout.epoch == epoch), None)
        if layout is None or not set(layout.workers) <= set(done):
            return
        mine = [done[worker] for worker in layout.workers]
        tokens = sum(numbers.get("tokens", math.nan) for numbers in mine)
        self.steps.append(
            CommittedStep(
                number=number,
                epoch=epoch,
                end=max(numbers["end"] for numbers in mine),
                loss=sum(numbers.get("loss", math.nan) * numbers.get("tokens", math.nan) for numbers in mine) / tokens,
                tokens=tokens,
                seconds=max(numbers.get("step_s", math.nan) for numbers in mine),
                workers=len(mine),
            )
        )
        del self._open[epoch, number]
