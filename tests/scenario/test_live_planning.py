"""Two elastic jobs of different weight on six workers: a killed worker of the heavy one is made up for by the light one.

Server, agent, launchers and workers are real processes; the micro-batches are waits. Nobody replaces the dead worker
(`--respawns 0`), so the planner has to: a worker of the lighter job changes jobs, and both go on. After the repair
(`eagle-eye release`) the first layout is restored.
"""

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from eagle_eye.app.cli import main
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import Ledger
from eagle_eye.ports import free_port
from eagle_eye.stream import JOB_SNAPSHOTS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import JobSnapshot, Outcome, Plan, Severity

SCRIPT = Path(__file__).with_name("waiting_job.py")
DEADLINE_S = 120.0
NODE = "n1"
STEPS = 15
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false

[engine]
mode = "auto"
"""
HEAVY, LIGHT = "team/heavy/heavy-1", "team/light/light-1"


class Deployment:
    """One node with two jobs, a server, and what the ledger says of them."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.config = folder / "eagle-eye.toml"
        self.config.write_text(CONFIG.replace("{port}", str(port)))
        self.cluster = LocalCluster(folder=folder, config_file=self.config, clock=SystemClock(), state_dir=folder / "state")
        self.cluster.start_server()
        self.agent = self.cluster.start_agent(NODE)
        for job, weight in ((HEAVY, "3"), (LIGHT, "1")):
            run = job.rsplit("/", 1)[-1]
            words = ["--job", job, "--nproc-per-node", "3", "--weight", weight, "--respawns", "0", "--", sys.executable, str(SCRIPT), "100000", "0.05"]
            self.cluster.start_launcher(run, NODE, words)

    def stop(self) -> None:
        self.cluster.stop()
        self.agent.terminate()
        self.agent.wait(DEADLINE_S)

    def pids(self, job: str) -> list[int]:
        file = self.cluster.run_dir(NODE) / "jobs" / f"{job.rsplit('/', 1)[-1]}.json"
        return [each["pid"] for each in msgspec.json.decode(file.read_bytes())["workers"]] if file.exists() else []

    def ask(self, question: Callable[[Ledger], Any]) -> Any:
        try:
            ledger = Ledger.open(self.cluster.state_dir / "ledger.sqlite", read_only=True)
        except LedgerError:  # not there yet
            return None
        with contextlib.closing(ledger):
            return question(ledger)

    def workers(self, job: str) -> int:
        """Of its newest layout, once its elastic workers have met."""

        def now(ledger: Ledger) -> int:
            facts = ledger.jobs().get(job)
            return len(facts.layout.placements) if facts is not None and facts.layout.in_place and facts.demand is not None else 0

        return self.ask(now) or 0

    def steps(self, job: str) -> int:
        """That were done in place."""
        with EmbeddedStream(self.cluster.state_dir / "stream") as stream:
            snapshots = [msgspec.json.decode(message.value, type=JobSnapshot) for message in stream.read(JOB_SNAPSHOTS, 0, 0, 100_000)]
        return sum(step.epoch > 1 for snapshot in snapshots if snapshot.job == job for step in snapshot.steps)

    def outcome_of(self, plan: Plan) -> Outcome | None:
        found: Outcome | None = self.ask(lambda ledger: ledger.outcome(plan.id))
        return found

    def resizes(self) -> list[Plan]:
        """Oldest first."""
        kept = self.ask(lambda ledger: ledger.plans(limit=1000)) or ()
        return [plan for plan in reversed(kept) if plan.action == "resize"]

    def say(self, *words: str) -> str:
        result = CliRunner().invoke(main, [*words, "--config", str(self.config), "--state-dir", str(self.cluster.state_dir)])
        assert result.exit_code == 0, result.output
        return result.output

    def wait(self, what: str, condition: Callable[[], Any]) -> Any:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            found = condition()
            if found:
                return found
            time.sleep(0.1)
        logs = "\n".join(f"--- {name}\n{self.cluster.tail(name, 40)}" for name in ("server", "launcher-heavy-1", "launcher-light-1"))
        raise AssertionError(f"waited {DEADLINE_S:g} s for: {what}\n{logs}\n{[(plan.action, plan.reason) for plan in self.ask(lambda ledger: ledger.plans()) or ()]}")


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with tempfile.TemporaryDirectory(prefix="live") as folder:  # short: paths of unix sockets are limited
        made = Deployment(Path(folder))
        try:
            yield made
        finally:
            made.stop()


def test_a_worker_of_the_lighter_job_changes_jobs_and_goes_back_after_the_repair(deployment: Deployment) -> None:
    for job in (HEAVY, LIGHT):
        deployment.wait(f"three workers of {job}", lambda job=job: deployment.workers(job) == 3)
    deployment.wait("a precomputed plan", lambda: any(plan.of == HEAVY and plan.allowed for plan in deployment.ask(lambda ledger: ledger.precomputed_plans()) or ()))
    assert f"{HEAVY} loses a worker on {NODE}" in deployment.say("plan", "--live")
    for job in (HEAVY, LIGHT):  # what is compared with afterwards
        deployment.wait(f"steps of {job}", lambda job=job: deployment.steps(job) >= STEPS)

    os.kill(deployment.pids(HEAVY)[1], signal.SIGKILL)
    deployment.wait("a worker that changed jobs", lambda: (deployment.workers(HEAVY), deployment.workers(LIGHT)) == (3, 2))
    moved = deployment.resizes()[0]
    assert [target.job for target in moved.targets] == [LIGHT, HEAVY], "who gives does so first"
    lost = {loser.action: loser for loser in moved.alternatives}
    assert lost["nothing"].cost > moved.cost
    assert all(loser.why for loser in moved.alternatives)
    outcome = deployment.wait("what it brought", lambda: (told := deployment.outcome_of(moved)) is not None and "waf" in told.actual and told)
    assert outcome.state == "done"
    assert set(outcome.predicted) >= {"waf_before", "waf_left", "waf"}
    assert outcome.predicted["waf_left"] < outcome.predicted["waf"] < outcome.predicted["waf_before"]
    assert outcome.actual["waf"] == pytest.approx(outcome.predicted["waf"], rel=0.35)
    for name in ("waf_before", "waf_left"):
        if name in outcome.actual:  # with fewer than two steps there is nothing to measure
            assert outcome.actual[name] == pytest.approx(outcome.predicted[name], rel=0.35), name
    shown = " ".join(deployment.say("incidents", moved.incident).split())
    assert "chosen: worker killed" in shown
    assert "impossible" in shown
    assert "the same without the action" in shown

    deployment.wait("nothing is open", lambda: not deployment.ask(lambda ledger: ledger.incidents(open_only=True)))
    deployment.say("release", NODE, "--as", "ada")
    deployment.wait("the first layout", lambda: (deployment.workers(HEAVY), deployment.workers(LIGHT)) == (3, 3))
    back = deployment.resizes()[-1]
    assert back.undoes == moved.id
    assert [target.job for target in back.targets] == [LIGHT]
    told = [kept.incident for kept in deployment.ask(lambda ledger: ledger.incidents()) if kept.incident.severity is not Severity.INFO]  # a busy machine is told, too
    assert {(incident.job, incident.cause) for incident in told} == {(HEAVY, "worker killed")}, "who leaves a job by order is no fault"
    assert deployment.wait("the end of it", lambda: (told := deployment.outcome_of(back)) is not None and told.state == "done")
