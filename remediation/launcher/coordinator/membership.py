"""The membership of a job: which launchers take part, in which order they coordinate, and which nodes are evicted."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from eagle_eye.types import Layout, NodePlace, RankPlacement
from remediation.launcher.parallel_sizes import DATA_PARALLEL, ParallelSizes

log = logging.getLogger(__name__)


class Member(msgspec.Struct, kw_only=True):
    """A launcher that has joined the job."""

    node: str
    address: str
    """host:port of its control channel."""
    slots: int
    """Workers that it can start."""
    gpus: tuple[str, ...] = ()
    """UUID of the GPU of each slot; empty where they are not known."""
    incarnation: str
    """Random id of the launcher's process."""
    place: NodePlace = NodePlace()
    """Where its node is, as the launcher knows; told with the next layout."""
    connected: bool = True
    silent: bool = False
    """Its session broke because nothing was heard of it: its process may be there."""

    def gpu_of(self, slot: int) -> str:
        """UUID of a slot's GPU, '' if it is not known."""
        return self.gpus[slot] if slot < len(self.gpus) else ""


def place_in(words: Mapping[str, Any]) -> NodePlace:
    """Where its node is, of what a launcher says; unknown where it says nothing, as an older one does, or what cannot be a place."""
    try:
        return msgspec.convert(words.get("place") or NodePlace(), NodePlace)
    except msgspec.ValidationError as error:
        log.warning("a launcher says where its node is, and it is not understood: %s", error)
        return NodePlace()


class Membership:
    """Kept by the coordinator. A member stays in it when its session breaks."""

    def __init__(self, own_node: str, max_nodes: int, evicted: Iterable[str]) -> None:
        self._own_node = own_node
        self._max_nodes = max_nodes
        self.members: dict[str, Member] = {}
        self.evicted: set[str] = set(evicted)
        """Nodes that take no part until they are released."""
        self.unused: set[str] = set()
        """Launchers of which it has been told that the running epoch goes on without them."""

    def add(self, member: Member) -> bool:
        """A launcher has joined; whether it is the process that was known before."""
        before = self.members.get(member.node)
        self.members[member.node] = member
        return before is not None and before.incarnation == member.incarnation

    def disconnect(self, node: str, *, silent: bool = False) -> bool:
        """A session is gone; False if there was none."""
        if not self.is_connected(node):
            return False
        self.members[node].connected, self.members[node].silent = False, silent
        return True

    def is_connected(self, node: str) -> bool:
        member = self.members.get(node)
        return member is not None and member.connected

    @property
    def connected(self) -> tuple[str, ...]:
        """Nodes with a session."""
        return tuple(node for node, member in self.members.items() if member.connected)

    def connected_without(self, evicted: set[str]) -> int:
        """How many nodes with a session would be left."""
        return sum(member.connected and member.node not in evicted for member in self.members.values())

    def ordered(self, last: Layout | None) -> list[Member]:
        """Members with a session, in the election order."""
        return election_order(last, self.members.values(), self._own_node)

    def eligible(self, last: Layout | None) -> list[Member]:
        """Those of them that an epoch may use."""
        return [member for member in self.ordered(last) if member.node not in self.evicted][: self._max_nodes]

    def missing(self, last: Layout | None) -> tuple[str, ...]:
        """Launchers of the last valid layout that have no session."""
        return tuple(node for node in last.voters if not self.is_connected(node)) if last is not None else ()


def election_order(last: Layout | None, members: Iterable[Member], own_node: str) -> list[Member]:
    """Connected members in the order in which they coordinate: the last layout's, then this node, then by name."""
    order = list(last.launchers) if last is not None else []

    def position(member: Member) -> tuple[int, bool, str]:
        known = order.index(member.node) if member.node in order else len(order)
        return known, member.node != own_node, member.node

    return sorted((member for member in members if member.connected), key=position)


def precedes(last: Layout, node: str, other: str) -> bool:
    """Whether a node comes before another one in the election order."""
    order = last.voters
    return node in order and (other not in order or order.index(node) < order.index(other))


def rank_order(last: Layout | None, members: Sequence[Member], swap: tuple[str, ...]) -> list[Member]:
    """Members in the order of their ranks: the last layout's, then the others as they come; two nodes may exchange their places."""
    before = last.nodes if last is not None and not last.in_place else ()
    ordered = sorted(members, key=lambda member: before.index(member.node) if member.node in before else len(before))
    places = {member.node: place for place, member in enumerate(ordered)}
    if len(swap) == 2 and places.keys() >= set(swap):
        one, other = places[swap[0]], places[swap[1]]
        ordered[one], ordered[other] = ordered[other], ordered[one]
    return ordered


def rank_placements(run: str, members: Iterable[Member], sizes: ParallelSizes = DATA_PARALLEL) -> tuple[RankPlacement, ...]:
    """Ranks: members in order × their slots."""
    slots = [(member, slot) for member in members for slot in range(member.slots)]
    found: list[RankPlacement] = []
    for rank, (member, slot) in enumerate(slots):
        dp, pp, tp = sizes.coordinates(rank, len(slots))
        worker = f"{run}/{member.node}/{slot}"
        found.append(RankPlacement(worker=worker, node=member.node, rank=rank, local_rank=slot, gpu=member.gpu_of(slot), dp=dp, pp=pp, tp=tp))
    return tuple(found)
