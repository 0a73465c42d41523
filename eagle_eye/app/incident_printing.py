"""Prints what the ledger knows, for people and as JSON."""

import time
from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.markup import escape

from eagle_eye.app.printing import plain_table, print_json
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.types import Incident, Outcome, Plan

LONGEST = 160
"""Characters of a line of the timeline."""


def print_incidents(console: Console, ledger: Ledger, *, open_only: bool, job: str, limit: int, json_lines: bool) -> None:
    """The list, the newest first."""
    kept = ledger.incidents(open_only=open_only, job=job, limit=limit)
    if json_lines:
        for each in kept:
            print_json(each.incident)
        return
    if not kept:
        console.print("no incident" + (" is open" if open_only else " so far"))
        return
    table = plain_table("id", "opened", "job", "cause", "culprit", "severity", "state")
    for each in kept:
        incident = each.incident
        cells = (incident.id, _local_time(each.opened), incident.job, incident.cause, _culprits(incident), incident.severity.upper(), each.state)
        table.add_row(*(escape(cell) for cell in cells))
    console.print(table)


def print_incident(console: Console, ledger: Ledger, name: str, *, json_lines: bool, stacks: bool) -> None:
    """One incident: what, who, why we think so, what else it could be, and what was done. A prefix of the id will do."""
    kept = _find(ledger, name)
    if stacks:
        _print_stacks(console, ledger, kept.incident.id)
        return
    if json_lines:
        for revision in ledger.incident(kept.incident.id):
            print_json(revision)
        for outcome in ledger.outcomes(incident=kept.incident.id):
            print_json(outcome)
        return
    incident = kept.incident
    console.print(f"[bold]{escape(incident.cause)}[/]  {escape(_culprits(incident))}   {incident.severity.upper()}, {kept.state}")
    console.print(f"job {escape(incident.job)}   began {_local_time(incident.since)}   found {kept.opened - incident.since:.2f} s later   cost so far {incident.bill_gpu_hours:.4f} GPU-hours\n")
    console.print("[bold]evidence[/]")
    for line in incident.evidence:
        console.print(f"  {line.text}", highlight=False, markup=False)
    if incident.rivals:
        console.print("[bold]it could also be[/]")
        for rival in incident.rivals:
            console.print(f"  {rival.cause}: {rival.apart}", highlight=False, markup=False)
    console.print("[bold]timeline[/]")
    for moment in ledger.timeline(incident.id):
        console.print(f"  {moment.time - incident.since:+9.3f} s  {moment.what:<9} {_short(moment.text)}", highlight=False, markup=False, soft_wrap=True)
    _print_alternatives(console, ledger.plans(incident=incident.id, limit=1000))
    _print_predictions(console, ledger.outcomes(incident=incident.id, limit=1000))


def _print_alternatives(console: Console, plans: Sequence[Plan]) -> None:
    """Of each plan that was chosen among several: all of them, with their prices, and why the others lost."""
    weighed = [plan for plan in reversed(plans) if plan.alternatives]
    if not weighed:
        return
    console.print("[bold]alternatives[/]  (cost and what it saves against doing nothing, in weighted worker-seconds)")
    for plan in weighed:
        console.print(f"  {plan.action:<22} {plan.cost:>12.6g} {plan.benefit:>12.6g}  chosen: {plan.reason}", highlight=False, markup=False, soft_wrap=True)
        for loser in sorted(plan.alternatives, key=lambda each: (each.cost is None, each.cost or 0.0)):
            price = f"{'impossible':>12} {'':>12}" if loser.cost is None else f"{loser.cost:>12.6g} {loser.benefit or 0.0:>12.6g}"
            console.print(f"  {loser.action:<22} {price}  {loser.why}", highlight=False, markup=False, soft_wrap=True)


def _print_predictions(console: Console, outcomes: Sequence[Outcome]) -> None:
    """What was said before each action, beside what came of it. What the job did by itself was not foretold."""
    told = [outcome for outcome in reversed(outcomes) if outcome.predicted or outcome.actual]
    if not told:
        return
    console.print("[bold]predicted and actual[/]")
    for outcome in told:
        console.print(f"  {outcome.action}, {outcome.state}", highlight=False, markup=False)
        for name in dict.fromkeys([*outcome.predicted, *outcome.actual]):
            said, came = outcome.predicted.get(name), outcome.actual.get(name.removesuffix("_high"))
            console.print(f"    {name:<18} {_figure(said)} {_figure(came)}".rstrip(), highlight=False, markup=False)


def _figure(value: float | None) -> str:
    return " " * 12 if value is None else f"{value:>12.6g}"


def _print_stacks(console: Console, ledger: Ledger, incident: str) -> None:
    """What the workers did when they were asked; those that stand alone come first."""
    dumps = [step.detail for plan in ledger.plans(incident=incident) if plan.action == "dump" for step in ledger.progress(plan.id) if step.state == "done"]
    if not dumps:
        console.print("no stacks were taken for this incident")
    for dump in dumps:
        for each in msgspec.json.decode(dump)["stacks"]:
            console.print(f"[bold]{escape(', '.join(each['workers']))}[/]")
            console.print(each["stack"], highlight=False, markup=False, soft_wrap=True)


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]} … ({len(text)} characters)"


def _find(ledger: Ledger, name: str) -> IncidentRecord:
    """An incident by its id or the beginning of it. Raises LedgerError when there is none, or more than one."""
    exact = ledger.incident_record(name)
    if exact is not None:
        return exact
    matching = [kept for kept in ledger.incidents(limit=10_000) if kept.incident.id.startswith(name)]
    if len(matching) != 1:
        raise LedgerError(f"{len(matching) or 'no'} incidents begin with {name!r}; `eagle-eye incidents` lists them")
    return matching[0]


def _culprits(incident: Incident) -> str:
    """Who did it, with how sure we are."""
    return ", ".join(f"{culprit.entity} ({culprit.confidence:.0%})" for culprit in incident.culprits) or "unknown"


def _local_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
