"""Summary of an incident as text: state, cause, culprit, action, cost. Pure."""

from dataclasses import dataclass

from dashboard import formatting
from dashboard.html import Tone
from dashboard.queries.incident import IncidentDetails, PlanRow
from eagle_eye.types import Incident, Plan

STATES: dict[str, tuple[str, Tone]] = {
    "open": ("Open", "warning"),
    "contained": ("Contained", "accent"),
    "healing": ("Healing", "accent"),
    "healed": ("Healed", "good"),
    "failed": ("Not healed: needs an operator", "alarm"),
    "closed": ("Closed", "quiet"),
}
SUPERSEDED: tuple[str, Tone] = ("Superseded", "quiet")
WAITS: tuple[str, Tone] = ("Waits for your decision", "alarm")
REPAIRS = {"sev1": "isolate", "sev2": "restart", "sev3": "retry in place", "info": "notify"}
"""Severity → the weakest repair that can help."""
OUTCOMES: dict[str, tuple[str, Tone]] = {
    "waiting": ("Proposed", "alarm"),
    "intended": ("Under way", "accent"),
    "done": ("Done", "good"),
    "failed": ("Did not help", "alarm"),
    "stale": ("Overtaken by events", "quiet"),
    "refused": ("Not done", "warning"),
    "held": ("Held back", "warning"),
    "expired": ("Expired", "quiet"),
    "made": ("Planned", "accent"),
}
"""State of a plan → its label and tone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSummary:
    """What is proposed, done, or stands in the way."""

    lead: str
    """Proposed, Done, …"""
    tone: Tone
    what: str
    why: str


def state_badge(story: IncidentDetails) -> tuple[str, Tone]:
    """State of the incident, as a badge."""
    if story.superseded_by and story.waiting is None:
        return SUPERSEDED
    return WAITS if story.waiting is not None else STATES.get(story.state, (formatting.capital(story.state), "quiet"))


def title(incident: Incident) -> str:
    """Cause and culprit: Slow node: node-c."""
    return f"{formatting.capital(incident.cause)}: {culprits(incident)}"


def culprits(incident: Incident) -> str:
    """Those whom one can name in a line."""
    return formatting.listed(formatting.accused(str(culprit.entity) for culprit in incident.culprits), most=2, nothing="unknown")


def confidence(incident: Incident) -> str:
    """Of the most certain culprit, in words."""
    if not incident.culprits:
        return "the evidence names no culprit"
    most = max(culprit.confidence for culprit in incident.culprits)
    return f"{formatting.percent(round(most, 2))} sure"


def action_summary(story: IncidentDetails) -> ActionSummary:
    """The plan that waits, else the last repair, else why there is none."""
    line = story.waiting or story.last
    if line is None:
        return ActionSummary(lead="Nothing yet", tone="quiet", what="No repair was planned", why=_no_plan(story))
    lead, tone = OUTCOMES.get(line.state, (formatting.capital(line.state), "quiet"))
    tone = "quiet" if story.superseded_by and line.state == "failed" else tone
    return ActionSummary(lead=lead, tone=tone, what=action(line.plan), why=_why(line))


def action(plan: Plan) -> str:
    """A plan as one would order it."""
    left = [node for target in plan.targets for node in target.exclude]
    steps = [target.resume_step for target in plan.targets if target.resume_step >= 0]
    swap = next((target.swap for target in plan.targets if target.swap), ())
    skipped = [str(step) for target in plan.targets for step in target.skip]
    workers = [formatting.entity("worker", worker) for target in plan.targets for worker in target.workers]
    text = {
        "evict_node": f"Evict {formatting.listed(left, nothing='a node')}",
        "restart_worker": "Restart the workers" + (f", {' and '.join(swap)} exchange their ranks" if swap else ""),
        "roll_back": "Roll back" + (f" to step {steps[0]}" if steps else " to the last checkpoint"),
        "reattempt": f"Continue {formatting.listed(workers, nothing='the worker')}",
        "dump": "Take the stacks of all workers",
        "release": "Release the node",
    }.get(plan.action, formatting.capital(formatting.spoken(plan.action)))
    return text + (f", skip {formatting.listed(skipped)}" if skipped else "")


def cost(plan: Plan) -> str:
    """What was expected of it."""
    if not plan.cost and not plan.benefit:
        return ""
    return f"costs {formatting.gpu_hours(plan.cost / 3600)}, saves {formatting.gpu_hours(plan.benefit / 3600)}"


def _why(line: PlanRow) -> str:
    if line.outcome is not None and line.outcome.detail:
        return formatting.capital(line.outcome.detail)
    stopped = [kept.verdict for kept in line.verdicts if type(kept.verdict).__name__ == "Refuse"]
    if line.state == "refused" and stopped:
        return f"{formatting.capital(formatting.spoken(stopped[-1].guard))}: {stopped[-1].reason}"
    return formatting.capital(line.plan.reason)


def _no_plan(story: IncidentDetails) -> str:
    if story.state == "healed":
        return "The job went on by itself."
    if story.silences:
        return f"Silenced by {story.silences[0].person}: {story.silences[0].reason}"
    return "Eagle Eye still looks, or there is nothing that it may do about this cause."
