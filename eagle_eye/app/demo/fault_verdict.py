"""The demo's verdict: what the ledger and the stream say, held against what really happened."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from eagle_eye.app.drills import GroundTruth
from eagle_eye.types import Incident, Notice, Outcome

from .scenario import DemoFault
from .step_trace import CommittedStep, StepTrace

STEPS_AFTER = 20
"""Steps beyond the highest one before the fault that must be committed."""
THROUGHPUT = 0.9
"""Share of the expected throughput per worker that counts as healed."""
LOSS = 1e-3
"""How far a loss may lie from the undisturbed run's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultVerdict:
    """One line of the table. Seconds count from the fault; NaN: it did not happen."""

    fault: DemoFault
    truth: GroundTruth
    found_s: float
    culprit: str
    culprit_right: bool
    cause: str
    cause_right: bool
    actions: tuple[str, ...]
    training_s: float
    steps_lost: int
    steps_after: int
    throughput: float
    """Of the expected, over the best STEPS_AFTER steps in succession after the fault."""
    loss_off: float
    """Largest distance from the undisturbed run over the steps after the fault."""
    wrongs: tuple[str, ...] = ()
    """Why it is not healed; empty when it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecords:
    """What may be looked at for one fault: everything between it and the next."""

    first: Sequence[Incident]
    """First revision of each incident of the span."""
    latest: Sequence[Incident]
    """Latest revision of the same."""
    outcomes: Sequence[Outcome]
    notices: Sequence[Notice]
    until: float


def verdict_of(fault: DemoFault, truth: GroundTruth, seen: FaultRecords, trace: StepTrace, healthy: float, reference: Mapping[int, float]) -> FaultVerdict:
    """One row. `healthy`: tokens per second and worker before the first fault; `reference`: step → loss."""
    accused = [incident for incident in seen.latest if incident.culprits]
    incident = min(accused, key=lambda each: each.time, default=None)
    before = trace.highest(truth.time)
    span = [step for step in trace.after(truth.time) if step.end <= seen.until]
    healed = max((step.epoch for step in span), default=0)
    after = [step for step in span if step.number > before and step.epoch == healed]
    training = span[0].end - truth.time if span and fault.culprit == "none" else _back(span, after, trace, truth)
    found = _found(fault, truth, seen, incident)
    throughput = trace.steady_throughput(after, STEPS_AFTER) / healthy
    losses = [abs(step.loss - reference[step.number]) for step in after if step.number in reference]
    row = FaultVerdict(
        fault=fault,
        truth=truth,
        found_s=found,
        culprit=str(incident.culprits[0].entity) if incident else "none",
        culprit_right=_culprit_right(fault, truth, incident, accused),
        cause=incident.cause if incident else "stream away" if fault.culprit == "none" and not math.isnan(found) else "",
        cause_right=incident is not None and incident.cause in fault.causes if fault.causes else not accused and not math.isnan(found),
        actions=_actions(seen.outcomes),
        training_s=training,
        steps_lost=_lost(before, span),
        steps_after=len({step.number for step in after}),
        throughput=throughput,
        loss_off=max(losses, default=math.nan),
    )
    skipped = any(layout.skipped for layout in trace.layouts if layout.time <= seen.until)
    return _with_wrongs(row, after, trace, skipped=skipped)


def _found(fault: DemoFault, truth: GroundTruth, seen: FaultRecords, incident: Incident | None) -> float:
    if fault.culprit == "none":
        times = [notice.time for notice in seen.notices if notice.name == "stream.away" and notice.time >= truth.time]
        return min(times) - truth.time if times else math.nan
    if incident is None:
        return math.nan
    opened = next((first.time for first in seen.first if first.id == incident.id), incident.time)
    return opened - truth.time


def _culprit_right(fault: DemoFault, truth: GroundTruth, incident: Incident | None, accused: Sequence[Incident]) -> bool:
    if fault.culprit == "none":
        return not accused
    expected = truth.worker if fault.culprit == "worker" else truth.node
    blamed = {culprit.entity.name for each in accused for culprit in each.culprits}
    return incident is not None and blamed == {expected}


def _actions(outcomes: Sequence[Outcome]) -> tuple[str, ...]:
    """Repairs in their order; one that did not help is marked. Records of faults and notifications are not repairs."""
    tried = [outcome for outcome in sorted(outcomes, key=lambda each: each.time) if outcome.action not in {"dump", "notify"} and outcome.state in {"done", "failed"}]
    return tuple(dict.fromkeys(outcome.action if outcome.state == "done" else f"{outcome.action} (did not help)" for outcome in tried))


def _back(span: Sequence[CommittedStep], after: Sequence[CommittedStep], trace: StepTrace, truth: GroundTruth) -> float:
    """Seconds until the first step done after the fault was dealt with: in a later epoch, or beyond the highest."""
    struck = max((layout.epoch for layout in trace.layouts if layout.time <= truth.time), default=0)
    later = [step for step in span if step.epoch > struck] or list(after)
    return later[0].end - truth.time if later else math.nan


def _lost(before: int, span: Sequence[CommittedStep]) -> int:
    """Steps that were committed before the fault and had to be done again."""
    return len({step.number for step in span if step.number <= before})


def _with_wrongs(row: FaultVerdict, after: Sequence[CommittedStep], trace: StepTrace, *, skipped: bool) -> FaultVerdict:
    wrongs = []
    if math.isnan(row.found_s):
        wrongs.append("missed")
    if not row.culprit_right:
        wrongs.append("blamed wrongly")
    if not row.cause_right:
        wrongs.append("cause wrong")
    if row.steps_after < STEPS_AFTER:
        wrongs.append(f"only {row.steps_after} further steps")
    if len({step.tokens for step in [*trace.steps[:1], *after]}) > 1:
        wrongs.append("global batch changed")
    if not row.throughput >= THROUGHPUT:
        wrongs.append(f"throughput {row.throughput:.0%} of the expected")
    if not skipped and not row.loss_off <= LOSS:
        wrongs.append(f"loss off by {row.loss_off:.1e}")
    return replace(row, wrongs=tuple(wrongs))
