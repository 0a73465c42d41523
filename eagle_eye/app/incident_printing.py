"""Prints incidents of the ledger, as text and as JSON."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console
from rich.markup import escape

from eagle_eye.app.printing import (
    TableColumn,
    brief_id,
    brief_time,
    brief_worker,
    local_time,
    print_json,
    print_table,
    print_text,
)
from eagle_eye.config import CostConfig
from eagle_eye.errors import UNREADABLE, LedgerError
from eagle_eye.ledger.changes_before import changes_before
from eagle_eye.ledger.entity_history import entity_histories, history_text
from eagle_eye.ledger.records import IncidentRecord, TimelineEntry
from eagle_eye.types import Incident, Outcome, Plan
from eagle_eye.writable_text import printable

if TYPE_CHECKING:
    from eagle_eye.ledger import Ledger

LONGEST = 160
"""Characters of a line of the timeline."""
WIDEST = 4000
"""The same with --wide."""
NAMED = 8
"""Workers or nodes that a line of the timeline names; the rest is counted."""
STEP_FIELDS = ("workers", "exclude", "release", "resume_step", "skip", "epoch", "budget_left", "continued")
"""Fields of a step's JSON that the timeline shows; --wide shows the JSON."""
METRICS: Mapping[str, tuple[str, str]] = {
    "throughput_per_s": ("throughput", "{:,.6g} {rate}"),
    "downtime_s": ("downtime", "{:,.2f} s"),
    "redone_s": ("work done again", "{:,.2f} s"),
    "verify_s": ("verified after", "{:,.2f} s"),
    "loss": ("loss", "{:.4g}"),
    "loss_high": ("loss, upper bound", "{:.4g}"),
    "bad_step": ("first bad step", "{:.0f}"),
    "bill_gpu_hours": ("cost", "{:,.4f} GPU-hours"),
    "waf": ("weighted throughput of all jobs", "{:.6g}"),
    "waf_left": ("the same without the action", "{:.6g}"),
}
"""Name of a predicted or actual value (remediation/policy/prediction.py) → its label and format."""
TIMES = frozenset({"downtime_s", "redone_s", "verify_s"})
COLUMNS = (
    TableColumn("id", brief=brief_id), TableColumn("opened", brief=brief_time), TableColumn("job", name=True, drop=1), TableColumn("cause", name=True),
    TableColumn("culprit", name=True, brief=brief_worker), TableColumn("severity", drop=2), TableColumn("state"),
)  # fmt: skip


def print_incidents(console: Console, kept: Sequence[IncidentRecord], *, open_only: bool, json_lines: bool, wide: bool) -> None:
    """The list as it was read. `open_only`: no others were asked for."""
    if json_lines:
        for each in kept:
            print_json(each.incident)
        return
    if not kept:
        console.print("no incident" + (" is open" if open_only else " so far"))
        return
    print_table(console, COLUMNS, (_row(each) for each in kept), wide=wide)


def _row(record: IncidentRecord) -> tuple[str, ...]:
    incident = record.incident
    return (incident.id, local_time(record.opened), incident.job, incident.cause, _culprits(incident), incident.severity.upper(), str(record.state))


def print_incident(console: Console, ledger: "Ledger", name: str, *, cost: CostConfig, json_lines: bool, stacks: bool, wide: bool) -> None:
    """One incident: cause, culprit, evidence, history, changes before it, rival causes, timeline, plans. `name`: its id, or the beginning of it. Raises LedgerError."""
    kept = _find(ledger, name)
    if stacks:
        _print_stacks(console, ledger, kept.incident.id, wide=wide)
        return
    if json_lines:
        for revision in ledger.incident(kept.incident.id):
            print_json(revision)
        for outcome in ledger.outcomes(incident=kept.incident.id):
            print_json(outcome)
        return
    incident = kept.incident
    console.print(f"[bold]{_shown(incident.cause)}[/]  {_shown(_culprits(incident))}", soft_wrap=True, highlight=False)
    console.print(f"{incident.severity.upper()}, {kept.state}   id {incident.id}   job {_shown(incident.job)}", soft_wrap=True, highlight=False)
    print_text(console, f"began {local_time(incident.since, zone=True)}, found {_later(ledger, incident.since, kept.opened)}, cost so far {_cost_text(incident, cost)}")
    _heading(console, "evidence")
    for line in incident.evidence:
        print_text(console, line.text, indent=2)
    _print_sentences(console, "history", [history_text(history, kept) for history in entity_histories(ledger, kept)])
    _print_sentences(console, "changed before", changes_before(ledger, kept))
    _print_sentences(console, "rival causes", [f"{rival.cause}: {rival.apart}" for rival in incident.rivals])
    _heading(console, "timeline")
    columns = (TableColumn("after"), TableColumn("what"), TableColumn("", prose=True))
    print_table(console, columns, ((f"{moment.time - incident.since:+.3f} s", moment.what, _entry_text(moment, wide=wide)) for moment in ledger.timeline(incident.id)), wide=wide)
    _print_alternatives(console, ledger.plans(incident=incident.id, limit=1000), wide=wide)
    _print_predictions(console, [_credible(ledger, kept, each) for each in ledger.outcomes(incident=incident.id, limit=1000)], _rate_unit(ledger, incident.job), wide=wide)


