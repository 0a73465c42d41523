"""The quorum: who may vote for an epoch, who has, and whether that is enough."""

from collections.abc import Collection

import msgspec

from eagle_eye.types import Layout


class VoteCount(msgspec.Struct, frozen=True, kw_only=True):
    """The votes for an epoch, among the launchers of the last valid layout."""

    votes: int
    total: int
    trained: bool = True
    """A node that has workers in that layout is among them. Launchers without any cannot know that it does not train on."""

    @property
    def majority(self) -> bool:
        return self.trained and 2 * self.votes > self.total

    @property
    def grantable(self) -> bool:
        """Exactly half, or a majority of launchers without workers: the leader's grant decides."""
        return 2 * self.votes == self.total or (not self.trained and 2 * self.votes > self.total)


def voters(layout: Layout) -> tuple[str, ...]:
    """The launchers whose votes count for the next epoch: all but the evicted."""
    return tuple(node for node in layout.launchers if node not in layout.excluded)


def count_votes(last: Layout | None, acknowledged: Collection[str]) -> VoteCount:
    """Count the votes; before the first layout nobody has to be asked."""
    entitled = voters(last) if last is not None else ()
    if not entitled:
        return VoteCount(votes=1, total=1)
    trained = last is None or not last.nodes or any(node in acknowledged for node in last.nodes)
    return VoteCount(votes=sum(node in acknowledged for node in entitled), total=len(entitled), trained=trained)


class Quorum:
    """The vote on the epoch that is being formed."""

    def __init__(self, epoch: int) -> None:
        """`epoch`: the number of the last valid one."""
        self.promised = epoch
        """The highest epoch that any launcher is known to have voted for."""
        self.acknowledged: set[str] = set()
        """Launchers that voted for the epoch that is being formed."""
        self.prepared: set[str] = set()
        """Those, and the ones that have ended their workers and cannot vote."""
        self.withheld: dict[str, str] = {}
        """Launcher → why it could not vote, the last time that it was told."""
        self.ballot = ""
        """Digest of the layout that the launchers were first asked for."""
        self.ungranted = False
        """Half of the launchers may not even ask one another before the leader has agreed: no worker is ended before."""
        self.granted = False
        """The leader has agreed to the epoch that is being formed."""
        self.leader_asked = False
        """A grant is requested and not answered yet."""
        self.leader_answered = False
        """The last request reached the leader, even if it said no."""

    def open_vote(self, epoch: int) -> int:
        """Begin to count anew. Returns the number of the new epoch: above `epoch` and above every vote that is known."""
        self.promised = max(epoch, self.promised) + 1
        self.acknowledged, self.prepared = set(), set()
        self.leader_asked = self.ungranted = self.granted = False
        return self.promised

    def learn(self, promised: int) -> None:
        """A launcher has voted for this epoch."""
        self.promised = max(self.promised, promised)

    def count(self, last: Layout | None) -> VoteCount:
        """The votes so far. Where everybody is ready no vote is missed: nobody is left to whom another one could have been given."""
        everybody = last is not None and self.prepared.issuperset(voters(last))
        return count_votes(last, self.prepared if everybody else self.acknowledged)

    def agreed(self, layout: Layout) -> bool:
        """Every node of the layout is ready for it."""
        return self.prepared.issuperset(layout.nodes)
