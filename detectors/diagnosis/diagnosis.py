"""Findings → incidents: a pure fold. One fault makes many findings; the operator is told of one incident."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from eagle_eye.types import Evidence, Finding, Incident, Severity, Topology, digest_of

from .relations import are_one_fault, explains, strength
from .verdict import compose, roots_of


@dataclass(frozen=True)
class Diagnosis:
    """Implements `protocols.Diagnoser`. It keeps nothing: an incident carries the findings that it was made of.

    A finding joins the open incident of its job that explains it, that it explains, or whose fault it shares; else
    it opens one. So a worker's death that comes after its victims' cries takes their incident over, and a node that
    turns out to be lost that of its workers. An incident is closed when the findings that are its fault are.
    """

    def diagnose(
        self, opened: Sequence[Incident], findings: Sequence[Finding], topology: Topology, /
    ) -> Iterable[Incident]:
        """New and revised incidents. All findings are of one mark, `opened` are the incidents that are open now."""
        jobs = {finding.job for finding in findings}
        cases = [_Case(incident, topology) for incident in opened if incident.job in jobs]
        for finding in _in_order(findings):
            _fold(finding, cases, topology)
        _absorb(cases, topology)
        time = max((finding.time for finding in findings), default=0.0)
        for case in cases:
            yield from case.told(time)


class _Case:
    """An incident while findings are folded into it."""

    def __init__(self, incident: Incident, topology: Topology, *, fresh: bool = False) -> None:
        self.incident = incident
        self.touched = fresh
        self.part_of = ""
        """Id of the incident that explains this one."""
        self._fresh = fresh
        self._topology = topology
        self.parts = {part.id: part for part in incident.parts}
        self.ids = dict.fromkeys(incident.findings)
        self._roots: list[Finding] | None = None

    @property
    def roots(self) -> list[Finding]:
        """The findings that are the fault."""
        if self._roots is None:
            self._roots = roots_of(list(self.parts.values()), self._topology) if self.parts else []
        return self._roots

    def take(self, findings: Iterable[Finding]) -> None:
        """Newer revisions, or further findings."""
        for finding in findings:
            known = finding.id in self.parts
            if known or finding.id not in self.ids or finding.active:
                self.parts[finding.id] = finding
            self.ids[finding.id] = None
            if known or not self._is_consequence(finding):
                self._roots = None
        self.touched = True

    def _is_consequence(self, finding: Finding) -> bool:
        """It changes nothing about the fault; a thousand of them must cost no more than a thousand looks."""
        if self._roots is None:
            return False
        return any(
            root.active and strength(root) < strength(finding) and explains(root, finding, self._topology)
            for root in self._roots
        )

    def told(self, time: float) -> Iterator[Incident]:
        """The incident as it is now, if that is news."""
        if not self.touched or (self.part_of and self._fresh):
            return
        before = self.incident
        if self.part_of:
            yield _closed(before, self.part_of, time)
            return
        now = msgspec.structs.replace(before, time=time, parts=tuple(self.parts.values()), findings=tuple(self.ids))
        revised = compose(now, self._topology)
        if self._fresh or _says(revised) != _says(before):
            yield msgspec.structs.replace(revised, revision=before.revision + 1)


def _in_order(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Causes before consequences; the revisions of one finding stay in their order."""
    first: dict[str, tuple[int, float, str]] = {}
    for finding in findings:
        first.setdefault(finding.id, strength(finding))
    yield from sorted(findings, key=lambda finding: (first[finding.id], finding.revision))


def _fold(finding: Finding, cases: list[_Case], topology: Topology) -> None:
    """Put a finding where it belongs."""
    case = next((case for case in cases if finding.id in case.ids), None)
    if case is None and not finding.active:
        return  # the end of something that no open incident holds
    if case is None:
        fitting = [case for case in cases if case.incident.active and _fits(finding, case, topology)]
        case = min(fitting, key=lambda case: strength(case.roots[0]), default=None)
    if case is None:
        cases.append(_Case(_opened(finding), topology, fresh=True))
    else:
        case.take((finding,))


def _fits(finding: Finding, case: _Case, topology: Topology) -> bool:
    """The case's fault explains it, is explained by it, or is the same."""
    if case.incident.job != finding.job:
        return False
    return any(
        are_one_fault(root, finding) or explains(root, finding, topology) or explains(finding, root, topology)
        for root in case.roots
    )


def _absorb(cases: Sequence[_Case], topology: Topology) -> None:
    """Where one incident's fault turns out to follow from another's, that one takes its findings."""
    for narrow in cases:
        wider = next((wide for wide in cases if not wide.part_of and _follows(narrow, wide, topology)), None)
        if wider is not None:
            wider.take(tuple(narrow.parts.values()))
            narrow.part_of, narrow.touched = wider.incident.id, True


def _follows(narrow: _Case, wide: _Case, topology: Topology) -> bool:
    """Every root of one follows from the fault of the other, and not the other way round."""
    if narrow is wide or not narrow.roots or not (narrow.touched or wide.touched):
        return False
    return narrow.incident.job == wide.incident.job and all(
        any(explains(cause, root, topology) and strength(cause) < strength(root) for cause in wide.roots)
        for root in narrow.roots
    )


def _closed(incident: Incident, wider: str, time: float) -> Incident:
    """It is a part of another incident now, and accuses nobody by itself."""
    line = Evidence(text=f"explained by incident {wider}")
    return msgspec.structs.replace(
        incident,
        revision=incident.revision + 1,
        culprits=(),
        evidence=(*incident.evidence, line),
        active=False,
        time=time,
    )


def _opened(finding: Finding) -> Incident:
    return Incident(
        id=digest_of(finding.job, finding.id),
        revision=0,
        job=finding.job,
        cause="unknown",
        culprits=(),
        severity=Severity.INFO,
        findings=(finding.id,),
        evidence=(),
        since=finding.since,
        time=finding.time,
        parts=(finding,),
    )


def _says(incident: Incident) -> tuple[object, ...]:
    """What a revision is for; a bill that has grown alone is none."""
    return (
        incident.cause,
        incident.culprits,
        incident.severity,
        incident.findings,
        incident.evidence,
        incident.active,
    )
