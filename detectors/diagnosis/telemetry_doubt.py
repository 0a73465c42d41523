"""Doubt about telemetry: a finding that rests on readings which are stuck, missing, late, of a wrong clock or of wrong timers counts less.

What a process ends with, what a launcher or a driver says by itself rests on no reading, and keeps its score. Doubt never makes anything surer:
it takes from a score, and from what an incident says of a culprit, and names nobody.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from detectors.collector_health import failing_collectors
from eagle_eye.topology import gpu_of, node_of
from eagle_eye.types import Entity, Evidence, Finding, Kind, Topology

from .finding_relations import cause_of

STUCK = ("gpu.reading_stuck", "node.reading_stuck", "job.reading_stuck")
FAILING, LATE, SKEWED = "collector.failing", "telemetry.late", "clock.skewed"
TIMERS = "timers.doubtful"
DOUBTFUL = frozenset({*STUCK, FAILING, LATE, SKEWED, TIMERS})
"""Kinds of findings that are about telemetry itself."""
HALF = 0.5
"""Of a score whose readings are stuck, missing or late."""
ORDER = 0.7
"""Of a score for which somebody was taken for the first mover, where a clock was put right to tell who was."""
CLOCK_S = 3.0
"""So near to each other two times of which one was put right may have been the other way round (eagle_eye/node_clocks.py)."""


@dataclass(frozen=True, slots=True)
class ReadingSources:
    """What findings of a kind rest on."""

    collectors: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
    """Beside those that their evidence names."""
    recent: bool = False
    """They would not be told if telemetry that is on its way were here."""


_STEPS = ReadingSources(frozenset({"training", "process", "host"}), frozenset({"cpu_percent"}))
"""Compute times less the time in the run queue, on a host whose load is known."""
_MARKS = ReadingSources(frozenset({"training", "process"}), recent=True)
"""That a worker's marks stand still."""
_MACHINE = ReadingSources(frozenset({"gpu", "host"}))
_LINK, _MOUNT = ReadingSources(frozenset({"fabric"})), ReadingSources(frozenset({"storage"}))
"""What they are measured by. A port that is down, or a mount that hangs, was told as such, and may be why its collector fails."""
TIMED = frozenset({"worker.slow", "worker.slower", "worker.unequal_compute"})
"""What the timers of that worker alone say."""
RESTS_ON: Mapping[str, ReadingSources] = {
    **dict.fromkeys(("worker.slow", "worker.slower", "worker.unequal_compute", "host.contended", "cpu.throttled"), _STEPS),
    **dict.fromkeys(("worker.stalled", "worker.stopped", "input.stalled"), _MARKS),
    **dict.fromkeys(("node.unusual", "node.unforeseen", "node.unlike_peers", "gpu.unlike_peers"), _MACHINE),
    **dict.fromkeys(("link.degraded", "link.errors"), _LINK),
    "storage.slow": _MOUNT,
}
"""Kind of finding → what it is made of. One that is not here rests on the metrics that its evidence names, if any."""


@dataclass(frozen=True)
class TelemetryDoubt:
    """The open findings about telemetry of one job, and what they take from others."""

    findings: tuple[Finding, ...] = ()
    topology: Topology = field(default_factory=Topology)

    def __bool__(self) -> bool:
        return bool(self.findings)

    def share(self, root: Finding, parts: Sequence[Finding]) -> float:
        """What is left of its score, 0 to 1: the strongest doubt counts, and two are no more than it. `parts`: of its incident."""
        return min((share for share, _, _ in self._why(root, parts)), default=1.0)

    def lines(self, roots: Iterable[Finding], parts: Sequence[Finding]) -> Iterator[Evidence]:
        """One line for each finding about telemetry that takes from a root."""
        told = {(doubt.id, line.text): (share, line) for root in roots for share, doubt, line in self._why(root, parts)}
        for share, line in told.values():
            yield Evidence(text=f"in doubt: {line.text}: what rests on it counts {_words(share)}", event=line.event)

    def concerns(self, roots: Iterable[Finding], parts: Sequence[Finding]) -> bool:
        """One of them is in doubt."""
        return any(True for root in roots for _ in self._why(root, parts))

    def _why(self, root: Finding, parts: Sequence[Finding]) -> Iterator[tuple[float, Finding, Evidence]]:
        """What each of those that take from it leaves, and its line of evidence that says why."""
        for doubt in self.findings:
            if doubt.id == root.id or root.kind in DOUBTFUL or not doubt.evidence:
                continue
            if doubt.kind == SKEWED:
                if self._order_matters(doubt, root, parts):
                    yield ORDER, doubt, doubt.evidence[0]
            elif self._same_machine(doubt.entity, root.entity) and (line := _rests_on(root, doubt)) is not None:
                yield HALF, doubt, line

    def _order_matters(self, doubt: Finding, root: Finding, parts: Sequence[Finding]) -> bool:
        """It is taken for the first mover of two alike on two nodes, one of which has that clock."""
        mine = node_of(root.entity, self.topology)
        return any(
            doubt.entity.name in (mine, theirs) and theirs not in ("", mine)
            for part in parts
            if part.id != root.id and part.since > root.since and part.since - root.since <= CLOCK_S and cause_of(part)[0] == cause_of(root)[0]
            for theirs in (node_of(part.entity, self.topology),)
        )

    def _same_machine(self, doubted: Entity, other: Entity) -> bool:
        """The worker, the GPU, or the node; all of the job where the doubt is of the job."""
        if doubted.kind is Kind.JOB:
            return True
        if doubted.kind is Kind.WORKER:
            return doubted == other
        if doubted.kind is Kind.GPU and other.kind is not Kind.NODE:
            gpu = gpu_of(other, self.topology)
            if gpu:
                return gpu == doubted.name
        node = node_of(doubted, self.topology)
        return bool(node) and node == node_of(other, self.topology)


TRUSTED = TelemetryDoubt()
"""Nothing is known against any telemetry."""


def doubts_of(parts: Iterable[tuple[str, Iterable[Finding]]], topology: Topology) -> dict[str, TelemetryDoubt]:
    """Job → what is known against its telemetry; without those of which nothing is. `parts`: jobs with the findings of an open incident of theirs."""
    known: dict[str, dict[str, Finding]] = {}
    for job, findings in parts:
        for finding in findings:
            if finding.kind in DOUBTFUL and finding.active:
                known.setdefault(job, {})[finding.id] = finding
    return {job: TelemetryDoubt(tuple(found.values()), topology) for job, found in known.items()}


def _rests_on(root: Finding, doubt: Finding) -> Evidence | None:
    """The line of the doubt that is about what the finding is made of; None: it is about something else, as where a collector leaves out one other worker or job alone."""
    sources = RESTS_ON.get(root.kind, ReadingSources())
    if doubt.kind == FAILING:
        return next((each.line for each in failing_collectors(doubt) if each.name in sources.collectors and each.concerns(root.entity, root.job)), None)
    if doubt.kind == LATE:
        return doubt.evidence[0] if sources.recent else None
    if doubt.kind == TIMERS:
        return doubt.evidence[0] if root.kind in TIMED else None
    read = sources.metrics | {line.metric for line in root.evidence}
    return next((line for line in doubt.evidence if line.metric and line.metric in read), None)


def _words(share: float) -> str:
    return "half" if share == HALF else f"{share:.0%}".replace("%", " %")
