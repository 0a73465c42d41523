"""What the places of a fault tell: nodes that share a switch or a rack that others of the job do not, and workers that send through a link.

Lines of evidence, and no verdict: a switch has no agent that could say that it is down.
"""

from collections.abc import Iterator, Mapping, Sequence

from eagle_eye.topology import node_of
from eagle_eye.types import Evidence, Finding, Kind, Topology

OF_A_SWITCH = frozenset({"node lost", "link down", "link degraded", "link errors"})
"""Causes (causes.py) of which a switch, or the power of a rack, may be the cause in turn."""
WORKERS_SHOWN = 8


def place_evidence(roots: Sequence[Finding], cause: str, topology: Topology) -> tuple[Evidence, ...]:
    """Lines about the roots of an incident; none where nothing is known."""
    if cause not in OF_A_SWITCH:
        return ()
    return (*_shared(roots, topology), *_senders(roots, topology))


def _shared(roots: Sequence[Finding], topology: Topology) -> Iterator[Evidence]:
    """The narrowest place that holds all nodes of the fault, and not all of the job."""
    nodes = {node for root in roots if (node := node_of(root.entity, topology))}
    others = {topology.workers[worker] for worker in topology.jobs.get(roots[0].job, ()) if worker in topology.workers} - nodes
    for kind, places in (("switch", topology.nodes), ("rack", topology.racks)):
        place = _only([places.get(node, "") for node in nodes])
        if len(nodes) > 1 and place and any(places.get(node, "") not in ("", place) for node in others):
            beside = sum(places.get(node, "") == place for node in others)
            yield Evidence(text=f"all {len(nodes)} nodes are at {kind} {place}, where {beside or 'no'} other node{'' if beside == 1 else 's'} of the job {'is' if beside == 1 else 'are'}")
            return


def _only(places: Sequence[str]) -> str:
    """The one that they all are; '' for several, or where one is not known."""
    return places[0] if len(set(places)) == 1 else ""


def _senders(roots: Sequence[Finding], topology: Topology) -> Iterator[Evidence]:
    """Workers of the job whose GPUs are next to a link of the fault."""
    links = {root.entity.name for root in roots if root.entity.kind is Kind.LINK}
    found = list(_workers_of(links, roots[0].job, topology)) if links else []
    for worker, link in found[:WORKERS_SHOWN]:
        yield Evidence(text=f"worker {worker} sends through {link}, the port next to its GPU")
    if len(found) > WORKERS_SHOWN:
        yield Evidence(text=f"and so do {len(found) - WORKERS_SHOWN} other workers through theirs")


def _workers_of(links: set[str], job: str, topology: Topology) -> Iterator[tuple[str, str]]:
    ports: Mapping[str, str] = topology.gpu_ports
    for worker in topology.jobs.get(job, ()) if ports else ():
        link = ports.get(topology.worker_gpus.get(worker, ""), "")
        if link in links:
            yield worker, link