def _shown(text: str) -> str:
    """As text within markup of ours."""
    return escape(printable(text))


def _cost_text(incident: Incident, cost: CostConfig) -> str:
    amount = cost.text(incident.bill_gpu_hours)
    return f"{incident.bill_gpu_hours:.4f} GPU-hours" + (f" ({amount})" if amount else "")


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(f"[bold]{text}[/]")


def _print_sentences(console: Console, heading: str, sentences: Sequence[str]) -> None:
    """Under a heading; nothing where there are none."""
    if sentences:
        _heading(console, heading)
    for sentence in sentences:
        print_text(console, sentence, indent=2)


def _later(ledger: "Ledger", began: float, ended: float) -> str:
    seconds = ledger.seconds_between(began, ended)
    return "after an unknown time (the clock jumped)" if seconds is None else f"{seconds:.2f} s later"


def _credible(ledger: "Ledger", kept: IncidentRecord, outcome: Outcome) -> Outcome:
    """Without the times that were measured across a jump of the clock."""
    if ledger.seconds_between(kept.opened, outcome.time) is not None:
        return outcome
    return msgspec.structs.replace(outcome, actual={name: value for name, value in outcome.actual.items() if name not in TIMES})


def _print_alternatives(console: Console, plans: Sequence[Plan], *, wide: bool) -> None:
    """Each plan that was chosen among several, with its alternatives: cost, benefit, and why they lost."""
    weighed = [plan for plan in reversed(plans) if plan.alternatives]
    if not weighed:
        return
    _heading(console, "alternatives")
    print_text(console, "cost, and benefit against doing nothing, in weighted worker-seconds", indent=2)
    rows = []
    for plan in weighed:
        rows.append((plan.action, f"{plan.cost:.6g}", f"{plan.benefit:.6g}", f"chosen: {plan.reason}"))
        for loser in sorted(plan.alternatives, key=lambda each: (each.cost is None, each.cost or 0.0)):
            cost, benefit = ("impossible", "") if loser.cost is None else (f"{loser.cost:.6g}", f"{loser.benefit or 0.0:.6g}")
            rows.append((loser.action, cost, benefit, loser.why))
    print_table(console, (TableColumn("action"), TableColumn("cost"), TableColumn("benefit"), TableColumn("why", prose=True)), rows, wide=wide)


def _print_predictions(console: Console, outcomes: Sequence[Outcome], rate: str, *, wide: bool) -> None:
    """Predicted and actual values of each action. Self-healing has no prediction."""
    known = [outcome for outcome in reversed(outcomes) if outcome.predicted or outcome.actual]
    if not known:
        return
    _heading(console, "predicted and actual")
    for outcome in known:
        print_table(console, (TableColumn(f"{outcome.action}, {outcome.state}"), TableColumn("predicted"), TableColumn("actual")), _metric_rows(outcome, rate), wide=wide)


def _rate_unit(ledger: "Ledger", job: str) -> str:
    """Unit of the job's throughput: steps where it logs no tokens."""
    name = "/".join(job.split("/")[:2])
    steps = any(each.job == name and each.tokens_per_s is None and each.steps_per_s is not None for each in ledger.throughputs())
    return "steps/s" if steps else "tokens/s"


