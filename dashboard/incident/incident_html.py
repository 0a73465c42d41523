"""The parts of an incident as HTML. Pure; incident.css says how they look. Everything that came over a wire is escaped."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import tzinfo

import msgspec

from dashboard import formatting, html
from dashboard.html import Column, Safe, Tile, joined, tagged
from dashboard.queries.incident import EvidenceRow, IncidentDetails, PlanRow, Stack
from dashboard.queries.incidents import IncidentRow
from dashboard.queries.names import unit_of
from eagle_eye.errors import UNREADABLE
from eagle_eye.ledger import TimelineEntry
from eagle_eye.types import Allow, Rival

from . import summary
from .stages import IncidentStage, stages

LONGEST = 400
"""Characters of one line of the timeline."""
STACK_SHOWN = 4000
ORDER_WORDS = ("exclude", "resume_step", "skip", "epoch", "workers")
"""Of a command's arguments and answers, what a reader wants to see."""
OVER = "over"
SIGNS = {"reached": "●", "now": "◐", "failed": "▲", "ahead": "○"}
VALUE_NAMES: Mapping[str, tuple[str, str]] = {
    "throughput_per_s": ("Throughput", "tokens/s"),
    "downtime_s": ("Downtime", "duration"),
    "redone_s": ("Work done again", "duration"),
    "verify_s": ("Verified after", "duration"),
    "loss": ("Loss", ""),
    "bad_step": ("First bad step", "step"),
    "bill_gpu_hours": ("Cost", "GPU-hours"),
}
"""Name of remediation/policy/prediction.py → its label and unit."""
BOUND_SUFFIX = "_high"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewTime:
    """Who looks, and when."""

    zone: tzinfo
    now: float

    def time_text(self, time: float) -> str:
        """Time in the reader's zone."""
        return formatting.date_time(time, self.zone, self.now)


# --- the first screen ------------------------------------------------------------------------------------------------


def head(story: IncidentDetails, view: ViewTime) -> Safe:
    """State, cause and culprit, and the strongest line of proof."""
    incident = story.incident
    label, tone = summary.state_badge(story)
    over = joined(
        html.badge(label, tone),
        *([tagged("span", joined("by ", html.link(story.superseded_by, "incident", incident=story.superseded_by)), "ee-muted")] if story.superseded_by else []),
        tagged("span", str(incident.severity).upper(), "ee-severity", title=f"the weakest repair that can help: {summary.REPAIRS.get(incident.severity, '')}"),
        tagged("span", joined("began ", formatting.relative(incident.since, view.now), ", ", view.time_text(incident.since), " ", formatting.zone_name(view.zone, view.now)), "ee-muted"),
        tagged("code", incident.id, "ee-id"),
    )
    proof = next((line.text for line in story.evidence if line.supports), "")
    lines = [tagged("div", over, "ee-incident-over"), tagged("h1", summary.title(incident))]
    if proof:
        lines.append(tagged("p", formatting.capital(formatting.short(proof, 220)), "ee-incident-proof"))
    return tagged("div", joined(*lines), "ee-incident-head")


def facts(story: IncidentDetails) -> Safe:
    """Cause, culprit, where, and what it costs."""
    incident = story.incident
    found = "found after an unknown time: the clock jumped" if story.found_s is None else f"found {formatting.duration(story.found_s)} after it began"
    tiles = (
        Tile("Cause", formatting.capital(incident.cause), found),
        Tile("Culprit", summary.culprits(incident), summary.confidence(incident)),
        Tile("Where", html.link(incident.job, "job", job=incident.job), f"on {formatting.listed(story.nodes, most=2)}" if story.nodes else "no node named"),
        Tile("Costs so far", formatting.gpu_hours(story.bill_gpu_hours), f"{story.cost_text}, {_lasted(story)}" if story.cost_text else _lasted(story)),
    )
    return tagged("div", html.tiles(tiles), "ee-incident-facts")


def _lasted(story: IncidentDetails) -> str:
    """How long it costs."""
    if story.state in ("healed", "closed"):
        return "over after an unknown time: the clock jumped" if story.lasted_s is None else f"over after {formatting.duration(story.lasted_s)}"
    if story.superseded_by:
        return "until it came back"
    if story.job_over:
        return "until the job ended"
    return "not healed" if story.state == "failed" else "and it goes on"


def action_summary(story: IncidentDetails, view: ViewTime) -> Safe:
    """What is proposed or was done, why, and its terms."""
    shown = summary.action_summary(story)
    line = story.waiting or story.last
    rows = list(predicted_actual_rows(line.predicted, line.actual, story.work)) if line is not None else []
    waits = line is not None and line.state == "waiting"
    parts = [
        tagged("div", joined(html.badge(shown.lead, shown.tone), *([html.muted(_whose(line))] if line is not None else [])), "ee-action-lead"),
        tagged("div", shown.what, "ee-action-what"),
        tagged("div", html.linked(shown.why), "ee-action-why"),
    ]
    if line is not None and waits:
        parts.append(_terms(line, view))
    beside = tagged("div", _predicted_text(rows[:4]), "ee-action-predicted") if rows and not waits else ""
    return tagged("div", joined(tagged("div", joined(*parts)), beside), f"ee-action ee-{shown.tone}")


