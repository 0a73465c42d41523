"""Whose turn it is to coordinate."""

from eagle_eye.types import Layout
from remediation.launcher.coordinator_election import CoordinatorElection

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
