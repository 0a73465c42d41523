"""Signal → cause → plan → transition → result: an incident as five stages, with the seconds at which each was reached. Pure."""

from dataclasses import dataclass

from dashboard import formatting
from dashboard.queries.incident import IncidentDetails, PlanRow
from eagle_eye.durations import seconds_between

from .summary import action

OVER = ("healed", "closed")
ENDED = ("done", "failed", "stale")


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentStage:
    """One of the five."""

    name: str
    time: float | None
    """Seconds since 1970; None: not reached."""
    text: str
    state: str
    """reached, now (it waits here), failed or ahead."""


def stages(story: IncidentDetails) -> tuple[IncidentStage, ...]:
    """All five, whether reached or not."""
    line = story.waiting or story.last
    return (_signal(story), _cause(story), _plan(story, line), _transition(story, line), _result(story, line))


def _signal(story: IncidentDetails) -> IncidentStage:
    first = min(story.incident.parts, key=lambda finding: finding.time, default=None)
    text = f"{formatting.spoken(first.kind).replace('.', ' ')} seen by {formatting.spoken(first.detector)}" if first else "the first finding"
    return IncidentStage(name="Signal", time=_seen(story), text=text, state="reached")


def _seen(story: IncidentDetails) -> float:
    """When the first finding of it was made."""
    return min([story.opened, *(finding.time for finding in story.incident.parts)]) if story.incident.parts else story.incident.since


def _cause(story: IncidentDetails) -> IncidentStage:
    incident = story.incident
    sure = f", {formatting.percent(round(max(each.confidence for each in incident.culprits), 2))}" if incident.culprits else ""
    return IncidentStage(name="Cause", time=story.opened, text=f"{incident.cause}{sure}", state="reached")


def _plan(story: IncidentDetails, line: PlanRow | None) -> IncidentStage:
    if line is None:
        return IncidentStage(name="Plan", time=None, text="none was needed" if story.state in OVER else "none yet", state="ahead")
    if line.state == "waiting":
        return IncidentStage(name="Plan", time=line.plan.made, text="waits for approval", state="now")
    stopped = line.state in ("refused", "held", "expired")
    text = f"{line.state}: {action(line.plan).lower()}" if stopped else action(line.plan)
    begun = min([line.plan.made, *(step.time for step in line.progress)])  # a job that heals itself reports it afterwards
    if line.plan.own:
        text = f"the job itself{', before it was found' if begun < _seen(story) else ''}: {text[0].lower()}{text[1:]}"
    return IncidentStage(name="Plan", time=begun, text=text, state="failed" if stopped else "reached")


def _transition(story: IncidentDetails, line: PlanRow | None) -> IncidentStage:
    steps = line.progress if line is not None else ()
    if not steps:
        done = story.state in OVER and line is None
        return IncidentStage(name="Transition", time=None, text="the job went on by itself" if done else "not begun", state="ahead")
    last = steps[-1]
    took = seconds_between(steps[0].time, last.time) or 0.0
    if last.state == "failed":
        return IncidentStage(name="Transition", time=last.time, text=f"failed: {formatting.short(last.detail, 60)}", state="failed")
    if last.state == "intended":
        return IncidentStage(name="Transition", time=last.time, text=f"{last.step.partition(' ')[0]} under way", state="now")
    return IncidentStage(name="Transition", time=last.time, text=f"ordered in {formatting.duration(took)}" if took >= 0.001 else "ordered", state="reached")


def _result(story: IncidentDetails, line: PlanRow | None) -> IncidentStage:
    outcome = line.outcome if line is not None else None
    if outcome is not None and outcome.state in ENDED:
        text = formatting.short(outcome.detail or outcome.state, 70)
        return IncidentStage(name="Result", time=outcome.time, text=text, state="failed" if outcome.state == "failed" else "reached")
    if story.state in (*OVER, "failed"):
        return IncidentStage(name="Result", time=story.changed, text=story.state, state="failed" if story.state == "failed" else "reached")
    waits = line is not None and line.state == "intended"
    return IncidentStage(name="Result", time=None, text="being watched" if waits else "not yet", state="now" if waits else "ahead")
