"""What the launchers' tests of the network and of storage found, as evidence of the incident for which they were run; alone they make none, and accuse nobody."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from eagle_eye.frames import Frame
from eagle_eye.ranges import Seconds, Share
from eagle_eye.tested_causes import CUT, FOR_INCIDENT, NETWORK_TESTED, STORAGE_TESTED
from eagle_eye.types import Claim, Entity, Event, Evidence, Kind

from .features.active_claims import ActiveClaims
from .features.path_results import LauncherPaths, network_evidence, storage_evidence

KINDS = (NETWORK_TESTED, STORAGE_TESTED)
TESTS_KEPT = 16
"""Of one job, whose results are still coming in."""
RESULTS_KEPT = 8192


@dataclass
class _Test:
    """One test whose results come in."""

    kind: str
    began: float
    job: str
    testers: frozenset[str]
    incident: str
    """For which it was asked; '' if nobody said."""
    results: list[Event] = field(default_factory=list)
    told: set[str] = field(default_factory=set)


@dataclass
class PathTests:
    """Claims network.tested and storage.tested of a job once all launchers that were asked have told what they found, or some have not for too long.

    Withdrawn soon after: a test says how it was at that moment, and the incident keeps what it said. The end of the job drops what is still coming in, since launchers that have
    ended answer nobody.
    """

    settle_s: Seconds = 8.0
    """So long after its first result a test is judged by those that have come in."""
    stays_s: Seconds = 10.0
    """So long it stays a finding."""
    cut_score: Share = 0.9
    """Score where something that was tested does not work; it accuses nobody all the same."""
    open_score: Share = 0.7
    """Score where all of it works."""
    _tests: dict[tuple[str, str], _Test] = field(default_factory=dict, init=False, repr=False)
    """(kind, id of the test) → its results."""
    _judged: dict[tuple[str, str], None] = field(default_factory=dict, init=False, repr=False)
    """Results of these came too late."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in ("job.finished", "job.failed"):
                self._tests.clear()
                yield from self._claims.withdraw_all(event.time, f"the job has {event.name.removeprefix('job.')}")
            elif event.name in KINDS:
                self._take(event, frame.time)
        if frame.tick:
            yield from self._withdraw_old(frame.time)
            for key, test in list(self._tests.items()):
                if frame.time - test.began >= self.settle_s or (test.kind == NETWORK_TESTED and test.told >= test.testers):
                    del self._tests[key]
                    self._judged[key] = None
                    yield from self._judge(test, frame.time)
            for old in list(self._judged)[: max(0, len(self._judged) - TESTS_KEPT)]:
                del self._judged[old]

    def _take(self, event: Event, now: float) -> None:
        key = (event.name, event.attributes.get("test", ""))
        test = self._tests.get(key)
        if test is None and key not in self._judged and len(self._tests) < TESTS_KEPT:
            test = self._tests[key] = _Test(event.name, now, event.job, frozenset(event.attributes.get("testers", "").split()), event.attributes.get("incident", ""))
        if test is not None and len(test.results) < RESULTS_KEPT:
            test.results.append(event)
            test.told.add(event.node)

    def _judge(self, test: _Test, now: float) -> Iterator[Claim]:
        evidence = _evidence(test)
        if evidence:
            cut = any(line.status == CUT for line in evidence)
            score = self.cut_score if cut else self.open_score
            entity = Entity(kind=Kind.JOB, name=test.job)
            yield from self._claims.withdraw(entity, test.kind, now, "it was tested again")
            yield from self._claims.report(Claim(entity=entity, kind=test.kind, score=score, since=now, evidence=tuple(evidence)))

    def _withdraw_old(self, now: float) -> Iterator[Claim]:
        for (entity, kind), claim in list(self._claims.open.items()):
            if now - claim.since >= self.stays_s:
                yield from self._claims.withdraw(entity, kind, now, "the test is over")


def _evidence(test: _Test) -> Sequence[Evidence]:
    """Its first line says for which incident it was asked."""
    if test.kind == STORAGE_TESTED:
        lines = storage_evidence(test.results)
    else:
        lines = network_evidence([LauncherPaths.of(event) for event in test.results], sorted(test.testers - test.told))
    if not test.incident or not lines:
        return lines
    return (msgspec.structs.replace(lines[0], metric=f"{FOR_INCIDENT}{test.incident}"), *lines[1:])
