"""What the ledger keeps: leases, incidents, plans, approvals, epochs, cordons, notifications."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from contract.ledger_cases import *  # noqa: F403 -- the cases are the same for every database
from eagle_eye.clock import FakeClock
from eagle_eye.errors import Stale
from eagle_eye.ledger import LeaseHolder, Ledger
from eagle_eye.types import IncidentState
from fakes.sample_values import an_incident

ADA = LeaseHolder(host="machine-a", pid=101, incarnation="ada")
BOB = LeaseHolder(host="machine-b", pid=202, incarnation="bob")


# --- who leads -----------------------------------------------------------------------------------------------------


def test_of_two_servers_the_second_waits_and_can_name_the_first(ledger_path: Path, ledger: Ledger) -> None:
    other = Ledger.open(ledger_path)
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert other.acquire("leader", BOB, 5, 104.9) is None
    lease = other.holder_of("leader")
    assert lease is not None
    assert (lease.holder, lease.since, lease.until) == (ADA, 100.0, 105.0)
    assert str(lease) == "process 101 on machine-a (term 1)"
    assert other.acquire("leader", BOB, 5, 105.0) == 2
    other.close()


def test_the_term_rises_with_each_change_of_the_holder_only(ledger: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert ledger.acquire("leader", ADA, 5, 102.0) == 1
    assert ledger.acquire("leader", ADA, 5, 500.0) == 1
    assert ledger.acquire("leader", BOB, 5, 600.0) == 2
    assert ledger.acquire("leader", ADA, 5, 700.0) == 3


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(100.0)


@pytest.fixture
def standby(ledger: Ledger, ledger_path: Path, clock: FakeClock) -> Iterator[Ledger]:
    """Another process's, which sees the time pass."""
    opened = Ledger.open(ledger_path, clock=clock)
    yield opened
    opened.close()


def test_a_leader_whose_clock_was_an_hour_ahead_when_it_was_killed_keeps_nobody_waiting_for_an_hour(ledger: Ledger, standby: Ledger, clock: FakeClock) -> None:
    for name in ("leader", "partition/0"):
        assert ledger.acquire(name, ADA, 2, 3700.0) == 1
    for _ in range(20):
        assert standby.acquire("leader", BOB, 2, clock.now()) is None
        assert [lease.name for lease in standby.living("partition/", clock.now())] == ["partition/0"]
        clock.advance(1.0)
    clock.advance(1.0)
    assert standby.living("partition/", clock.now()) == ()
    assert standby.acquire("leader", BOB, 2, clock.now()) == 2
    assert not ledger.renew("leader", ADA, 1, 2, 3721.0), "who has only slept learns it"


def test_twin_whose_clock_is_ahead_and_who_renews_keeps_what_it_has(ledger: Ledger, standby: Ledger, clock: FakeClock) -> None:
    for name in ("leader", "partition/0"):
        assert ledger.acquire(name, ADA, 2, 3700.0) == 1
    for second in range(60):
        assert ledger.renew_all(["leader", "partition/0"], ADA, 2, 3700.0 + second) == {"leader", "partition/0"}
        assert standby.acquire("leader", BOB, 2, clock.now()) is None
        assert [lease.name for lease in standby.living("partition/", clock.now())] == ["partition/0"]
        clock.advance(1.0)


def test_a_lease_is_renewed_until_another_has_it(ledger: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert ledger.renew("leader", ADA, 1, 5, 104.0)
    assert ledger.acquire("leader", BOB, 5, 108.0) is None
    assert ledger.acquire("leader", BOB, 5, 109.0) == 2
    assert not ledger.renew("leader", ADA, 1, 5, 109.5)


def test_who_resigns_need_not_be_waited_for(ledger: Ledger) -> None:
    ledger.acquire("leader", ADA, 5, 100.0)
    ledger.resign("leader", BOB, 101.0)
    assert ledger.acquire("leader", BOB, 5, 101.0) is None
    ledger.resign("leader", ADA, 101.0)
    assert ledger.acquire("leader", BOB, 5, 101.0) == 2


def test_a_term_can_be_lifted_above_what_peers_have_seen(ledger: Ledger) -> None:
    assert ledger.acquire("leader", ADA, 5, 100.0) == 1
    assert ledger.acquire("leader", ADA, 5, 101.0, above=7) == 8
    assert ledger.acquire("leader", ADA, 5, 102.0, above=7) == 8


def test_a_leader_that_was_replaced_cannot_write(ledger_path: Path, ledger: Ledger) -> None:
    other = Ledger.open(ledger_path)
    term = ledger.acquire("leader", ADA, 5, 100.0)
    assert term == 1
    ledger.fence_writes("leader", term)
    ledger.save_incident(an_incident(), IncidentState.OPEN)
    other.acquire("leader", BOB, 5, 200.0)
    with pytest.raises(Stale, match="term 1 of 'leader' is over: term 2"):
        ledger.save_incident(an_incident(2), IncidentState.OPEN)
    assert len(other.incident("incident-1")) == 1
    other.close()


@pytest.fixture
def reopened(ledger_path: Path, ledger: Ledger) -> Iterator[Ledger]:
    other = Ledger.open(ledger_path)
    yield other
    other.close()
