"""What the engine knows of a job: its layout, its steps, its throughput, its checkpoints and its own budget."""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from statistics import median
from typing import Any, NamedTuple

from eagle_eye.event_attributes import float_attribute, integer_attribute, integer_of
from eagle_eye.ledger import Throughput, TransitionCost
from eagle_eye.types import Demand, Event, Incident, JobSnapshot, Layout, SnapshotStep, Telemetry, digest_of

KEPT_STEPS = 512
BAD_EARLY_S = 5.0
"""A bad step that ended so long before the fault began belongs to an earlier one."""
KEPT_RATES = 200
KEPT_CHECKPOINTS = KEPT_COUNTS = 1024
KEPT_LAYOUTS = 4096
KEPT_WORKERS = 200_000
LONGEST_DELAY_S = 3600.0
"""A job that claims to back off for longer is looked at again after so long."""
WARM_STEPS = 2
"""First intervals of an epoch: caches fill, nothing is learned from them."""


REGROUPING = ("notice_s", "plan_s", "group_s", "state_s")
"""Attributes of the event transition.done: the parts of a transition."""


class StartedEpoch(NamedTuple):
    """An epoch that the coordinator has begun."""

    epoch: int
    reason: str
    cause: str
    """Id of the event that made it do so; '' if none."""
    plan: str
    time: float
    excluded: tuple[str, ...]
    in_place: bool = False
    """Its workers lived on, and regrouped."""
    skipped: tuple[int, ...] = ()
    """Steps whose batches are drawn and skipped."""


