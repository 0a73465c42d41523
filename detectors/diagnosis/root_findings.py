"""The findings that are an incident's fault, so that a storm of others is compared with few of them."""

from collections.abc import Iterator, Sequence

from eagle_eye.topology import node_of
from eagle_eye.types import Finding, Topology

from .finding_relations import are_one_fault, explains, strength

ROOTS_KEPT = 256
"""Of a fault in more places the first ones stand for all."""


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
