"""Which link or switch connections break at: the narrowest part of the network that the ports which went down have in common.

A switch has no agent. That it is down is concluded: ports of two nodes or more went down together, these are all the nodes that the job has there, and it has others elsewhere,
whose ports are up. One port that went down before connections broke is the link itself. Nothing is restarted or evicted for it: plans know nodes, workers and GPUs.
"""

from collections.abc import Sequence

from eagle_eye.topology import node_of
from eagle_eye.types import Entity, Finding, Kind, Topology

DOWN = "link.down"
LATE_S = 10.0
"""Agents look at ports every 5 s: one may be seen to be down after what it broke. One that goes down later broke nothing of that."""
BROKEN_BY_LINKS = frozenset({"network error", "collective timeout", "job stalled"})
"""Causes (causes.py) that a link, or a switch, may have brought about."""
SWITCH_DOWN = "switch down"
"""The cause of ports alone that go down at one switch, while the job trains on."""


def broken_part(cause: str, since: float, parts: Sequence[Finding], topology: Topology) -> Entity | None:
    """The switch, else the one link, that explains an incident which began at `since`; None if none does."""
    if cause != "link down" and cause not in BROKEN_BY_LINKS:
        return None
    links = {part.entity for part in parts if part.kind == DOWN and part.since <= since + LATE_S}
    if switch := _switch(links, parts[0].job, topology) if links else "":
        return Entity(kind=Kind.SWITCH, name=switch)
    return next(iter(links)) if len(links) == 1 and cause in BROKEN_BY_LINKS else None


def _switch(links: set[Entity], job: str, topology: Topology) -> str:
    """Where all nodes of these links are, and all nodes of the job that are there have lost one; '' if there is none such."""
    nodes = {node_of(link, topology) for link in links}
    switches = {topology.nodes.get(node, "") for node in nodes}
    if len(nodes) < 2 or len(switches) != 1:
        return ""
    (switch,) = switches
    mine = {topology.workers[worker] for worker in topology.jobs.get(job, ()) if worker in topology.workers}
    here = {node for node in mine if topology.nodes.get(node, "") == switch}
    return switch if switch and here and here <= nodes and mine - here else ""
