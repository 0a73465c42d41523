"""The quorum: who may vote for an epoch, who has, and whether that is enough."""

from collections.abc import Collection, Iterable

import msgspec

from eagle_eye.types import Layout, digest_of


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


class Electorate(msgspec.Struct, frozen=True, kw_only=True):
    """The launchers of a layout: once it is valid, more than half of them have to vote for the next one."""

    epoch: int
    ballot: str
    """Digest of the layout that was voted for."""
    voters: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    """That have workers in it."""

    def count(self, acknowledged: Collection[str]) -> VoteCount:
        if not self.voters:
            return VoteCount(votes=1, total=1)
        trained = not self.nodes or any(node in acknowledged for node in self.nodes)
        return VoteCount(votes=sum(node in acknowledged for node in self.voters), total=len(self.voters), trained=trained)


def electorate_of(layout: Layout, ballot: str = "") -> Electorate:
    """`ballot`: that was voted for, if it is not the layout's own digest."""
    return Electorate(epoch=layout.epoch, ballot=ballot or digest_of(layout), voters=layout.voters, nodes=layout.nodes)


def weakest(counts: Iterable[VoteCount]) -> VoteCount:
    """Of several electorates that must all agree: the one that is furthest from it."""
    return min(counts, key=lambda count: (count.majority, count.grantable), default=VoteCount(votes=1, total=1))


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
        self.open = False
        """That layout is neither valid nor given up."""
        self.given_up: set[str] = set()
        """Ballots of this coordinator since the last valid epoch that will never be valid."""
        self.undecided: dict[str, tuple[Electorate, ...]] = {}
        """Launcher → layouts that it has voted for, or knows to be valid, as it told last: those that we do not know may be valid, and others go on from them."""
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
        if self.open:
            self.given_up.add(self.ballot)
        self.open = True
        self.promised = max(epoch, self.promised) + 1
        self.acknowledged, self.prepared = set(), set()
        self.leader_asked = self.ungranted = self.granted = False
        return self.promised

    def learn(self, promised: int) -> None:
        """A launcher has voted for this epoch."""
        self.promised = max(self.promised, promised)

    def hear(self, node: str, electorates: Iterable[Electorate]) -> None:
        """A launcher has voted for these, or knows them to be valid, and for no others that may still be."""
        self.undecided[node] = tuple(electorates)

    @property
    def lost_ballots(self) -> set[str]:
        """Of this coordinator: none of them will ever be valid, if it gives up now."""
        return self.given_up | ({self.ballot} if self.open else set())

    def decide(self, epoch: int) -> None:
        """An epoch is valid: whatever was voted for before it is not, and never will be."""
        self.open = False
        self.given_up.clear()
        self.undecided = {node: tuple(each for each in told if each.epoch > epoch) for node, told in self.undecided.items()}

    def electorates(self, last: Layout | None) -> list[Electorate]:
        """All that have to agree to the next epoch: the last valid layout's, and those of layouts that may be valid without our knowledge.

        Each valid epoch thus has votes of every one before it: two sides never begin one of the same number.
        """
        base = [electorate_of(last, ballot="valid")] if last is not None else []
        known, own = last.epoch if last is not None else 0, {self.ballot, *self.given_up}
        told = {each.ballot: each for electorates in self.undecided.values() for each in electorates}
        return base + [each for ballot, each in told.items() if each.epoch > known and ballot not in own]

    def entitled(self, last: Layout | None) -> tuple[str, ...]:
        """Launchers whose votes count."""
        return tuple(dict.fromkeys(node for each in self.electorates(last) for node in each.voters))

    def reached(self, last: Layout | None, connected: Collection[str]) -> VoteCount:
        """What the votes of these launchers would come to."""
        return weakest(each.count(connected) for each in self.electorates(last))

    def count(self, last: Layout | None) -> VoteCount:
        """The votes so far. Where everybody is ready no vote is missed: nobody is left to whom another one could have been given."""
        return weakest(
            each.count(self.prepared if self.prepared.issuperset(each.voters) else self.acknowledged) for each in self.electorates(last)
        )

    def agreed(self, layout: Layout) -> bool:
        """Every node of the layout is ready for it."""
        return self.prepared.issuperset(layout.nodes)
