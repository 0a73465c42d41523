"""Relations of findings: which one follows from which, and which are the root of an incident."""

import re
from collections.abc import Iterator, Sequence

from eagle_eye.error_statuses import BY_NAME
from eagle_eye.tested_causes import FOR_INCIDENT
from eagle_eye.topology import gpu_of, node_of
from eagle_eye.types import Finding, Severity, Topology
from eagle_eye.xids import Xid, xid_of_status

from .causes import CAUSES, OF_RULES, Cause
from .consequences import Consequence, Scope, Selection
from .path_test_evidence import TESTED, is_test_for

FOLLOWER_EARLY_S = 0.25
"""An end that is no symptom by its own words follows from another only if it did not come first, clocks aside."""
_BY_KIND: dict[str, list[tuple[int, Cause]]] = {}
for _order, _cause in enumerate(CAUSES):
    _BY_KIND.setdefault(_cause.kind, []).append((_order, _cause))
_BY_STATUS = {
    (kind, status): next((row for row in rows if not row[1].statuses or status in row[1].statuses), None)
    for kind, rows in _BY_KIND.items()
    for status in ("", *(status for _, cause in rows for status in cause.statuses))
    if all(cause.severe_xid is None for _, cause in rows)
}
"""(kind, status) → the row of the table, worked out in advance: a storm asks a million times."""
_UNKNOWN = (len(CAUSES) - 1, CAUSES[-1])
RULE = OF_RULES.removesuffix("*")
ROOTS_KEPT = 256
"""Of a fault in more places the first ones stand for all."""


def status_of(finding: Finding) -> str:
    """What the table of statuses calls it, '' if nothing."""
    for line in finding.evidence:
        if line.status:
            return line.status
    return ""


def tested_for(finding: Finding) -> str:
    """The incident for which a test was asked (path_tests.py), '' if it is none or nobody said."""
    told = (line.metric.removeprefix(FOR_INCIDENT) for line in finding.evidence if line.metric.startswith(FOR_INCIDENT))
    return next(told, "") if finding.kind in TESTED else ""


def cause_of(finding: Finding) -> tuple[int, Cause]:
    """What a finding would be if nothing explained it, and its place in the table."""
    kind = _row_kind(finding.kind)
    rows = _BY_KIND.get(kind)
    if rows is None:
        return _UNKNOWN
    status = status_of(finding)
    known = _BY_STATUS.get((kind, status)) or _BY_STATUS.get((kind, ""))
    return known or _by_xid(finding, rows)


def _row_kind(kind: str) -> str:
    """As the table of causes has it: one row speaks for all rules."""
    return OF_RULES if kind.startswith(RULE) else kind


def _by_xid(finding: Finding, rows: list[tuple[int, Cause]]) -> tuple[int, Cause]:
    worst = _worst_xid(finding) if any(cause.severe_xid is not None for _, cause in rows) else None
    fitting = (row for row in rows if row[1].severe_xid in (None, worst) and not row[1].statuses)
    return next(fitting, _UNKNOWN)


def _worst_xid(finding: Finding) -> Severity:
    """What the program did to its part of the GPU informs: its exception says more."""
    told = _xids_of(finding)
    return min((each.severity for each in told if not each.of_the_program), key=list(Severity).index, default=Severity.INFO)


def _xids_of(finding: Finding) -> list[Xid]:
    return [row for line in finding.evidence if (row := xid_of_status(line.status)) is not None]


def only_of_the_program(finding: Finding) -> bool:
    """A finding about Xids which all say that the program misused its part of the GPU."""
    told = _xids_of(finding)
    return bool(told) and all(each.of_the_program for each in told)


def strength(finding: Finding) -> tuple[int, float, str]:
    """Sorts findings: the strongest cause first, of equal ones the first mover."""
    return cause_of(finding)[0], finding.since, finding.id


def explains(cause: Finding, other: Finding, topology: Topology) -> bool:
    """`other` is a consequence of `cause`."""
    if cause.job != other.job or cause.id == other.id:
        return False
    row, later_s = cause_of(cause)[1], other.since - cause.since
    if is_test_for(row.word, other.kind):  # however long it took to be asked for
        return True
    if later_s > row.late_s:
        return False
    return any(
        later_s >= -(row.early_s if follows.early_s is None else follows.early_s) and _matches(follows, cause, other, topology)
        for follows in row.follows
    )


