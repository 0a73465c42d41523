"""Whose turn it is, and what proves that a coordinator is gone."""

from eagle_eye.clock import FakeClock
from eagle_eye.types import Layout
from remediation.launcher.coordinator_election import CoordinatorElection, ProgressWitness

LAST = Layout(
    job="t/n/r", epoch=3, time=0.0, coordinator="n1", launchers={f"n{i}": f"host{i}:1" for i in range(4)}, placements=(),
    excluded=("n0",),
)  # fmt: skip


def test_the_order_of_the_last_layout_without_the_excluded() -> None:
    election_order = CoordinatorElection(LAST, "n3", gone=("n1",))
    assert election_order.next() == "n2"
    assert election_order.address("n2") == "host2:1"
    assert not election_order.ours
    election_order.unreachable("n2")
    assert election_order.ours
    assert election_order.gone == ("n1", "n2")


def test_an_excluded_launcher_never_leads() -> None:
    election_order = CoordinatorElection(LAST, "n0", gone=("n1", "n2", "n3"))
    assert election_order.next() == ""
    assert not election_order.ours


def test_still_counts_from_the_last_move() -> None:
    clock = FakeClock()
    still = ProgressWitness(clock)
    assert still.observe(10) == 0.0
    clock.advance(2.0)
    assert still.observe(11) == 0.0
    clock.advance(1.5)
    assert still.observe(11) == 1.5


def test_a_broken_session_and_a_step_that_stands_prove_a_loss() -> None:
    clock = FakeClock()
    still = ProgressWitness(clock)
    still.observe(11)
    clock.advance(2.5)
    assert not still.proves(broke_s=0.1, lease_s=2.0), "it may still come back"
    assert still.proves(broke_s=0.6, lease_s=2.0), "a frozen node: nothing moved since before the session was lost"
    still.observe(12)
    assert not still.proves(broke_s=60.0, lease_s=2.0), "the steps go on"


def test_without_progress_to_see_the_session_alone_must_be_gone_for_a_lease() -> None:
    still = ProgressWitness(FakeClock())
    still.observe(None)
    assert not still.proves(broke_s=1.9, lease_s=2.0)
    assert still.proves(broke_s=2.0, lease_s=2.0)
