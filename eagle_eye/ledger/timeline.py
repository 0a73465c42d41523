"""The timeline of one incident: everything that the ledger holds about it, in the order of time."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from eagle_eye.durations import seconds_between
from eagle_eye.types import Allow, Incident

from .finding_table import FindingTable
from .incident_table import IncidentTable
from .plan_table import PlanTable
from .records import TimelineEntry, VerdictRecord
from .suppression_table import SuppressionTable

CLOCK_JUMPED = "clock.jumped"
"""Notice that the server's clock was set by so much that no duration across it is known; its time is that of the clock as it was set."""


class Timeline(IncidentTable, FindingTable, PlanTable, SuppressionTable):
    """Joins incidents, findings, plans and what operators did."""

    def timeline(self, incident: str) -> tuple[TimelineEntry, ...]:
        """Everything about an incident, oldest first; nothing if there is no such incident."""
        revisions = self.incident(incident)
        if not revisions:
            return ()
        moments = [*self._diagnosis_entries(revisions), *self._plan_entries(incident), *self._operator_entries(incident)]
        moments += [TimelineEntry(time=change.time, what="state", text=str(change.state)) for change in self.states(incident)]
        return tuple(sorted(dict.fromkeys(moments), key=lambda moment: moment.time))

    def seconds_between(self, began: float, ended: float) -> float | None:
        """Seconds between two times that the ledger holds; None: they are not known, for a clock jumped in between."""
        jumped = any(notice.time <= ended for notice in self.notices(since=began, name=CLOCK_JUMPED))
        return None if jumped else seconds_between(began, ended)

    def _diagnosis_entries(self, revisions: tuple[Incident, ...]) -> Iterator[TimelineEntry]:
        last = revisions[-1]
        yield TimelineEntry(time=last.since, what="fault", text="the fault began")
        for finding in self.findings_of(last.findings):
            proof = finding.evidence[0].text if finding.evidence else ""
            text = f"{finding.kind} at {finding.entity}, by {finding.detector} (score {finding.score:.2f}): {proof}"
            yield TimelineEntry(time=finding.time, what="finding", text=text)
        for revision in revisions:
            yield TimelineEntry(time=revision.time, what="incident", text=_revision_text(revision))

    def _plan_entries(self, incident: str) -> Iterator[TimelineEntry]:
        for plan in reversed(self.plans(incident=incident, limit=1000)):
            own = ", which the job allowed itself" if plan.own else ""
            yield TimelineEntry(time=plan.made, what="plan", text=f"{plan.action}{own}: {plan.reason}")
            for step in self.progress(plan.id):
                detail = f": {step.detail}" if step.detail else ""
                yield TimelineEntry(time=step.time, what="step", text=f"{step.step} {step.state}{detail}")
            for approval in self.approvals(digest=plan.digest):
                verb = "approved" if approval.approved else "refused"
                yield TimelineEntry(time=approval.time, what="approval", text=f"{approval.person} {verb} {plan.action}")
        yield from _verdict_entries(self.verdicts(incident=incident))
        for outcome in self.outcomes(incident=incident, limit=1000):
            detail = f": {outcome.detail}" if outcome.detail else ""
            yield TimelineEntry(time=outcome.time, what="outcome", text=f"{outcome.action} {outcome.state}{detail}")

    def _operator_entries(self, incident: str) -> Iterator[TimelineEntry]:
        for note in self.notes(incident):
            yield TimelineEntry(time=note.time, what="note", text=f"{note.person}: {note.text}")
        for breaker in self.breakers():
            if breaker.incident == incident:
                opened = f"opened for {breaker.action} on {breaker.job}: {breaker.reason}"
                yield TimelineEntry(time=breaker.since, what="breaker", text=opened)
                if breaker.until is not None:
                    yield TimelineEntry(time=breaker.until, what="breaker", text=f"closed by {breaker.person}")


def _verdict_entries(verdicts: Iterable[VerdictRecord]) -> Iterator[TimelineEntry]:
    """Every hold and refusal with its reason; guards that let the same plan pass in a row are one line."""
    for (_, passed), same in groupby(verdicts, key=lambda kept: (kept.plan, isinstance(kept.verdict, Allow))):
        kept = list(same)
        if passed:
            yield TimelineEntry(time=kept[-1].time, what="verdict", text=f"allowed by {', '.join(each.verdict.guard for each in kept)}")
            continue
        for each in kept:
            verdict = type(each.verdict).__name__.lower()
            yield TimelineEntry(time=each.time, what="verdict", text=f"{each.verdict.guard}: {verdict}, {each.verdict.reason}")


def _revision_text(revision: Incident) -> str:
    culprits = ", ".join(str(culprit.entity) for culprit in revision.culprits) or "unknown"
    over = "" if revision.active else "; over"
    return f"revision {revision.revision}: {revision.cause}, {culprits} ({revision.severity.upper()}){over}"