def _whose(line: PlanRow) -> str:
    return "the job allowed it itself" if line.plan.own else ""


def _terms(line: PlanRow, view: ViewTime) -> Safe:
    """What a person decides about, exactly."""
    plan = line.plan
    terms = [("expected", summary.cost(plan)), ("valid", f"until {view.time_text(plan.expires)}, {formatting.relative(plan.expires, view.now)}")]
    terms += [("job", f"{target.job}, epoch {target.epoch}") for target in plan.targets[:2]]
    cells = [tagged("div", joined(tagged("dt", name), tagged("dd", text))) for name, text in terms if text]
    cells.append(tagged("div", joined(tagged("dt", "digest"), tagged("dd", tagged("code", line.digest)))))
    return tagged("dl", joined(*cells), "ee-terms")


def _predicted_text(rows: Iterable[tuple[str, str, str]]) -> Safe:
    return html.table((Column("", grows=True), Column("Predicted", number=True), Column("Actual", number=True)), rows, caption="predicted beside actual")


def track(story: IncidentDetails) -> Safe:
    """Signal → cause → plan → transition → result."""
    began = story.incident.since
    return tagged("ol", joined(*(_stage(stage, began) for stage in stages(story))), "ee-track")


def _stage(stage: IncidentStage, began: float) -> Safe:
    when = formatting.after(stage.time - began) if stage.time is not None else formatting.NOTHING
    sign = Safe(f'<span class="ee-track-sign" aria-hidden="true">{SIGNS[stage.state]}</span>')
    name = tagged("div", joined(sign, tagged("span", stage.name, "ee-track-name"), tagged("span", when, "ee-track-time")), "ee-track-head")
    return tagged("li", joined(name, tagged("div", html.linked(formatting.capital(stage.text)), "ee-track-text")), f"ee-stage-{stage.state}")


# --- the rest --------------------------------------------------------------------------------------------------------


def timeline(story: IncidentDetails, view: ViewTime) -> Safe:
    """Everything in the order of time, with its distance from the fault."""
    columns = (Column("After", number=True), Column("Time", wide_only=True), Column("What"), Column("", grows=True))
    began = story.incident.since
    rows = [(formatting.after(moment.time - began), formatting.clock_time(moment.time, view.zone, milliseconds=True), tagged("span", moment.what, f"ee-what-{moment.what}"), timeline_text(moment)) for moment in story.timeline]
    return html.table(columns, rows, caption="timeline of the incident")


def timeline_text(moment: TimelineEntry) -> Safe:
    """One line of the timeline; JSON is written as text, and what is long is cut."""
    head, brace, rest = moment.text.partition("{")
    text = f"{head}{_told(brace + rest)}".rstrip(": ") if moment.what == "step" and brace else moment.text
    return html.text(formatting.short(text, LONGEST))


def _told(document: str) -> str:
    try:
        found = msgspec.json.decode(document)
    except UNREADABLE:
        return document
    if not isinstance(found, dict):
        return document
    if isinstance(found.get("stacks"), list):
        return formatting.count(len(found["stacks"]), "different stack")
    kept = {name: found[name] for name in ORDER_WORDS if found.get(name) not in (None, [], -1, "")}
    return ", ".join(f"{formatting.spoken(name)} {_value(value)}" for name, value in kept.items())


def _value(value: object) -> str:
    return formatting.listed(map(str, value)) if isinstance(value, list) else str(value)


def proofs(lines: Iterable[EvidenceRow], view: ViewTime) -> Safe:
    """Lines of evidence, what they measured beside the threshold."""
    columns = (Column("Evidence", grows=True), Column("Measured", number=True), Column("Threshold", number=True, wide_only=True))
    rows = [(html.stacked(formatting.capital(line.text), _source(line)) if _source(line) else formatting.capital(line.text), _measured(line.value, line.metric, view), _measured(line.threshold, line.metric, view)) for line in lines]
    return html.table(columns, rows, caption="evidence")


def _measured(value: float | None, metric: str, view: ViewTime) -> str:
    """The end of a claim is measured as a time (detectors/features/active_claims.py)."""
    if metric == OVER:
        return formatting.clock_time(value, view.zone)
    return formatting.figure(value, unit_of(metric))


def _source(line: EvidenceRow) -> str:
    return f"{line.finding} at {line.entity}" if line.finding else ""


def logs(lines: Iterable[str]) -> Safe:
    """Last output of processes."""
    return tagged("pre", "\n".join(lines), "ee-log")


def stack(each: Stack) -> Safe:
    """One stack and the workers that stand there."""
    who = formatting.listed((formatting.entity("worker", worker) for worker in each.workers), most=4, nothing="unknown workers")
    many = formatting.count(len(each.workers), "worker")
    summary = tagged("summary", joined(tagged("b", many), " ", html.muted(who)))
    return Safe(f"<details class='ee-stack' open>{summary}{tagged('pre', each.text[:STACK_SHOWN], 'ee-log')}</details>")


