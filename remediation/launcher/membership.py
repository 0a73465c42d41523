"""Who takes part in a job, in which order, and whose word counts."""

from collections.abc import Collection, Iterable

import msgspec

from eagle_eye.types import Layout, RankPlacement


class Member(msgspec.Struct, kw_only=True):
    """A launcher that has joined the job."""

    node: str
    address: str
    """host:port of its control channel."""
    slots: int
    """Workers that it can start."""
    boot: str
    """Random id of the launcher's process."""
    connected: bool = True


def voters(layout: Layout) -> tuple[str, ...]:
    """The launchers whose acknowledgement counts for the next epoch: all but the excluded."""
    return tuple(node for node in layout.launchers if node not in layout.excluded)


class VoteCount(msgspec.Struct, frozen=True, kw_only=True):
    """The count of votes for an epoch, among the launchers of the last valid layout."""

    votes: int
    total: int

    @property
    def majority(self) -> bool:
        return 2 * self.votes > self.total

    @property
    def half(self) -> bool:
        """Exactly half: the leader's grant decides."""
        return 2 * self.votes == self.total


def count_votes(last: Layout | None, acknowledged: Collection[str]) -> VoteCount:
    """Count the votes; before the first layout there is nobody to ask."""
    entitled = voters(last) if last is not None else ()
    if not entitled:
        return VoteCount(votes=1, total=1)
    return VoteCount(votes=sum(node in acknowledged for node in entitled), total=len(entitled))


def election_order(last: Layout | None, members: Iterable[Member], own_node: str) -> list[Member]:
    """Connected members in the election order: the last layout's, then this node, then by name."""
    order = list(last.launchers) if last is not None else []

    def position(member: Member) -> tuple[int, bool, str]:
        known = order.index(member.node) if member.node in order else len(order)
        return known, member.node != own_node, member.node

    return sorted((member for member in members if member.connected), key=position)


def places(run: str, members: Iterable[Member]) -> tuple[RankPlacement, ...]:
    """Ranks: members in order × their slots."""
    found: list[RankPlacement] = []
    for member in members:
        for slot in range(member.slots):
            rank = len(found)
            worker = f"{run}/{member.node}/{slot}"
            found.append(RankPlacement(worker=worker, node=member.node, rank=rank, local_rank=slot, dp=rank))
    return tuple(found)


def precedes(last: Layout, node: str, other: str) -> bool:
    """Whether a node comes before another one in the election order."""
    order = voters(last)
    return node in order and (other not in order or order.index(node) < order.index(other))
