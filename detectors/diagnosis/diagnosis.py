"""Findings → incidents: a pure fold. One fault makes many findings; the operator is notified of one incident."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from eagle_eye.types import Evidence, Finding, Incident, Severity, Topology, digest_of

from .finding_relations import Roots, are_one_fault, explains, strength, tested_for
from .incident_composition import COUNT, PARTS_KEPT, compose, roots_of
from .path_test_evidence import TESTED, without_tests
from .shared_faults import with_victims
from .telemetry_doubt import DOUBTFUL, TRUSTED, TelemetryDoubt, doubts_of

IDS_KEPT = 1024
"""Findings that an incident names; further ones are counted by kind."""


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
        """New and revised incidents. All findings are of one mark, `opened` are the incidents that are open now.

        One of the revision that it had already is no news: only what it counts, or which of its findings are over, has changed.
        """
        jobs = {finding.job for finding in findings}
        cases = [_Case(incident, topology) for incident in opened if incident.job in jobs]
        for finding in _in_order(findings):
            _fold(finding, cases, topology)
        _absorb(cases, topology)
        _doubt(cases, findings, topology)
        time = max((finding.time for finding in findings), default=0.0)
        yield from with_victims([incident for case in cases for incident in case.revised(time)], opened, topology)


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
        self.more = dict(incident.more)
        self._roots: Roots | None = None
        self.doubt = TRUSTED

    @property
    def roots(self) -> Roots:
        """The findings that are the fault."""
        if self._roots is None:
            self._roots = Roots(roots_of(without_tests(self.parts.values()), self._topology) if self.parts else (), self._topology)
        return self._roots

    def take(self, findings: Iterable[Finding]) -> None:
        """Newer revisions, or further findings; of a storm that changes nothing about the fault only the number."""
        for finding in findings:
            known = finding.id in self.parts
            beside = not known and finding.active and self._roots is not None and self._roots.beside(finding)
            minor = beside or (not known and self._roots is not None and self._roots.explain(finding))
            fresh = self._name(finding)
            if minor and len(self.parts) >= PARTS_KEPT and finding.kind not in TESTED:
                self.more[finding.kind] = self.more.get(finding.kind, 0) + fresh
                continue
            if known or fresh or finding.active:
                self.parts[finding.id] = finding
            if beside and self._roots is not None:
                self._roots.add(finding)
            elif not minor:
                self._roots = None
        self.touched = True

    def _name(self, finding: Finding) -> bool:
        """True for one that was not in it before; beyond the ids that are kept, its first revision counts."""
        if finding.id in self.ids:
            return False
        if len(self.ids) < IDS_KEPT:
            self.ids[finding.id] = None
            return True
        return finding.revision == 1

    def revised(self, time: float) -> Iterator[Incident]:
        """The incident as it is now, if that is news."""
        if not self.touched or (self.part_of and self._fresh):
            return
        before = self.incident
        if self.part_of:
            yield _closed(before, self.part_of, time)
            return
        now = msgspec.structs.replace(
            before, time=time, parts=tuple(self.parts.values()), findings=tuple(self.ids), more=self.more
        )
        revised = compose(now, self._topology, self.doubt)
        if self._fresh or _says(revised) != _says(before):
            yield msgspec.structs.replace(revised, revision=before.revision + 1)
        elif revised.more != before.more or _over(revised) != _over(before):
            yield revised  # no news, but the count goes on, and a consequence that is over must not be taken for the fault once that is over, too


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
        asked = tested_for(finding)  # a test belongs to the incident for which it was asked, also where a stronger one of the job is open
        case = min(fitting, key=lambda case: (case.incident.id != asked, strength(case.roots.first)), default=None)
    if case is None:
        if finding.kind not in TESTED:  # a test is evidence of an incident, and none by itself
            cases.append(_Case(_opened(finding), topology, fresh=True))
    else:
        case.take((finding,))


def _fits(finding: Finding, case: _Case, topology: Topology) -> bool:
    """The case's fault explains it, is explained by it, or is the same."""
    if case.incident.job != finding.job or not case.roots:
        return False
    return any(
        are_one_fault(root, finding) or explains(root, finding, topology) or explains(finding, root, topology)
        for root in case.roots.near(finding)
    )


def _absorb(cases: Sequence[_Case], topology: Topology) -> None:
    """Where one incident's fault turns out to follow from another's, that one takes its findings."""
    for narrow in cases:
        wider = next((wide for wide in cases if not wide.part_of and _follows(narrow, wide, topology)), None)
        if wider is not None:
            wider.take(tuple(narrow.parts.values()))
            narrow.part_of, narrow.touched = wider.incident.id, True


def _doubt(cases: Sequence[_Case], findings: Sequence[Finding], topology: Topology) -> None:
    """What is known against the telemetry of each job. Where that has changed, the incidents that rest on it are revised."""
    known = doubts_of(((case.incident.job, case.parts.values()) for case in cases), topology)
    changed = [finding for finding in findings if finding.kind in DOUBTFUL]
    for case in cases if known or changed else ():
        case.doubt = known.get(case.incident.job, TRUSTED)
        news = TelemetryDoubt(tuple(finding for finding in changed if finding.job == case.incident.job), topology)
        if news and case.incident.active and news.concerns(case.roots, tuple(case.parts.values())):
            case.touched = True


def _follows(narrow: _Case, wide: _Case, topology: Topology) -> bool:
    """Every root of one follows from the fault of the other, and not the other way round."""
    if narrow is wide or not (narrow.touched or wide.touched) or narrow.incident.job != wide.incident.job:
        return False
    if not narrow.roots or not wide.roots:
        return False
    return all(
        any(explains(cause, root, topology) and strength(cause) < strength(root) for cause in wide.roots.near(root))
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
        part_of=wider,
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


def _over(incident: Incident) -> set[str]:
    """Its findings that are."""
    return {part.id for part in incident.parts if not part.active}


def _says(incident: Incident) -> tuple[object, ...]:
    """What a revision is for; a bill that has grown alone is none, nor a storm that is not twice as large."""
    return (
        incident.cause,
        incident.culprits,
        incident.severity,
        incident.findings if not incident.more else (),
        (sum(incident.more.values()) + len(incident.parts)).bit_length(),
        tuple(line for line in incident.evidence if line.metric != COUNT),
        incident.active,
    )