def rivals(each: Iterable[Rival]) -> Safe:
    """Rival causes, and what would tell them apart."""
    return html.table((Column("It could also be"), Column("What would tell them apart", grows=True)), [(tagged("b", formatting.capital(rival.cause)), formatting.capital(rival.apart)) for rival in each], caption="rival explanations")


def similar(lines: Iterable[IncidentRow], view: ViewTime) -> Safe:
    """Past incidents of the same cause."""
    columns = (Column("When"), Column("Culprit", grows=True), Column("Became"), Column("Cost", number=True))
    rows = [(html.link(formatting.relative(line.opened, view.now), "incident", incident=line.id), formatting.listed(formatting.accused(line.culprits), nothing="unknown"), line.state, formatting.gpu_hours(line.bill_gpu_hours, "GPU-h")) for line in lines]
    return html.table(columns, rows, caption="similar incidents")


def plan(line: PlanRow, view: ViewTime, work: str) -> Safe:
    """One plan: what came of it, what lost against it, and the verdicts of the guards."""
    lead, tone = summary.OUTCOMES.get(line.state, (line.state, "quiet"))
    parts: list[object] = [tagged("div", joined(tagged("b", summary.action(line.plan)), html.badge(lead, tone), html.muted(view.time_text(line.plan.made))), "ee-plan-head")]
    if line.plan.reason:
        parts.append(tagged("div", formatting.capital(line.plan.reason), "ee-second"))
    if rows := list(predicted_actual_rows(line.predicted, line.actual, work)):
        parts.append(_predicted_text(rows))
    if line.plan.alternatives:
        parts.append(html.table((Column("Instead of"), Column("Why it lost", grows=True)), [(formatting.spoken(each.action), each.why) for each in line.plan.alternatives], caption="alternatives"))
    if line.verdicts:
        parts.append(_guards(line))
    return tagged("div", joined(*parts), "ee-plan")


def _guards(line: PlanRow) -> Safe:
    """Those that let it pass in one line, each other with its reason."""
    passed = [formatting.spoken(kept.verdict.guard) for kept in line.verdicts if isinstance(kept.verdict, Allow)]
    others = [kept.verdict for kept in line.verdicts if not isinstance(kept.verdict, Allow)]
    lines = [tagged("div", joined(html.badge("Allowed", "good"), " ", html.muted(", ".join(passed))), "ee-guard")] if passed else []
    for verdict in others:
        held = type(verdict).__name__ == "Hold"
        lines.append(tagged("div", joined(html.badge("Held" if held else "Refused", "accent" if held else "warning"), " ", tagged("b", formatting.spoken(verdict.guard)), " ", html.muted(verdict.reason)), "ee-guard"))
    return joined(*lines)


def people(story: IncidentDetails, view: ViewTime) -> Safe:
    """Notes and silences."""
    lines = [tagged("div", joined(tagged("b", note.person), " ", html.muted(formatting.relative(note.time, view.now)), tagged("div", note.text)), "ee-note") for note in story.notes]
    lines += [tagged("div", joined(tagged("b", f"Silence by {each.person}"), " ", html.muted(f"until {view.time_text(each.until)}"), tagged("div", each.reason)), "ee-note") for each in story.silences]
    return joined(*lines)


def predicted_actual_rows(predicted: Mapping[str, float], actual: Mapping[str, float], work: str = "tokens/s") -> Iterator[tuple[str, str, str]]:
    """(what, predicted, actual), in the order of VALUE_NAMES; an upper bound is written beside its value. work: unit of the throughput.

    >>> list(predicted_actual_rows({"loss": 2.0, "loss_high": 2.2}, {"loss": 2.05, "bill_gpu_hours": 0.5}))
    [('Loss', '2 (at most 2.2)', '2.05'), ('Cost', '–', '0.500\\u202fGPU-hours')]
    """
    known = [*VALUE_NAMES, *sorted({*predicted, *actual} - set(VALUE_NAMES))]
    for name in known:
        if name.endswith(BOUND_SUFFIX) or (name not in predicted and name not in actual):
            continue
        label, unit = VALUE_NAMES.get(name, (formatting.capital(formatting.spoken(name)), ""))
        unit = work if name == "throughput_per_s" else unit
        high = predicted.get(f"{name}{BOUND_SUFFIX}")
        most = f" (at most {_value_text(high, unit)})" if high is not None else ""
        yield label, _value_text(predicted.get(name), unit) + most, _value_text(actual.get(name), unit)


def _value_text(value: float | None, unit: str) -> str:
    if unit == "duration":
        return formatting.duration(value)
    if unit == "GPU-hours":
        return formatting.gpu_hours(value)
    if unit == "step":
        return formatting.NOTHING if value is None else f"{value:.0f}"
    return formatting.number(value, unit)
