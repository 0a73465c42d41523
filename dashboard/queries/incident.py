"""One incident, whole: what is broken, why we think so, what was done or waits for approval, and what it costs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from dashboard.errors import NothingFound
from dashboard.sources import SPAN_S, Sources
from eagle_eye.errors import UNREADABLE
from eagle_eye.ledger import IncidentRecord, Ledger, TimelineEntry, VerdictRecord
from eagle_eye.ledger.changes_before import changes_before
from eagle_eye.ledger.entity_history import entity_histories, history_text
from eagle_eye.types import Evidence, Finding, Incident, IncidentNote, Kind, Outcome, Plan, Progress, Rival, Silence

from .evidence import Plot, plots_of
from .incident_cost import cost_of_one, costs_of, work, work_of
from .incidents import IncidentRow, line_of, waits
from .job import ASIDE
from .names import node_of

SIMILAR = 8
LOOKED_AT = 1000
"""Incidents among which similar ones are looked for."""
LAST_WORDS = "its last words: "
"""How the detector of exits begins a line of a worker's output (detectors/exits.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow:
    """One line of proof, and what it proves."""

    text: str
    finding: str
    """Kind of the finding, e.g. worker.exited; '' if it is the incident's own."""
    entity: str
    time: float
    metric: str = ""
    value: float | None = None
    threshold: float | None = None
    supports: bool = True
    """It is among the incident's own evidence; False: it only belongs to one of its findings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """One plan with everything that became of it."""

    plan: Plan
    digest: str
    state: str
    """waiting, held, refused, intended, done, failed, stale, expired or made."""
    predicted: dict[str, float]
    actual: dict[str, float]
    outcome: Outcome | None
    verdicts: tuple[VerdictRecord, ...]
    """The last verdict of each guard, in the order of the verdicts."""
    progress: tuple[Progress, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Workers that stood at the same place when they were asked."""

    workers: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentDetails:
    """Everything about one incident."""

    incident: Incident
    state: str
    opened: float
    changed: float
    found_s: float | None
    """From the fault's beginning until the incident was opened; None: unknown, a clock jumped."""
    lasted_s: float | None
    """The same until it came into its present state."""
    timeline: tuple[TimelineEntry, ...]
    """Oldest first."""
    plans: tuple[PlanRow, ...]
    """Newest first."""
    waiting: PlanRow | None
    """The plan that waits for approval, with the digest to decide on."""
    rivals: tuple[Rival, ...]
    evidence: tuple[EvidenceRow, ...]
    """The incident's own first."""
    log_lines: tuple[str, ...]
    """Last output of processes."""
    stacks: tuple[Stack, ...]
    """Merged; those that stand alone come first."""
    notes: tuple[IncidentNote, ...]
    silences: tuple[Silence, ...]
    """That cover it now."""
    bill_gpu_hours: float
    """As it is listed: queries/incident_cost.py."""
    cost_text: str
    """The same as an amount of money; '' if no price is configured."""
    superseded_by: str
    """Id of the incident as which a failed one came back; '' if there is none."""
    work: str
    """Unit of the job's throughput."""
    job_over: bool
    """The job of the incident has ended."""
    histories: tuple[str, ...]
    """Of the accused: earlier incidents of all jobs, and repairs, a sentence each."""
    changes: tuple[str, ...]
    """What changed in the days before: of its job, and of the accused nodes or of all of its job's, a sentence each."""
    similar: tuple[IncidentRow, ...]
    """Earlier and later ones of the same cause, those of the same culprit or job first."""
    nodes: tuple[str, ...]
    """Of its culprits."""

    @property
    def last(self) -> PlanRow | None:
        """The newest plan that repairs something: neither stacks nor notifications."""
        return next((each for each in self.plans if each.plan.action not in ASIDE), None)


def story(sources: Sources, name: str) -> IncidentDetails:
    """`name`: an id, or the beginning of one that is like no other. Raises NothingFound."""
    return sources.remembered(("story", name), lambda: _story(sources, name))


def plots(sources: Sources, told: IncidentDetails) -> tuple[Plot, ...]:
    """Evidence as plots around the incident; none where the history holds nothing of that time."""
    incident = told.incident
    return sources.remembered(("plots", incident.id, incident.revision, sources.now()), lambda: plots_of(sources, incident, told.nodes), seconds=SPAN_S)


def _story(sources: Sources, name: str) -> IncidentDetails:
    ledger = sources.ledger
    record = _found(ledger, name)
    incident, now = record.incident, sources.clock.now()
    plans = tuple(_plan_lines(ledger, incident.id, now))
    waiting = next((each for each in plans if each.state == "waiting"), None)
    nodes = tuple(dict.fromkeys(_nodes(ledger, incident)))
    evidence, later = tuple(_evidence(incident)), cost_of_one(ledger, incident.id)
    return IncidentDetails(
        incident=incident, state=str(record.state), opened=record.opened, changed=record.changed,
        found_s=ledger.seconds_between(incident.since, record.opened), lasted_s=ledger.seconds_between(incident.since, record.changed), timeline=ledger.timeline(incident.id), plans=plans,
        waiting=waiting, rivals=incident.rivals, evidence=tuple(line for line in evidence if not line.text.startswith(LAST_WORDS)),
        log_lines=tuple(dict.fromkeys(line.text.removeprefix(LAST_WORDS) for line in evidence if line.text.startswith(LAST_WORDS))),
        stacks=tuple(_stacks(plans)), notes=ledger.notes(incident.id),
        silences=tuple(each for each in ledger.silences(at=now) if each.covers(incident.job, nodes, incident.cause)),
        bill_gpu_hours=later.bill(incident), cost_text=sources.config.cost.text(later.bill(incident)), superseded_by=later.superseded_by(record), work=work_of(work(ledger), incident.job), job_over=bool(incident.job) and incident.job not in ledger.jobs(),
        histories=tuple(history_text(history, record) for history in entity_histories(ledger, record)), changes=changes_before(ledger, record), similar=tuple(_similar(ledger, record)), nodes=nodes,
    )  # fmt: skip


