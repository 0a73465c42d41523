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
        before = {incident.id: incident for incident in opened}
        now = dict(before)
        touched: dict[str, None] = {}
        for finding in _in_order(findings):
            name = _fold(finding, now, topology)
            if name:
                touched[name] = None
        into = _absorbed(now, topology) if touched else {}
        touched.update(dict.fromkeys(into.values()))
        time = max((finding.time for finding in findings), default=0.0)
        for name in touched:
            if name not in into:
                yield from _revised(msgspec.structs.replace(now[name], time=time), before.get(name), topology)
        for name, wider in into.items():
            if name in before:
                yield _closed(before[name], wider, time)


def _in_order(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Causes before consequences; the revisions of one finding stay in their order."""
    first: dict[str, tuple[int, float, str]] = {}
    for finding in findings:
        first.setdefault(finding.id, strength(finding))
    yield from sorted(findings, key=lambda finding: (first[finding.id], finding.revision))


def _fold(finding: Finding, now: dict[str, Incident], topology: Topology) -> str:
    """Put a finding where it belongs; the id of that incident, '' if nothing is to be told."""
    name = next((name for name, incident in now.items() if finding.id in incident.findings), "")
    if name:
        now[name] = _with(now[name], (finding,))
        return name
    if not finding.active:
        return ""  # the end of something that no open incident holds
    fitting = [name for name, incident in now.items() if incident.active and _fits(finding, incident, topology)]
    if fitting:
        name = min(fitting, key=lambda name: strength(roots_of(now[name].parts, topology)[0]))
        now[name] = _with(now[name], (finding,))
        return name
    incident = _opened(finding)
    now[incident.id] = incident
    return incident.id


def _fits(finding: Finding, incident: Incident, topology: Topology) -> bool:
    if incident.job != finding.job or not incident.parts:
        return False
    for root in roots_of(incident.parts, topology):
        if are_one_fault(root, finding) or explains(root, finding, topology) or explains(finding, root, topology):
            return True
    return False


def _absorbed(now: dict[str, Incident], topology: Topology) -> dict[str, str]:
    """Incidents whose fault turns out to follow from another's: id → id of the one that now holds their findings."""
    into: dict[str, str] = {}
    for name in list(now):
        wider = next((other for other in now if other not in into and _follows(now[name], now[other], topology)), "")
        if wider:
            into[name] = wider
            now[wider] = _with(now[wider], now[name].parts)
    return into


def _follows(narrow: Incident, wide: Incident, topology: Topology) -> bool:
    if narrow.id == wide.id or narrow.job != wide.job or not narrow.parts or not wide.parts:
        return False
    return _explained(roots_of(narrow.parts, topology), wide, topology)


def _revised(incident: Incident, before: Incident | None, topology: Topology) -> Iterator[Incident]:
    revised = compose(incident, topology)
    if before is None or _says(revised) != _says(before):
        yield msgspec.structs.replace(revised, revision=incident.revision + 1)


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


def _explained(roots: Sequence[Finding], wider: Incident, topology: Topology) -> bool:
    """Every root follows from the wider incident's fault, and not the other way round."""
    causes = roots_of(wider.parts, topology)
    return all(
        any(explains(cause, root, topology) and strength(cause) < strength(root) for cause in causes) for root in roots
    )


def _with(incident: Incident, findings: Sequence[Finding]) -> Incident:
    """The incident with newer or further findings."""
    parts = {part.id: part for part in incident.parts}
    for finding in findings:
        if finding.id in parts or finding.id not in incident.findings or finding.active:
            parts[finding.id] = finding
    ids = tuple(dict.fromkeys((*incident.findings, *(finding.id for finding in findings))))
    return msgspec.structs.replace(incident, parts=tuple(parts.values()), findings=ids)


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