def _metric_rows(outcome: Outcome, rate: str) -> Iterator[tuple[str, str, str]]:
    """(label, predicted, actual), with units. `rate`: unit of the job's throughput. A name without an entry in METRICS is shown as it is."""
    for name in dict.fromkeys([*outcome.predicted, *outcome.actual]):
        label, form = METRICS.get(name, (name.replace("_", " "), "{:.6g}"))
        predicted, actual = outcome.predicted.get(name), outcome.actual.get(name.removesuffix("_high"))
        yield label, "" if predicted is None else form.format(predicted, rate=rate), "" if actual is None else form.format(actual, rate=rate)


def _print_stacks(console: Console, ledger: "Ledger", incident: str, *, wide: bool) -> None:
    """Stacks of the workers, from the action `dump`. `wide`: as py-spy wrote them; those that differ from the others come first."""
    dumps = [step.detail for plan in ledger.plans(incident=incident) if plan.action == "dump" for step in ledger.progress(plan.id) if step.state == "done"]
    if not dumps:
        console.print("no stacks were dumped for this incident")
    for dump in dumps:
        _print_dump(console, msgspec.json.decode(dump)["stacks"], wide=wide)


def _print_dump(console: Console, stacks: list[dict[str, Any]], *, wide: bool) -> None:
    """All workers of a dump in groups of equal stacks, or each text as py-spy wrote it.

    `stacks`: of the detail of a step `dump` (remediation/actions/dump.py). What is no output of py-spy, such as what the kernel said instead, is printed as it is.
    """
    from eagle_eye.activity.py_spy_text import parse_text  # the list of incidents does without
    from eagle_eye.activity.stack_groups import SampledProcess, group_stacks
    from eagle_eye.app.stack_printing import print_groups

    found = [(each, () if wide else parse_text(each["stack"])) for each in stacks]
    processes = {str(worker): SampledProcess(samples=(threads,)) for each, threads in found if threads for worker in each["workers"]}
    print_groups(console, group_stacks(processes), "worker", wide=False)
    for each in (each for each, threads in found if not threads):
        console.print(f"[bold]{_shown(', '.join(each['workers']))}[/]")
        console.print(printable(each["stack"], keep="\n\t"), highlight=False, markup=False, soft_wrap=True)


def _entry_text(entry: TimelineEntry, *, wide: bool) -> str:
    """The text of a line of the timeline. `wide`: in full, with the JSON of a step, unless it is very long (stacks)."""
    return entry.text if wide and len(entry.text) <= WIDEST else _short(_step_text(entry))


def _step_text(entry: TimelineEntry) -> str:
    """A step with the JSON of its command or answer as text: `workers node-a/0, node-a/1; exclude node-a`."""
    head, brace, rest = entry.text.partition("{")
    if entry.what != "step" or not brace:
        return entry.text
    try:
        fields = msgspec.json.decode(brace + rest)
    except UNREADABLE:
        return entry.text
    if isinstance(fields.get("stacks"), list):
        return f"{head}{len(fields['stacks'])} different stacks (--stacks prints them)"
    shown = [f"{name.replace('_', ' ')} {_field(fields[name])}" for name in STEP_FIELDS if fields.get(name) not in (None, [], -1, "")]
    return f"{head}{'; '.join(shown)}".rstrip(": ")


def _field(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    more = f" and {len(value) - NAMED} more" if len(value) > NAMED else ""
    return ", ".join(brief_worker(str(name)) for name in value[:NAMED]) + more


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text)} characters)"


def _find(ledger: "Ledger", name: str) -> IncidentRecord:
    """An incident by its id or the beginning of it. Raises LedgerError when there is none, or more than one."""
    exact = ledger.incident_record(name)
    if exact is not None:
        return exact
    matching = ledger.incidents(beginning=name, limit=10_000)
    if len(matching) != 1:
        raise LedgerError(f"{len(matching) or 'no'} incidents begin with {name!r}; `eagle-eye incidents` lists them")
    return matching[0]


def _culprits(incident: Incident) -> str:
    """Culprits with their confidence."""
    return ", ".join(f"{culprit.entity} ({culprit.confidence:.0%})" for culprit in incident.culprits) or "unknown"
