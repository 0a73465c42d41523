"""Real launchers with elastic workers that live on: kills, stops, joins, and a coordinator that dies. No torch."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle_eye.types import Event
from fakes.launchers import FakeLeader, Stage, wait_until
from remediation.launcher.settings import LauncherSettings

LOOP = Path(__file__).parent / "elastic_loop.py"


class ElasticStage(Stage):
    """Nodes on this machine, and what their workers have committed."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.commits = directory / "commits"
        self.commits.mkdir()

    def settings(self, node: int, /, until: int = 100_000, **changes: Any) -> LauncherSettings:
        command = (sys.executable, str(LOOP), str(until), str(self.commits))
        return super().settings(node, **{"command": command, "nproc": 3} | changes)

    def worker(self, node: int, slot: int) -> str:
        return f"{self.run}/n{node}/{slot}"

    def pid(self, node: int, slot: int) -> int:
        return next(each["pid"] for each in self.job(node)["workers"] if each["slot"] == slot)

    def said(self, worker: str) -> list[dict[str, Any]]:
        path = self.commits / f"{worker.replace('/', '_')}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def newest(self, worker: str) -> dict[str, Any]:
        return next((words for words in reversed(self.said(worker)) if "step" in words), {"step": -1, "world": 0, "epoch": 0})

    def trains(self, world: int, worker: str) -> int:
        """Wait until that many workers have committed a step together; returns its number."""
        wait_until(f"a step of {world}", lambda: self.newest(worker)["world"] == world)
        return int(self.newest(worker)["step"])

    def done(self, reason: str) -> Event:
        """Wait for the account of a transition."""
        return wait_until(
            f"a transition ({reason})",
            lambda: next((event for event in self.events("transition.done") if event.attributes["reason"] == reason), None),
        )


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[ElasticStage]:
    made = ElasticStage(tmp_path)
    yield made
    made.close()


@pytest.fixture
def leader() -> Iterator[FakeLeader]:
    made = FakeLeader(grants=True)
    yield made
    made.close()


def test_a_killed_worker_is_left_out_at_once_and_replaced(stage: ElasticStage) -> None:
    launcher = stage.launch(0, nnodes=(1, 1))
    first = stage.worker(0, 0)
    stage.trains(3, first)
    others = [stage.pid(0, 0), stage.pid(0, 2)]
    os.kill(stage.pid(0, 1), signal.SIGKILL)
    stage.trains(2, first)
    death = stage.done("death")
    assert death.attributes["lost"] == stage.worker(0, 1)
    assert death.attributes["cause"] == stage.events("exit")[0].id
    stage.trains(3, first)
    assert [stage.pid(0, 0), stage.pid(0, 2)] == others, "the others have lived on"
    steps = [words["step"] for words in stage.said(first) if "step" in words]
    assert steps == list(range(len(steps))), "no step is lost or done twice"
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(20) == 130
    assert len(stage.events("exit")) == 1
