"""Which launcher tests the network to which others: each to its neighbours in a ring, and some to those that are suspected. Never all to all."""

from collections.abc import Mapping, Sequence

from eagle_eye.rpc.control_messages import Body

from .coordinator import Coordinator

MOST_SUSPECTS = 4
SUSPECTED_BY = 16
"""Launchers that test the way to one that is suspected: it is to answer them all."""


def orders_of(coordinator: Coordinator, arguments: Body) -> dict[str, Body]:
    """Connected launcher → what it is told to test. Who is not connected is tested by the others, if it is of the last epoch, suspected, or was lost in silence, which the job may have gone on without."""
    suspects = [str(node) for node in arguments.get("suspects", ())]
    connected = [node for node, member in coordinator.members.items() if member.connected]
    known = {node: member.address for node, member in coordinator.members.items() if member.connected or member.silent or node in suspects}
    addresses = {**(coordinator.last.launchers if coordinator.last is not None else {}), **known}
    peers = peers_of({node: address for node, address in addresses.items() if address}, connected, suspects)
    words = {"test": str(arguments["test"]), "incident": str(arguments.get("incident", "")), "tests": list(arguments["tests"]), "testers": sorted(connected)}
    return {node: {**words, "peers": peers.get(node, {})} for node in connected}


def peers_of(addresses: Mapping[str, str], connected: Sequence[str], suspects: Sequence[str]) -> dict[str, dict[str, str]]:
    """Launcher → the others that it tests, with their addresses. `addresses`: of all that are known; `connected`: those that can be commanded.

    >>> peers_of({"a": "a:1", "b": "b:1", "c": "c:1", "d": "d:1", "e": "e:1"}, ["a", "b", "c"], ["d"])["b"]
    {'a': 'a:1', 'c': 'c:1', 'd': 'd:1'}
    """
    ring, testers = sorted(addresses), sorted(set(connected) & addresses.keys())
    wanted = {node: _beside(node, ring) for node in testers}
    for suspect in [node for node in dict.fromkeys(suspects) if node in addresses][:MOST_SUSPECTS]:
        for node in testers[:SUSPECTED_BY]:
            wanted[node] |= {suspect} - {node}
    return {node: {peer: addresses[peer] for peer in sorted(peers)} for node, peers in wanted.items() if peers}


def _beside(node: str, ring: Sequence[str]) -> set[str]:
    at = ring.index(node)
    return {ring[at - 1], ring[(at + 1) % len(ring)]} - {node}
