"""Two nodes whose launchers test the network between them, and their storage, by themselves when an incident may come from there; the ledger holds what they found."""

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from eagle_eye.app.cli import main
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.app.demo.deployment_reader import OVER
from eagle_eye.clock import SystemClock
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.types import Event
from fakes.launchers import FakeLeader, LauncherCluster, wait_until

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 120.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
lease_s = 3.0

[engine]
mode = "observe"
"""


@pytest.fixture
def demo_job() -> Iterator[DemoJob]:
    with tempfile.TemporaryDirectory(prefix="path") as folder:  # short: paths of unix sockets are limited
        command = (sys.executable, str(LOOP))
        made = DemoJob(folder=Path(folder), config=CONFIG, command=command, job="test/loop", workers_per_node=1, launch=("--preload", "none"), clock=SystemClock())
        try:
            made.start()
            wait(made, "a healthy job", made.full)
            assert made.wait_steps(30, DEADLINE_S)
            yield made
        finally:
            made.stop()


def wait(demo_job: DemoJob, what: str, condition: Callable[[], bool]) -> None:
    assert demo_job.wait(condition, DEADLINE_S), "\n".join(
        [f"waited {DEADLINE_S:g} s for: {what}", *(demo_job.cluster.tail(process) for process in ("server", "launcher-node-a", "launcher-node-b"))]
    )


def with_result(demo_job: DemoJob, cause: str) -> list[IncidentRecord]:
    """Incidents of that cause whose evidence holds a test."""
    return [kept for kept in demo_job.record.kept if kept.incident.cause == cause and any("network test, run by itself" in line.text for line in kept.incident.evidence)]


def results(demo_job: DemoJob) -> list[Event]:
    return [event for event in demo_job.record.trace.events if event.name == "network.tested"]


def line(kept: IncidentRecord) -> str:
    return next(line.text for line in kept.incident.evidence if "network test, run by itself" in line.text)


def test_broken_connections_have_the_network_tested_and_its_being_open_is_in_the_evidence(demo_job: DemoJob) -> None:
    (demo_job.cluster.state_dir / "checkpoints" / "test" / "loop" / "run-1" / "reset-node-b").touch()
    wait(demo_job, "the test's result in the incident", lambda: bool(with_result(demo_job, "network error")))
    (kept,) = with_result(demo_job, "network error")
    assert "the network is open on all 2 paths tested" in line(kept)
    assert kept.incident.culprits == ()
    assert {event.entity.name for event in results(demo_job)} == {"node-a", "node-b"}
    shown = CliRunner().invoke(main, ["incidents", kept.incident.id, "--config", str(demo_job.folder / "eagle-eye.toml"), "--state-dir", str(demo_job.cluster.state_dir)]).output
    assert "network test, run by itself" in shown
    wait(demo_job, "the job to go on", lambda: demo_job.full() and all(each.state in OVER for each in demo_job.record.kept))


def test_a_lost_node_is_looked_for_by_the_others_and_its_rival_names_what_they_found(demo_job: DemoJob) -> None:
    demo_job.kill_node("node-b")
    wait(demo_job, "the test's result in the incident", lambda: bool(with_result(demo_job, "node lost")))
    (kept,) = with_result(demo_job, "node lost")
    (rival,) = [rival for rival in kept.incident.rivals if rival.cause == "network to the node cut"]
    assert "the network is open on the one path tested" in rival.apart, "this machine answers for the node: its launcher alone is gone"
    assert any("node-b: its host answers, and no launcher listens there" in each.text for each in kept.incident.evidence)
    with contextlib.closing(Ledger.open(demo_job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        assert ledger.cordoned() == (), "a test evicts nobody"


def test_launchers_read_the_mounts_of_their_workers_and_training_goes_on(cluster: LauncherCluster, leader: FakeLeader) -> None:
    cluster.both(leader=leader.address)
    wait_until("the leader to know", lambda: leader.known)
    before = sorted(cluster.directory.iterdir())
    order = {"test": "t1", "incident": "i1", "tests": ["network.tested", "storage.tested"], "suspects": []}
    assert leader.command("test_paths", order, epoch=0, step="a") == {"testers": ["n0", "n1"]}
    wait_until("both results of the network", lambda: len(cluster.events("network.tested")) == 2)
    wait_until("results of storage", lambda: {event.node for event in cluster.events("storage.tested")} == {"n0", "n1"})
    read = [event for event in cluster.events("storage.tested") if "stat_s" in event.attributes]
    assert read
    assert {event.attributes["error"] for event in read} == {""}
    assert sorted(cluster.directory.iterdir()) == before, "nothing is written"
    assert [layout.epoch for layout in cluster.layouts()] == [1], "nobody was touched"
    again = leader.command("test_paths", order, epoch=0, step="b")
    assert again == {"testers": ["n0", "n1"]}, "each launcher leaves out one that comes too soon"
