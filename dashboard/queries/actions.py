"""Actions with their predictions, and what held plans back: guards, breakers, silences, windows."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from dashboard.sources import Sources
from eagle_eye.plan_text import target_text
from eagle_eye.types import Allow, Breaker, Hold, Silence, Window

from .cluster import NOT_OVER
from .incident_cost import TOKENS, work, work_of

MOST = 500
MOST_INCIDENTS = 300
"""Newest ones whose verdicts are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionRow:
    """One plan that was begun, and what became of it."""

    time: float
    plan: str
    incident: str
    cause: str
    job: str
    action: str
    state: str
    """intended, done, failed or stale."""
    own: bool
    """The job did it itself, as `--heal` allowed."""
    targets: str
    """As text: what is evicted, restarted, rolled back."""
    predicted: dict[str, float]
    actual: dict[str, float]
    detection_s: float | None
    transition_s: float | None
    sub_healthy_s: float | None
    detail: str
    work: str = TOKENS
    """Unit of its throughput."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRow:
    """One guard, and how often it gave each verdict."""

    guard: str
    allowed: int
    held: int
    refused: int
    last_reason: str
    """Of its last hold or refusal; '' if it never held or refused."""
    last_time: float
    """NaN without one."""
    last_incident: str
    last_said: Literal["", "held", "refused"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveSuppressions:
    """What stands in the way of automatic action now."""

    breakers: tuple[Breaker, ...]
    silences: tuple[Silence, ...]
    windows: tuple[Window, ...]


def done(sources: Sources, *, since: float) -> tuple[ActionRow, ...]:
    """Newest first, at most MOST."""
    return sources.remembered(("actions", since), lambda: tuple(_done(sources, since)))


def guards(sources: Sources, *, since: float) -> tuple[GuardRow, ...]:
    """Those that have said no most often come first. Of incidents that were opened since, or are not over."""
    return sources.remembered(("guards", since), lambda: tuple(_guards(sources, since)))


def breakers(sources: Sources, *, open_only: bool = False) -> tuple[Breaker, ...]:
    """Newest first; open ones have no `until`."""
    return sources.ledger.breakers(at=sources.clock.now() if open_only else None)


def active_suppressions(sources: Sources) -> ActiveSuppressions:
    """Breakers, silences and windows that hold now, or have yet to begin."""
    ledger, now = sources.ledger, sources.clock.now()
    return ActiveSuppressions(breakers=ledger.breakers(at=now), silences=ledger.silences(at=now), windows=ledger.windows(at=now))


def _done(sources: Sources, since: float) -> Iterator[ActionRow]:
    ledger = sources.ledger
    causes: dict[str, tuple[str, str]] = {}
    units = work(ledger)
    for outcome in ledger.outcomes(since=since, limit=MOST):
        plan = ledger.plan(outcome.plan)
        if outcome.incident not in causes:
            record = ledger.incident_record(outcome.incident)
            causes[outcome.incident] = (record.incident.cause, record.incident.job) if record else ("", "")
        cause, job = causes[outcome.incident]
        yield ActionRow(
            time=outcome.time, plan=outcome.plan, incident=outcome.incident, cause=cause, job=job, action=outcome.action, state=outcome.state,
            own=plan.own if plan else False, targets="; ".join(target_text(target) for target in plan.targets) if plan else "",
            predicted=dict(outcome.predicted), actual=dict(outcome.actual), detection_s=outcome.detection_s, transition_s=outcome.transition_s,
            sub_healthy_s=outcome.sub_healthy_s, detail=outcome.detail, work=work_of(units, job),
        )  # fmt: skip


def _guards(sources: Sources, since: float) -> Iterator[GuardRow]:
    ledger = sources.ledger
    counts: dict[str, Counter[str]] = {}
    last: dict[str, tuple[float, str, str, str]] = {}
    recent = [record for record in ledger.incidents(limit=MOST_INCIDENTS) if record.opened >= since or record.state in NOT_OVER]
    for record in recent:
        for kept in ledger.verdicts(incident=record.incident.id):
            if kept.time < since:
                continue
            verdict = kept.verdict
            said = "allowed" if isinstance(verdict, Allow) else "held" if isinstance(verdict, Hold) else "refused"
            counts.setdefault(verdict.guard, Counter())[said] += 1
            if said != "allowed" and kept.time >= last.get(verdict.guard, (0.0,))[0]:
                last[verdict.guard] = (kept.time, verdict.reason, kept.incident, said)
    for guard in sorted(counts, key=lambda name: (-counts[name]["refused"], -counts[name]["held"], name)):
        time, reason, incident, said = last.get(guard, (float("nan"), "", "", ""))
        count = counts[guard]
        yield GuardRow(
            guard=guard, allowed=count["allowed"], held=count["held"], refused=count["refused"], last_reason=reason, last_time=time,
            last_incident=incident, last_said="" if not said else "held" if said == "held" else "refused",
        )  # fmt: skip
