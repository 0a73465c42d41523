"""A launcher speaks for its own node: it joins in no other's name, and no worker of another node dies by its word."""

import pytest

from eagle_eye.rpc.control_messages import Body, Peer
from fakes.plain_coordinator import Job
from remediation.launcher.coordinator import coordinator_facts
from remediation.launcher.coordinator.report_origin import objection

OURS = Peer(role="launcher", node="n1", job="t/n/r", incarnation="b")


@pytest.mark.parametrize(("kind", "body"), [
    ("join", {"node": "n2", "address": "10.0.0.9:7000", "slots": 8, "incarnation": "b", "promised": 0}),
    ("death", {"worker": "r/n2/0", "epoch": 3}), ("late_failure", {"worker": "r/n2/0", "epoch": 3}), ("worker_finished", {"worker": "r/n2/0", "epoch": 3, "step": 7}),
    ("entered", {"join_request": {"worker": "r/n2/0", "node": "n2"}}), ("entered", {"join_request": {"worker": "r/n1/0", "node": "n2"}}),
    ("held", {"epoch": 3, "holdings": [{"worker": "r/n1/0"}, {"worker": "r/n2/0"}]}), ("held", {"epoch": 3, "holdings": [], "silent": ["r/n2/1"]}),
    ("broken", {"worker": "r/n2/0", "epoch": 3}), ("no_progress", {"node": "n2", "epoch": 3, "view": {}}), ("leave", {"worker": "r/n2/0", "epoch": 3}),
])  # fmt: skip
def test_what_a_launcher_says_of_another_node_is_refused(kind: str, body: Body) -> None:
    assert "for n2" in objection(OURS, kind, body)


@pytest.mark.parametrize(("kind", "body"), [
    ("join", {"node": "n1"}), ("death", {"worker": "r/n1/0", "epoch": 3}), ("broken", {"worker": "r/n1/0", "sender": "r/n2/0", "epoch": 3}),
    ("held", {"holdings": [{"worker": "r/n1/0"}], "silent": ["r/n1/1"]}), ("no_progress", {"node": "n1"}), ("finished", {"epoch": 3}), ("store", {"key": "k"}), ("epoch", {}),
])  # fmt: skip
def test_twin_what_it_says_of_its_own_is_believed(kind: str, body: Body) -> None:
    assert objection(OURS, kind, body) == ""


@pytest.mark.parametrize("role", ["agent", "", "server"])
def test_who_is_no_launcher_takes_no_part(role: str) -> None:
    assert "launchers do" in objection(Peer(role=role, node="n1", job="t/n/r", incarnation="b"), "death", {"worker": "r/n1/0", "epoch": 3})


def test_a_spare_that_reports_a_death_restarts_nobody() -> None:
    job = Job(nodes=3).running("n0", "n1", "n2")
    spare = coordinator_facts.WorkerDied(epoch=1, worker="r/n9/0", pid=5)
    assert job.coordinator.learn(spare) == []
    assert job.coordinator.epoch == 1
    assert job.coordinator.learn(coordinator_facts.WorkerDied(epoch=1, worker="r/n1/0", pid=5)) != [], "twin: of a worker that there is"
    assert job.coordinator.epoch == 2
