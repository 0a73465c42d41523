"""Which node keeps the copies of which: one behind another switch, and in another rack, wherever that is possible.

Nodes of one failure domain are put beside one another, the largest domains outside: n nodes in a ring. Each is kept by the one that is `shift` further, so that
each keeps those of exactly one other, and every launcher finds the same by itself. With a largest domain of m nodes, and c = min(m, n − m):

- m ≤ n/2 and c ≤ shift ≤ n − c: no two nodes of a domain are that far from each other, neither forwards nor around the end. No pair is in one domain.
- m > n/2: only n − m nodes are outside of the largest domain, and each keeps the copies of one: 2m − n pairs have to be within it. Such a shift has no more.

Thus no pair is in one domain if, and only if, none has more than half of the nodes. The ranges for hosts, switches and racks lie around n/2, one within the
other: a shift that is right for the narrowest is right for all. Where nothing is shared or known it is 1, and the ring is the layout's own order. Else it is
a power of two where one fits, so that it stays when a node is lost: then so many nodes at the most are kept by another one than before (where none fits: half), unless it alone
made a switch serve two racks, which turns the order.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from eagle_eye.types import Layout


class NodeDomain(NamedTuple):
    """What fails together with others; '' is unknown, and shared with nobody."""

    rack: str = ""
    switch: str = ""
    host: str = ""


RACK, SWITCH, HOST = range(3)
NAMES = ("rack", "switch", "host")


class BackupRing:
    """Of the nodes of one layout."""

    def __init__(self, nodes: Sequence[str], domains: Mapping[str, NodeDomain]) -> None:
        known = _filled([domains.get(node, NodeDomain()) for node in nodes])
        self._domains = dict(zip(nodes, known, strict=True))
        count = len(nodes)
        reach = max((min(largest, count - largest) for largest in _largest(known)), default=0)
        self._nodes, self._shift = tuple(nodes), 1
        if reach > 1:
            levels = (RACK, SWITCH, HOST) if _within(known, SWITCH, RACK) else (SWITCH, RACK, HOST)
            self._nodes = tuple(sorted(nodes, key=lambda node: [(not self._domains[node][level], self._domains[node][level]) for level in levels]))
            power = 1 << (reach - 1).bit_length()
            self._shift = power if power <= count - reach else count // 2
        self._at = {node: at for at, node in enumerate(self._nodes)}

    @classmethod
    def of(cls, layout: Layout) -> "BackupRing":
        """By the places that the layout says, and the hosts of its launchers."""
        nodes = layout.nodes
        return cls(nodes, {node: _domain_of(node, layout) for node in nodes})

    @property
    def first(self) -> str:
        """Whom all nodes ask where one has to know something of all; '' of no nodes."""
        return self._nodes[0] if self._nodes else ""

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[str]:
        return iter(self._nodes)

    def __contains__(self, node: object) -> bool:
        return node in self._at

    @property
    def shift(self) -> int:
        """How far a node is from the one that keeps its copies."""
        return self._shift

    def neighbour_of(self, node: str) -> str:
        """The node that keeps what `node` has in memory; '' where there is no other one."""
        return self._from(node, self._shift)

    def predecessor_of(self, node: str) -> str:
        """The node whose copies `node` keeps; '' where there is no other one."""
        return self._from(node, -self._shift)

    def search_order(self, node: str) -> tuple[str, ...]:
        """All other nodes, the likeliest first: the neighbour, then those behind it. A rank that has moved may have its copy on any of them."""
        if node not in self._at:
            return self._nodes
        at = self._at[node] + self._shift
        return tuple(other for other in (*self._nodes[at % len(self._nodes) :], *self._nodes[: at % len(self._nodes)]) if other != node)

    def shared(self, node: str) -> str:
        """What fails with both this node and the one that keeps its copies, such as 'switch leaf-1': the narrowest; '' if nothing is known."""
        neighbour = self.neighbour_of(node)
        own, other = self._domains.get(node, NodeDomain()), self._domains.get(neighbour, NodeDomain())
        return next((f"{NAMES[level]} {own[level]}" for level in (HOST, SWITCH, RACK) if own[level] and own[level] == other[level]), "")

    def _from(self, node: str, distance: int) -> str:
        if node not in self._at or len(self._nodes) < 2:
            return ""
        return self._nodes[(self._at[node] + distance) % len(self._nodes)]


def _domain_of(node: str, layout: Layout) -> NodeDomain:
    place, host = layout.places.get(node), layout.launchers.get(node, "").rpartition(":")[0]
    return NodeDomain(place.rack, place.switch, host) if place is not None else NodeDomain(host=host)


def _filled(domains: Sequence[NodeDomain]) -> list[NodeDomain]:
    """Who shares a host with others hangs at their switch, and who shares a switch stands in their rack, if that is one."""
    switches, racks = _only(domains, HOST, SWITCH), _only(domains, SWITCH, RACK)
    hung = [domain._replace(switch=domain.switch or switches.get(domain.host, "")) for domain in domains]
    return [domain._replace(rack=domain.rack or racks.get(domain.switch, "")) for domain in hung]


def _only(domains: Iterable[NodeDomain], inner: int, outer: int) -> dict[str, str]:
    """Inner domain → the outer one that it lies in; without those that lie in several, or in none that is known."""
    found: dict[str, set[str]] = {}
    for domain in domains:
        if domain[inner] and domain[outer]:
            found.setdefault(domain[inner], set()).add(domain[outer])
    return {name: outers.pop() for name, outers in found.items() if len(outers) == 1}


def _within(domains: Sequence[NodeDomain], inner: int, outer: int) -> bool:
    """Whether each inner domain lies in one outer one."""
    only = _only(domains, inner, outer)
    return all(domain[inner] in only for domain in domains if domain[inner] and domain[outer])


def _largest(domains: Sequence[NodeDomain]) -> Iterable[int]:
    """Of each kind of domain, the number of nodes in the largest."""
    for level in (RACK, SWITCH, HOST):
        yield max(Counter(domain[level] for domain in domains if domain[level]).values(), default=1)
