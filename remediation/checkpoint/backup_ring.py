"""Which node keeps the copies of which: each those of its predecessor, in the order of the layout's nodes."""

from collections.abc import Sequence


def neighbour_of(node: str, nodes: Sequence[str]) -> str:
    """The node that keeps what `node` has in memory; '' where there is no other one."""
    if node not in nodes or len(nodes) < 2:
        return ""
    return nodes[(nodes.index(node) + 1) % len(nodes)]


def predecessor_of(node: str, nodes: Sequence[str]) -> str:
    """The node whose copies `node` keeps; '' where there is no other one."""
    if node not in nodes or len(nodes) < 2:
        return ""
    return nodes[nodes.index(node) - 1]


def search_order(node: str, nodes: Sequence[str]) -> tuple[str, ...]:
    """All other nodes, the likeliest first: the neighbour, then those behind it. A rank that has moved may have its copy on any of them."""
    if node not in nodes:
        return tuple(nodes)
    at = nodes.index(node)
    return (*nodes[at + 1 :], *nodes[:at])
