"""A real agent that says nothing for a while, on a node that trains on: it is told, nobody is accused, nothing is done, and it is over when the agent is back."""

import contextlib
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Finding

LOOP = Path(__file__).with_name("loop.py")
DEADLINE_S = 150.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""
"""


@pytest.fixture
def job() -> Iterator[DemoJob]:
    with tempfile.TemporaryDirectory(prefix="quiet") as folder:  # short: paths of unix sockets are limited
        made = DemoJob(folder=Path(folder), config=CONFIG, command=(sys.executable, str(LOOP)), job="test/loop", launch=("--preload", "none"), clock=SystemClock(), workers_per_node=1)
        try:
            made.start()
            yield made
        finally:
            for node in made.cluster.nodes.values():
                node.agent.send_signal(signal.SIGCONT)
            made.stop()


def late(job: DemoJob) -> list[Finding]:
    with contextlib.suppress(LedgerError), contextlib.closing(Ledger.open(job.cluster.state_dir / "ledger.sqlite", read_only=True)) as ledger:
        return [finding for finding in ledger.findings() if finding.kind == "telemetry.late"]
    return []


def test_an_agent_that_says_nothing_is_told_and_the_job_trains_on(job: DemoJob) -> None:
    assert job.wait(job.full, DEADLINE_S), "the job does not train"
    assert job.wait_steps(30, DEADLINE_S)
    assert late(job) == []
    layout, since = job.record.trace.layout, job.clock.now()
    assert layout is not None
    agent = job.cluster.nodes["node-b"].agent
    agent.send_signal(signal.SIGSTOP)
    assert job.wait(lambda: bool(late(job)), DEADLINE_S), "nobody says that node-b is silent"
    assert [(finding.entity.name, finding.active) for finding in late(job)] == [("node-b", True)]
    agent.send_signal(signal.SIGCONT)
    assert job.wait(lambda: not late(job)[0].active, DEADLINE_S), "it is not over"
    accusing = [kept.incident.cause for kept in job.record.seen_since(since) if kept.incident.culprits]
    assert [cause for cause in accusing if not cause.startswith("slower")] == [], "by some percent a node is slower that other tests keep from computing"
    assert job.record.trace.layout == layout, "nothing is restarted"