def _matches(follows: Consequence, cause: Finding, other: Finding, topology: Topology) -> bool:
    if follows.kind not in ("*", other.kind):
        return False
    if follows.where is Scope.WORKER and cause.entity != other.entity:
        return False
    if follows.where is Scope.NODE:
        node = node_of(cause.entity, topology)
        if not node or node != node_of(other.entity, topology):
            return False
    if follows.where is Scope.GPU and not _shares_gpu(cause, other, topology):
        return False
    if follows.what is Selection.ENDED and status_of(other) == "killed":
        return True
    return follows.what is Selection.ANY or _is_victim(cause, other)


def _shares_gpu(cause: Finding, other: Finding, topology: Topology) -> bool:
    """By the map of workers to GPUs; on the same node where it is not known."""
    gpus = gpu_of(cause.entity, topology), gpu_of(other.entity, topology)
    if all(gpus):
        return gpus[0] == gpus[1]
    node = node_of(cause.entity, topology)
    return bool(node) and node == node_of(other.entity, topology)


def _is_victim(cause: Finding, other: Finding) -> bool:
    """What a healthy worker shows when a peer dies: it says so itself, or it ends after the other."""
    status = status_of(other)
    if status in BY_NAME and BY_NAME[status].symptom:
        # its own cry came before its own end, unless that was brought on from outside
        return cause.entity != other.entity or status_of(cause) == "killed"
    if status not in ("exited abnormally", "other software error") or cause.entity == other.entity:
        return False
    return other.since >= cause.since - FOLLOWER_EARLY_S and not says_the_same(cause, other)


def says_the_same(one: Finding, other: Finding) -> bool:
    """Two workers that raise the same words, numbers aside, have the same fault; none is the other's victim."""
    return one.kind == other.kind == "worker.exception" and _words(one) == _words(other)


def _words(finding: Finding) -> str:
    said = finding.evidence[0].text.partition(" raised ")[2].partition(" in step ")[0]
    return re.sub(r"\d+", "#", said)


def are_one_fault(one: Finding, other: Finding) -> bool:
    """The same cause in several places at once."""
    cause = cause_of(one)[1]
    same = cause.word == cause_of(other)[1].word and one.job == other.job
    if cause.word == "unknown" or cause.kind == OF_RULES:
        same = same and one.kind == other.kind  # accuses nobody: ten thousand of a kind are one piece of news
    return same and abs(one.since - other.since) <= cause.together_s


def movers(parts: Sequence[Finding], topology: Topology) -> list[Finding]:
    """The findings that no other one explains, the strongest first; of two that explain each other the stronger."""
    ordered = sorted(parts, key=strength)
    roots: list[Finding] = []
    for part in ordered:
        if not any(_beats(root, part, topology) for root in roots):
            roots = [root for root in roots if not _beats(part, root, topology)]
            roots.append(part)
    return sorted(roots, key=strength)


def _beats(root: Finding, other: Finding, topology: Topology) -> bool:
    if not explains(root, other, topology):
        return False
    return not explains(other, root, topology) or strength(root) < strength(other)


class Roots:
    """All of one cause, the strongest first (relations.strength)."""

    def __init__(self, roots: Sequence[Finding], topology: Topology) -> None:
        self._roots = list(roots)
        self._topology = topology
        self._by_node: dict[str, list[Finding]] = {}
        for root in roots:
            self._by_node.setdefault(node_of(root.entity, topology), []).append(root)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._roots)

    def __len__(self) -> int:
        return len(self._roots)

    @property
    def first(self) -> Finding:
        """The strongest."""
        return self._roots[0]

    def near(self, finding: Finding) -> Iterator[Finding]:
        """The roots that a finding can have to do with.

        Relations are within a node or within the job, and all roots have one cause: the first and the last of them
        speak for those on other nodes.
        """
        yield self._roots[0]
        if len(self._roots) > 1:
            yield self._roots[-1]
            yield from self._by_node.get(node_of(finding.entity, self._topology), ())

    def explain(self, finding: Finding) -> bool:
        """It follows from one of them, and is not stronger: it changes nothing about the fault."""
        return any(
            root.active and strength(root) < strength(finding) and explains(root, finding, self._topology)
            for root in self.near(finding)
        )

    def beside(self, finding: Finding) -> bool:
        """It is the same fault in one more place, and neither stronger nor anybody's cause."""
        return (
            strength(self.first) < strength(finding)
            and self.first.active
            and are_one_fault(self.first, finding)
            and not any(explains(finding, root, self._topology) for root in self.near(finding))
        )

    def add(self, finding: Finding) -> None:
        """One more of the same fault."""
        if len(self._roots) < ROOTS_KEPT:
            self._roots.append(finding)
            self._by_node.setdefault(node_of(finding.entity, self._topology), []).append(finding)