@dataclass(slots=True)
class TelemetryFreshness:
    """Of one job. A node whose batches are old and whose newest one stays the same is silent; one whose batches are old
    (or from the future) and go on sends, with a clock that is off."""

    stream_time: float = 0.0
    """Time of the newest tick."""
    _odd: Mapping[str, Telemetry] = field(default_factory=dict)
    """Nodes whose telemetry is not fresh."""

    def update(self, snapshot: JobSnapshot) -> None:
        """Take a tick in."""
        self._odd = {node: self._told(node, snapshot.time - age, snapshot.time) for node, age in snapshot.late.items()}
        self.stream_time = snapshot.time

    def of(self, nodes: Iterable[str]) -> dict[str, Telemetry]:
        """What is known of each of these."""
        return {node: self._odd.get(node) or Telemetry(node=node, heard=self.stream_time) for node in nodes}

    def _told(self, node: str, newest: float, now: float) -> Telemetry:
        """`newest`: time of its newest batch, by its own clock."""
        before = self._odd.get(node) or Telemetry(node=node, heard=self.stream_time)
        if newest <= 0.0:
            return Telemetry(node=node)
        if not before.heard:
            return Telemetry(node=node, heard=min(newest, now))
        if newest > before.heard + before.skew_s:
            return Telemetry(node=node, heard=now, skew_s=newest - now)
        return before


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job as the stream tells of it."""

    name: str
    layout: Layout | None = None
    epoch: int = -1
    """The highest that was reported; the layout may come a moment later."""
    stream_time: float = 0.0
    """Time of the newest tick. The engine's patience runs on it: while the stream is away no time passes."""
    telemetry_until: float = 0.0
    """Every node of the layout has sent a batch at this time or later."""
    telemetry: TelemetryFreshness = field(default_factory=TelemetryFreshness)
    steps: deque[SnapshotStep] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    rates: dict[int, deque[tuple[float, float]]] = field(default_factory=dict)
    """Number of workers → (time, tokens or steps per second) of undisturbed steps."""
    unhealthy_epochs: deque[int] = field(default_factory=lambda: deque(maxlen=32))
    """Epochs whose throughput is no healthy one."""
    checkpoints: dict[int, bool] = field(default_factory=dict)
    """Step → whether all of its numbers are finite."""
    started_epochs: deque[StartedEpoch] = field(default_factory=lambda: deque(maxlen=32))
    sizes: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=KEPT_LAYOUTS))
    """(time, number of workers) of each layout."""
    resumed: dict[str, float] = field(default_factory=dict)
    """Worker → when it last moved again after a stall."""
    downtimes: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    """Measured seconds from an incident to the first step after a restart."""
    heal: str = ""
    """What the job may do to itself, in its own words; '' as long as we do not know."""
    budget_left: int | None = None
    """Restarts that the job may still spend on itself; None: not reported yet."""
    nodes_min: int = 1
    demand: Demand | None = None
    """What it asks for and has, if it is elastic; None: its size does not change."""
    regroup_times: deque[float] = field(default_factory=lambda: deque(maxlen=32))
    """Measured seconds from the notice of a change to the new group with its state."""
    join_times: deque[float] = field(default_factory=lambda: deque(maxlen=16))
    """Measured seconds until workers more had joined."""
    spent_epoch: int = -1
    """Epoch in which its workers were ended, for it may not heal itself any more: it waits for a command; -1: it does not."""
    restart_due: float = 0.0
    """Time of the stream until which the job backs off before it starts its workers again; 0: it does not."""
    over: bool = False

    def update(self, snapshot: JobSnapshot, *, calm: bool) -> list[Event]:
        """Take a snapshot in; returns the events that the engine has to answer. `calm`: no fault is open."""
        news = [event for event in snapshot.events if self._take_event(event)]
        if snapshot.layout is not None:
            self._take_layout(snapshot.layout, snapshot.time)
        if snapshot.tick:
            self.stream_time, self.telemetry_until = snapshot.time, snapshot.heard
            self.telemetry.update(snapshot)
            for step in snapshot.steps:
                self._take_step(step, calm)
        return news

    def _take_event(self, event: Event) -> bool:
        attributes = event.attributes
        if event.name == "epoch.started":
            if not self._begin(event):
                return False
        elif event.name == "restart.delayed":
            self.restart_due = self.stream_time + min(LONGEST_DELAY_S, max(0.0, float_attribute(event, "seconds")))
        elif event.name == "budget.exhausted":
            self.budget_left, self.restart_due = 0, 0.0
            self.spent_epoch = max(self.epoch, integer_attribute(event, "epoch"))
        elif event.name == "checkpoint.saved":
            self._saved(integer_attribute(event, "step"), attributes.get("finite", "1").lower() in ("1", "true"))
        elif event.name == "transition.done":
            self._regrouped(event)
        elif event.name == "resumed":
            self.resumed[event.entity.name] = event.time
            _drop_oldest(self.resumed, KEPT_WORKERS)
        elif event.name in ("job.finished", "job.failed"):
            self.over = True
        return event.name in ("epoch.started", "budget.exhausted", "job.finished", "job.failed")

    def _saved(self, step: int, finite: bool) -> None:
        """A checkpoint; -1: nobody knows of which step."""
        if step < 0:
            return
        self.checkpoints[step] = finite
        _drop_oldest(self.checkpoints, KEPT_CHECKPOINTS)

    def _begin(self, event: Event) -> bool:
        """False for one that does not say which epoch began: nothing follows from it."""
        attributes, epoch = event.attributes, integer_attribute(event, "epoch")
        if epoch < 0:
            return False
        excluded = tuple(node for node in attributes.get("excluded", "").split(",") if node)
        begun = StartedEpoch(
            epoch=epoch,
            reason=attributes.get("reason", ""),
            cause=attributes.get("cause", ""),
            plan=attributes.get("plan", ""),
            time=event.time,
            excluded=excluded,
            in_place=attributes.get("in_place", "").lower() in ("1", "true"),
            skipped=tuple(step for step in map(integer_of, attributes.get("skipped", "").split(",")) if step >= 0),
        )
        self.started_epochs.append(begun)
        self.epoch = max(self.epoch, begun.epoch)
        self.over, self.restart_due, self.spent_epoch = False, 0.0, -1
        left = integer_attribute(event, "budget_left")
        if left >= 0:
            self.budget_left = left
        return True

    def _regrouped(self, event: Event) -> None:
        """Recomputation is no part of it: it is work, and its micro-batches count."""
        try:
            seconds = sum(float(event.attributes.get(name) or 0.0) for name in REGROUPING)
        except ValueError:  # of a newer version
            return
        if event.attributes.get("reason") != "start" and 0.0 <= seconds <= LONGEST_DELAY_S:
            self.regroup_times.append(seconds)

    def _take_layout(self, layout: Layout, now: float) -> None:
        if layout.epoch < self.epoch or layout == self.layout:
            return
        goes_on = self.layout is not None and self.layout.epoch == layout.epoch  # only its parallel ranks have become known
        self.layout, self.epoch = layout, layout.epoch
        if goes_on:
            return
        began = max(min(layout.time, now), self.sizes[-1][0] if self.sizes else 0.0)  # its node's clock may be off
        self.sizes.append((began, len(layout.placements)))
        if layout.resume_step >= 0:
            self.checkpoints = {step: finite for step, finite in self.checkpoints.items() if step <= layout.resume_step}

    def _take_step(self, step: SnapshotStep, calm: bool) -> None:
        self.steps.append(step)
        healthy = calm and step.finite and step.epoch not in self.unhealthy_epochs
        throughput = self.throughput(2, epoch=step.epoch) if healthy and self._warm(step.epoch) else math.nan
        if math.isfinite(throughput) and throughput > 0.0 and step.workers > 0:  # a script may log no tokens, too
            self.rates.setdefault(step.workers, deque(maxlen=KEPT_RATES)).append((step.end, throughput))
            _drop_oldest(self.rates, KEPT_COUNTS)

    def _warm(self, epoch: int) -> bool:
        return len(self._newest(WARM_STEPS + 2, epoch)) > WARM_STEPS + 1

    # --- throughput ----------------------------------------------------------------------------------------------

    def throughput(self, last: int, *, epoch: int, after: float = 0.0) -> float:
        """Tokens per second (steps per second where tokens are not reported) over the `last` steps of an epoch that
        ended after `after`; NaN with fewer than two."""
        steps = self._newest(last, epoch, after)
        if len(steps) < 2 or steps[-1].end <= steps[0].end:
            return math.nan
        done = [self._work(step) for step in steps[1:]]
        return sum(done) / (steps[-1].end - steps[0].end)

    def _newest(self, count: int, epoch: int, after: float = -math.inf) -> list[SnapshotStep]:
        """The newest steps of an epoch that ended after `after`, `count` at most, in their order. Asked with each step: no more is looked at than is found."""
        found = (step for step in reversed(self.steps) if step.epoch == epoch and step.end > after)
        return list(islice(found, count))[::-1]

    def _work(self, step: SnapshotStep) -> float:
        """Tokens, where they are reported. A step of an elastic job is the same work on any number of workers."""
        return 1.0 if step.tokens is None or self.demand is not None else step.tokens

    def discard_epoch(self, epoch: int, since: float) -> None:
        """An action did not help: nothing is learned in its epoch, and what was learned is forgotten."""
        self.unhealthy_epochs.append(epoch)
        self.discard_since(since)

    def discard_since(self, since: float) -> None:
        """What was learned after `since` was not healthy: forget it."""
        for rates in self.rates.values():
            while rates and rates[-1][0] >= since:
                rates.pop()

    def expected(self, workers: int) -> float:
        """Throughput that so many workers reach when healthy: measured, else in proportion to the nearest number
        of workers that was measured; NaN before anything was."""
        measured = {count: median(rate for _, rate in rates) for count, rates in self.rates.items() if rates}
        if not measured:
            return math.nan
        nearest = min(measured, key=lambda count: (abs(count - workers), -count))
        return measured[nearest] * workers / nearest

    def measured_throughputs(self) -> tuple[Throughput, ...]:
        """What was measured, per number of workers: the median of undisturbed steps."""
        name = "/".join(self.name.split("/")[:2])
        tokens = bool(self.steps) and self.steps[-1].tokens is not None and self.demand is None
        return tuple(
            Throughput(
                job=name, workers=workers, time=rates[-1][0],
                **{"tokens_per_s" if tokens else "steps_per_s": median(rate for _, rate in rates)},
            )
            for workers, rates in self.rates.items()
            if rates
        )  # fmt: skip

    def transition_costs(self, now: float) -> Iterator[TransitionCost]:
        """What its transitions took: the medians of this run."""
        name = "/".join(self.name.split("/")[:2])
        for part, seen in (("regroup_s", self.regroup_times), ("start_s", self.join_times)):
            if seen:
                yield TransitionCost(job=name, name=part, seconds=median(seen), time=now)

    def step_seconds(self, workers: int) -> float:
        """Seconds that a step takes on so many healthy workers; NaN before anything was measured."""
        expected = self.expected(workers)
        if not self.steps or not math.isfinite(expected) or expected <= 0:
            return math.nan
        return median(self._work(step) for step in self.steps) / expected

    def steps_since_checkpoint(self, resume_step: int = -1) -> int:
        """Steps that a restart of all workers does again: from the newest checkpoint, or from `resume_step`, to the last one done.

        A checkpoint's number is the first step still to do. Where none is known the job began at the first step that was
        seen since all its workers were started: that much is lost at least.
        """
        if not self.steps:
            return 0
        started = max((begun.epoch for begun in self.started_epochs if not begun.in_place), default=-1)
        first = min((step.number for step in self.steps if step.epoch >= started), default=0)
        kept = resume_step if resume_step >= 0 else max(self.checkpoints, default=first)
        return max(0, self.steps[-1].number + 1 - kept)

    def seconds_since_checkpoint(self, resume_step: int = -1) -> float:
        """What these steps take healthy workers, or as they are done now where no healthy ones were measured."""
        steps = self.steps_since_checkpoint(resume_step)
        reported = [step.step_s for step in self.steps if step.step_s is not None]
        if not steps or not reported:
            return 0.0
        healthy = self.step_seconds(self.steps[-1].workers)
        return steps * (healthy if math.isfinite(healthy) else median(reported))

    def losses(self, *, until: float) -> list[float]:
        """Of the steps that ended by then, as far as they are reported and finite."""
        return [step.loss for step in self.steps if step.end <= until and step.finite and step.loss is not None]

    def lost_gpu_seconds(self, since: float, until: float) -> float:
        """GPU-seconds lost between two times by running on fewer workers than the job once had."""
        full = max((count for _, count in self.sizes), default=0)
        ends = chain((time for time, _ in islice(self.sizes, 1, None)), [until])
        return sum(
            max(0.0, min(end, until) - max(begin, since)) * (full - count)
            for (begin, count), end in zip(self.sizes, ends, strict=False)  # of a job without a layout there is no size, and nothing is lost
        )

    @property
    def at_full_size(self) -> bool:
        """It runs on as many workers as it ever had."""
        return bool(self.sizes) and self.sizes[-1][1] >= max(count for _, count in self.sizes)

    # --- what a plan needs ---------------------------------------------------------------------------------------

    @property
    def current(self) -> Layout | None:
        """The layout, once it is that of the highest epoch that was reported."""
        return self.layout if self.layout is not None and self.layout.epoch == self.epoch else None

    def backs_off(self, patience_s: float = 0.0) -> bool:
        """It starts its workers again by itself after a while: until then, and for as long more as that may take, it is not stalled."""
        return self.restart_due > 0.0 and self.stream_time <= self.restart_due + patience_s

    @property
    def basis(self) -> str:
        return digest_of(self.layout) if self.layout is not None else ""

    def began_by(self, plan: str) -> bool:
        """The coordinator has begun an epoch because of this plan."""
        named = self.layout is not None and self.layout.plan == plan
        return named or any(begun.plan == plan for begun in self.started_epochs)

    @property
    def spent(self) -> bool:
        """It has no workers, and waits for a command: nothing heals itself, nothing goes on in place, and nothing is left to look at."""
        return self.spent_epoch >= 0 and not self.over

    @property
    def may_restart(self) -> bool:
        """The job's own budget allows a restart, as far as the engine knows: the coordinator decides."""
        return self.budget_left is None or self.budget_left > 0

    def bad_step(self, incident: Incident) -> int:
        """Number of the first step whose loss is no number: where the newest run of such steps began; without one
        since the fault began, the step that the evidence names; -1 if there is none."""
        last = next((place for place in range(len(self.steps) - 1, -1, -1) if not self.steps[place].finite), None)
        if last is not None and self.steps[last].end > incident.since - BAD_EARLY_S:
            run = takewhile(lambda step: not step.finite, (self.steps[place] for place in range(last, -1, -1)))
            return min(step.number for step in run if step.epoch == self.steps[last].epoch)
        named = [int(line.value) for line in incident.evidence if line.metric == "step" and line.value is not None]
        return min(named, default=-1)

    def moved_after(self, time: float) -> bool:
        """A step was completed after that time."""
        return bool(self.steps) and self.steps[-1].end > time

    def good_checkpoint(self, bad: int) -> int:
        """Step of the newest checkpoint from which a bad step can be done again, and whose numbers are all finite; -1 if there is none.

        A checkpoint's number is the first step still to do: that of the bad step itself was saved before it.
        """
        return max((step for step, finite in self.checkpoints.items() if finite and step <= bad), default=-1)

    def reported_since(self, time: float) -> bool:
        """Every node of the layout has sent a batch after `time`: silence is the job's, not the telemetry's."""
        return self.telemetry_until > time


def _drop_oldest(kept: dict[Any, Any], most: int) -> None:
    """What comes over a wire must not fill the memory."""
    while len(kept) > most:
        del kept[next(iter(kept))]
