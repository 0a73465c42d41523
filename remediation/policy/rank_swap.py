"""The rank swap: an experiment that tells a fault of the program or its data from a fault of a node.

Two nodes exchange their ranks, and all workers start again. A fault that follows the ranks comes from what these ranks compute;
one that stays comes from the node. It is made only where both are possible, before a node is evicted for what was inferred.
"""

from collections import Counter
from collections.abc import Iterable

from eagle_eye.topology import node_of_worker
from eagle_eye.types import Layout


def swap_for(nodes: Iterable[str], layout: Layout | None) -> tuple[str, ...]:
    """The accused node and another one, that of the lower ranks first; () if there is no other.

    It has as many workers, so that no third node's ranks move; elastic workers keep no rank for long, and are not swapped.
    """
    accused = set(nodes)
    if layout is None or layout.in_place or len(accused) != 1:
        return ()
    workers = Counter(place.node for place in layout.placements)
    [node] = accused
    partner = next((other for other in reversed(layout.nodes) if other != node and workers[other] == workers[node]), None)
    return tuple(each for each in layout.nodes if each in (node, partner)) if partner is not None else ()


def exchanged(swap: tuple[str, ...], layout: Layout | None) -> bool:
    """Whether the job has done it: of the two nodes the second one has the lower ranks now. A launcher that does not know the rank swap only restarts."""
    nodes = layout.nodes if layout is not None else ()
    return set(swap) <= set(nodes) and nodes.index(swap[1]) < nodes.index(swap[0])


def after_swap(culprits: frozenset[str], swap: tuple[str, ...]) -> frozenset[str]:
    """Who is accused if the fault follows the ranks: the same places on the other node. Culprits read like "worker run/node/0" or "node n"."""
    if len(swap) != 2:
        return frozenset()
    return frozenset(_moved(culprit, dict([swap, swap[::-1]])) for culprit in culprits)


def _moved(culprit: str, to: dict[str, str]) -> str:
    kind, _, name = culprit.partition(" ")
    if kind == "node":
        return f"node {to.get(name, name)}"
    node = node_of_worker(name) if kind == "worker" else ""
    if node not in to:
        return culprit
    run, slot = name.rsplit(f"/{node}/", 1)
    return f"worker {run}/{to[node]}/{slot}"