def _found(ledger: Ledger, name: str) -> IncidentRecord:
    record = ledger.incident_record(name) if name else None
    if record is not None:
        return record
    matching = [kept for kept in ledger.incidents(limit=10_000) if name and kept.incident.id.startswith(name)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise NothingFound(f"{len(matching)} incidents begin with {name!r}: use the whole id")
    raise NothingFound(f"the ledger has no incident {name!r}. It may be older than the ledger keeps, or the link is of another deployment.")


def _nodes(ledger: Ledger, incident: Incident) -> Iterator[str]:
    gpus: dict[str, str] | None = None
    for culprit in incident.culprits:
        entity = culprit.entity
        if entity.kind is Kind.GPU and gpus is None:
            gpus = {place.gpu: place.node for facts in ledger.jobs().values() for place in facts.layout.placements if place.gpu}
        node = node_of(entity, gpus or {})
        if node:
            yield node


# --- plans -------------------------------------------------------------------------------------------------------------


def _plan_lines(ledger: Ledger, incident: str, now: float) -> Iterator[PlanRow]:
    said: dict[str, dict[str, VerdictRecord]] = {}
    for kept in ledger.verdicts(incident=incident):
        last = said.setdefault(kept.plan, {})
        last.pop(kept.verdict.guard, None)
        last[kept.verdict.guard] = kept
    outcomes = {outcome.plan: outcome for outcome in ledger.outcomes(incident=incident, limit=1000)}
    for plan in ledger.plans(incident=incident, limit=1000):
        outcome, verdicts = outcomes.get(plan.id), tuple(said.get(plan.id, {}).values())
        progress = ledger.progress(plan.id)
        yield PlanRow(
            plan=plan, digest=plan.digest, state=_plan_state(ledger, plan, outcome, verdicts, progress, now), outcome=outcome,
            predicted=dict(outcome.predicted) if outcome else {}, actual=dict(outcome.actual) if outcome else {}, verdicts=verdicts, progress=progress,
        )  # fmt: skip


def _plan_state(ledger: Ledger, plan: Plan, outcome: Outcome | None, verdicts: Sequence[VerdictRecord], progress: Sequence[Progress], now: float) -> str:
    if outcome is not None:
        return outcome.state
    if progress:
        return "intended"
    if waits(ledger, plan, now):
        return "waiting"
    words = {type(each.verdict).__name__ for each in verdicts}
    if "Refuse" in words:
        return "refused"
    if plan.expires <= now:
        return "expired"
    return "held" if "Hold" in words else "made"


def _stacks(plans: Iterable[PlanRow]) -> Iterator[Stack]:
    """What the workers did when they were asked; the answer of the action `dump` is kept as the detail of its step."""
    for line in plans:
        for step in line.progress if line.plan.action == "dump" else ():
            if step.state == "done":
                yield from _stacks_of(step.detail)


def _stacks_of(detail: str) -> Iterator[Stack]:
    try:
        kept: dict[str, Any] = msgspec.json.decode(detail)
        yield from (Stack(workers=tuple(each["workers"]), text=str(each["stack"])) for each in kept["stacks"])
    except (*UNREADABLE, KeyError, TypeError):
        yield Stack(workers=(), text=detail)


# --- evidence ----------------------------------------------------------------------------------------------------------


def _evidence(incident: Incident) -> Iterator[EvidenceRow]:
    """Each line once: the incident's own, then what else its findings contain."""
    told: dict[str, tuple[Finding, Evidence]] = {}
    for each in incident.parts:
        for proof in each.evidence:
            told.setdefault(proof.text, (each, proof))  # whoever says it first says it with its number
    own: dict[str, Evidence] = {}
    for proof in incident.evidence:
        own.setdefault(proof.text, proof)
    for proof in own.values():
        finding = told[proof.text][0] if proof.text in told else None
        yield EvidenceRow(
            text=proof.text, finding=finding.kind if finding else "", entity=str(finding.entity) if finding else "", time=finding.since if finding else incident.since,
            metric=proof.metric, value=proof.value, threshold=proof.threshold,
        )  # fmt: skip
    for text, (finding, proof) in told.items():
        if text not in own:
            yield EvidenceRow(
                text=text, finding=finding.kind, entity=str(finding.entity), time=finding.since, metric=proof.metric, value=proof.value,
                threshold=proof.threshold, supports=False,
            )  # fmt: skip


def _similar(ledger: Ledger, record: IncidentRecord) -> Iterator[IncidentRow]:
    """Of the same cause; those of the same culprit first, then of the same job, then the newest."""
    mine = record.incident
    blamed = {culprit.entity.name for culprit in mine.culprits}
    same = [kept for kept in ledger.incidents(limit=LOOKED_AT) if kept.incident.cause == mine.cause and kept.incident.id != mine.id]

    def rank(kept: IncidentRecord) -> tuple[bool, bool, float]:
        theirs = {culprit.entity.name for culprit in kept.incident.culprits}
        return (not blamed & theirs, kept.incident.job != mine.job, -kept.opened)

    shown = sorted(same, key=rank)[:SIMILAR]
    later = costs_of(ledger, shown)
    yield from (line_of(kept, later) for kept in shown)
