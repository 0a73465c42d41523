"""Partitions among processes that come, go and hang: never owned twice, soon owned again, evenly shared, seldom moved."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.runtime.partition_ownership import (
    DECLINED,
    DECLINED_S,
    MEMBER,
    PARTITION,
    PartitionOwnership,
    assign_partitions,
)
from eagle_eye.clock import FakeClock
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import Lease, LeaseHolder, Ledger

LEASE_S = 4.0
MEMBERS = ["a", "b", "c", "d", "e"]
holdings = st.dictionaries(st.integers(0, 30), st.sampled_from([None, *MEMBERS, "dead"]))
members = st.sets(st.sampled_from(MEMBERS), min_size=1)


# --- who should own what ---------------------------------------------------------------------------------------------


@given(holdings, members)
def test_every_partition_has_one_owner_who_lives_and_nobody_has_two_more_than_another(holders, alive):
    target = assign_partitions(holders, alive)
    assert set(target) == set(holders)
    counts = [list(target.values()).count(member) for member in alive]
    assert set(target.values()) <= alive
    assert max(counts) - min(counts) <= 1


@given(holdings, members)
def test_what_is_shared_evenly_is_not_moved_again(holders, alive):
    target = assign_partitions(holders, alive)
    assert assign_partitions(target, alive) == target


@given(holdings, members)
def test_no_partition_is_taken_from_who_has_no_more_than_its_share(holders, alive):
    target = assign_partitions(holders, alive)
    most = -(-len(holders) // len(alive))
    held = Counter(holder for holder in holders.values() if holder in alive)
    moved = Counter(holder for partition, holder in holders.items() if holder in alive and target[partition] != holder)
    assert all(held[member] - number >= len(holders) // len(alive) for member, number in moved.items())
    assert sum(moved.values()) <= sum(max(0, number - len(holders) // len(alive)) for number in held.values())
    assert all(number <= most for number in Counter(target.values()).values())


@given(holdings, members, st.dictionaries(st.integers(0, 30), st.sets(st.sampled_from(MEMBERS))))
def test_what_somebody_has_declined_is_anothers_as_long_as_not_all_have_and_stays_there(holders, alive, declined):
    declined = {partition: by & alive for partition, by in declined.items() if partition in holders}
    target = assign_partitions(holders, alive, declined)
    assert set(target) == set(holders)
    assert all(alive <= by or target[partition] not in by for partition, by in declined.items())
    for _ in range(10):
        target, before = assign_partitions(target, alive, declined), target
    assert target == before


def test_nobody_lives():
    assert assign_partitions({0: "a", 1: None}, set()) == {}


# --- processes that share ------------------------------------------------------------------------------------------


@dataclass
class Work:
    """The work on a partition, which takes until `join` to end."""

    partition: int
    term: int
    superseded_by: int = 0
    states: list[str] = field(default_factory=list)

    slow: bool = False
    """It does not end by itself."""

    held: bool = False
    """Its thread does not come back."""

    given_up: bool = False
    """It has failed again and again."""

    def check(self) -> None:
        if self.held:
            self.superseded_by = self.term

    def stop(self) -> None:
        self.states.append("stopped")

    def join(self) -> None:
        self.states.append("joined")

    @property
    def ended(self) -> bool:
        return bool(self.states or self.superseded_by) and not self.slow

    @property
    def under_way(self) -> bool:
        return not self.ended


@dataclass
class Member:
    """A process: its part in sharing, and everything that it ever did."""

    ownership: PartitionOwnership
    done: list[Work]
    hung: bool = False

    @property
    def owned(self) -> dict[int, int]:
        return {partition: work.term for partition, work in sorted(self.ownership.owned.items())}


class Deployment:
    """Processes on one ledger and one clock."""

    def __init__(self, ledger: Ledger, partitions: int = 4) -> None:
        self.ledger = ledger
        self.clock = FakeClock()
        self.partitions = partitions
        self.members: list[Member] = []
        self._incarnations = count()

    def start(self) -> Member:
        done: list[Work] = []

        def begin(partition: int, term: int) -> Work:
            done.append(Work(partition, term))
            return done[-1]

        holder = LeaseHolder(host="h", pid=1, incarnation=f"incarnation-{next(self._incarnations)}")
        ownership = PartitionOwnership(self.ledger, holder, begin, partitions=self.partitions, lease_s=LEASE_S, clock=self.clock)
        self.members.append(Member(ownership, done))
        return self.members[-1]

    def rounds(self, number: int = 1) -> None:
        for _ in range(number):
            for member in self.members:
                if not member.hung:
                    member.ownership.round()
            self.clock.advance(LEASE_S / 8)

    def owners(self) -> Counter[int]:
        """How often each partition is owned by those who are not hung."""
        return Counter(partition for member in self.members if not member.hung for partition in member.owned)


@pytest.fixture
def deployment(ledger: Ledger) -> Deployment:
    return Deployment(ledger)


def test_a_partition_whose_thread_is_held_begins_again_above_its_term(deployment):
    alone = deployment.start()
    deployment.rounds(4)
    before = alone.owned
    alone.ownership.owned[2].held = True
    deployment.rounds(2)
    assert alone.owned == before | {2: before[2] + 1}
    deployment.rounds(4)
    assert alone.owned == before | {2: before[2] + 1}, "once"


def test_fault_a_partition_that_fails_again_and_again_is_left_to_another_process_for_a_while(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(4)
    bad, work = next(iter(first.ownership.owned.items()))
    work.given_up = work.superseded_by = True
    deployment.rounds(4)
    assert (bad in first.owned, second.owned.get(bad)) == (False, work.term + 1)
    assert sum(each.partition == bad for each in first.done) == 1, "not begun here again"
    begun = len(first.done) + len(second.done)
    deployment.rounds(40)
    assert (len(first.done) + len(second.done), deployment.owners()) == (begun, dict.fromkeys(range(4), 1)), "nothing goes to and fro"
    assert len(declined(deployment)) == 1
    deployment.clock.advance(DECLINED_S)
    deployment.rounds(6)
    assert (len(first.owned), len(second.owned), declined(deployment)) == (2, 2, ())


def declined(deployment: Deployment) -> tuple[Lease, ...]:
    return deployment.ledger.living(DECLINED, deployment.clock.now())


def test_twin_alone_it_goes_on_trying_and_hands_over_once_there_is_another(deployment):
    alone = deployment.start()
    deployment.rounds(2)
    alone.ownership.owned[1].given_up = True
    deployment.rounds(20)
    assert (alone.owned, all(work.under_way for work in alone.done), declined(deployment)) == (dict.fromkeys(range(4), 1), True, ())
    second = deployment.start()
    deployment.rounds(4)
    assert 1 in second.owned


def test_what_fails_everywhere_stays_where_it_is(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(4)
    for _ in range(20):
        for member in (first, second):
            if 1 in member.ownership.owned:
                member.ownership.owned[1].given_up = True
        deployment.rounds(2)
    assert (deployment.owners()[1], sum(work.partition == 1 for member in (first, second) for work in member.done)) == (1, 2)


def test_one_process_owns_everything(deployment):
    alone = deployment.start()
    deployment.rounds()
    assert alone.owned == {0: 1, 1: 1, 2: 1, 3: 1}


def test_a_second_one_gets_half_in_order(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(3)
    assert [len(first.owned), len(second.owned)] == [2, 2]
    assert set(first.owned) | set(second.owned) == {0, 1, 2, 3}
    given = [work for work in first.done if not work.under_way]
    assert len(given) == 2
    assert all(second.owned[work.partition] == work.term + 1 for work in given), "a new owner, a new term"


def test_what_is_given_back_has_ended_first_unless_it_hangs(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.members.remove(second)
    deployment.rounds()
    for work in first.done:
        work.slow = True
    deployment.members.append(second)
    deployment.rounds(4)
    assert (len(first.owned), second.owned) == (2, {})
    next(work for work in first.done if work.states).slow = False
    deployment.rounds(2)
    assert len(second.owned) == 1
    deployment.rounds(8)
    assert len(second.owned) == 2


def test_who_leaves_gives_back_at_once(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(3)
    deployment.members.remove(first)
    first.ownership.close()
    second.ownership.round()
    assert set(second.owned) == {0, 1, 2, 3}
    assert not any(work.under_way for work in first.done)


def test_who_dies_loses_everything_after_the_lease_and_not_before(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(3)
    first.hung = True
    deployment.rounds(7)
    assert len(second.owned) == 2
    deployment.rounds(3)
    assert len(second.owned) == 4


def test_who_wakes_up_again_ends_what_was_taken_and_shares_again(deployment):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(3)
    before = first.owned
    first.hung = True
    deployment.rounds(10)
    assert len(second.owned) == 4
    first.hung = False
    first.ownership.round()
    assert first.owned == {}, "all of it is another's now"
    deployment.rounds(4)
    assert [len(first.owned), len(second.owned)] == [2, 2]
    assert all(term > before.get(partition, 0) for partition, term in first.owned.items())


@pytest.mark.parametrize("looked_for", [MEMBER, PARTITION])
def test_who_is_suspended_within_a_round_gives_nothing_up(deployment, monkeypatch, looked_for):
    """Between the renewal of its leases and a look at who lives: it saw nobody, itself included, and read ten minutes again."""
    alone = deployment.start()
    deployment.rounds(2)
    before, look = alone.owned, deployment.ledger.living

    def late(prefix: str, now: float) -> tuple[Lease, ...]:
        return look(prefix, now + (LEASE_S + 1.0 if prefix == looked_for else 0.0))

    with monkeypatch.context() as patch:
        patch.setattr(deployment.ledger, "living", late)
        alone.ownership.round()
    deployment.rounds(2)
    assert alone.owned == before
    assert all(work.under_way for work in alone.done)


def test_a_ledger_that_is_away_stops_nobody(deployment, monkeypatch):
    first, second = deployment.start(), deployment.start()
    deployment.rounds(3)
    before = first.owned, second.owned

    def away(names: Collection[str], holder: LeaseHolder, seconds: float, now: float) -> frozenset[str]:
        raise LedgerError("it does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(deployment.ledger, "renew_all", away)
        deployment.rounds(50)
        assert (first.owned, second.owned) == before
        assert all(work.under_way for member in deployment.members for work in member.ownership.owned.values())
    deployment.rounds(3)
    assert (first.owned, second.owned) == before


def test_an_owner_that_the_stream_outranks_begins_again_above_that_if_the_lease_is_its_own(deployment):
    alone = deployment.start()
    deployment.rounds()
    work = alone.ownership.owned[2]
    assert isinstance(work, Work)
    work.superseded_by = 41  # the stream is older than this ledger
    deployment.rounds()
    assert alone.owned[2] == 42
    assert not work.under_way
    assert alone.owned[1] == 1


def test_leases_of_processes_that_are_long_gone_are_forgotten(deployment):
    for _ in range(5):
        deployment.members.clear()
        deployment.start()
        deployment.rounds()
        deployment.clock.advance(5000.0)
    assert len(deployment.ledger.living("detect/", 0.0)) <= 2


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["start", "leave", "hang", "wake", "wait"]), max_size=12), st.integers(1, 9))
def test_whatever_happens_nobody_owns_twice_what_another_may_own(tmp_path_factory, empty_ledger: Path, story, partitions):
    path = tmp_path_factory.mktemp("story") / "ledger.sqlite"
    path.write_bytes(empty_ledger.read_bytes())
    ledger = Ledger.open(path)
    deployment = Deployment(ledger, partitions)
    try:
        deployment.start()
        for what in story:
            tell(deployment, what)
            deployment.rounds()
            leases = {lease.name: lease for lease in living(ledger, deployment)}
            assert all(times == 1 for times in deployment.owners().values())
            for member in deployment.members:
                if not member.hung:
                    assert all(leases[f"partition/{partition}"].term == term for partition, term in member.owned.items())
        deployment.rounds(20)
        if any(not member.hung for member in deployment.members):
            assert deployment.owners() == dict.fromkeys(range(partitions), 1)
    finally:
        ledger.close()


def living(ledger: Ledger, deployment: Deployment) -> tuple[Lease, ...]:
    return ledger.living("partition/", deployment.clock.now())


def tell(deployment: Deployment, what: str) -> None:
    able = [member for member in deployment.members if not member.hung]
    hung = [member for member in deployment.members if member.hung]
    if what == "start" and len(deployment.members) < 5:
        deployment.start()
    elif what == "leave" and able:
        deployment.members.remove(able[0])
        able[0].ownership.close()
    elif what == "hang" and able:
        able[-1].hung = True
    elif what == "wake" and hung:
        hung[0].hung = False
        hung[0].ownership.round()
    elif what == "wait":
        deployment.rounds(10)
