"""A script that nobody has changed: its steps are counted by its optimizer's, with their phases, and its end is no fault."""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eagle_eye.ledger import Ledger
from eagle_eye.stream import JOB_SNAPSHOTS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import JobSnapshot, SnapshotStep

PLAIN_DDP = Path(__file__).with_name("plain_ddp.py")
DEADLINE_S = 200.0


class Run:
    """`eagle-eye run` around it."""

    def __init__(self, folder: Path) -> None:
        self.state, self._said = folder / "state", folder / "said"
        line = [sys.executable, "-m", "eagle_eye.app.cli", "run", "--nproc-per-node", "2", "--steps-from", "optimizer", "--state-dir", str(self.state)]
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen([*line, "--", sys.executable, str(PLAIN_DDP), str(self._said)], stdout=output, stderr=output)

    @property
    def said(self) -> dict[str, float] | None:
        """What the script tells of itself, once it has trained."""
        found: dict[str, float] | None = json.loads(self._said.read_text()) if self._said.exists() and self._said.read_text() else None
        return found

    def steps(self) -> dict[int, SnapshotStep]:
        """What the server knows."""
        if not (self.state / "stream").exists():
            return {}
        with EmbeddedStream(self.state / "stream") as stream:
            messages = [message for partition in range(stream.partitions(JOB_SNAPSHOTS)) for message in stream.read(JOB_SNAPSHOTS, partition, 0, 100_000)]
        snapshots = [msgspec.json.decode(message.value, type=JobSnapshot) for message in messages]
        return {step.number: step for snapshot in snapshots for step in snapshot.steps}

    def wait(self, condition: Any) -> bool:
        until = time.monotonic() + DEADLINE_S
        while not condition() and time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.1)
        return bool(condition())

    def finish(self) -> int:
        """Let the script end; the command's exit code."""
        Path(f"{self._said}.go").touch()
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    if made.process.poll() is None:
        made.process.terminate()
        made.process.wait(DEADLINE_S)


def test_every_step_is_counted_with_the_time_that_it_took(run: Run, tmp_path: Path) -> None:
    assert run.wait(lambda: run.said), (tmp_path / "output").read_text()
    said = run.said
    assert said is not None
    assert run.wait(lambda: len(run.steps()) >= said["steps"]), sorted(run.steps())
    steps = run.steps()
    assert run.finish() == 0
    assert sorted(steps) == list(range(int(said["steps"])))
    assert {step.workers for step in steps.values()} == {2}
    taken = [step.step_s for step in list(steps.values())[10:] if step.step_s is not None]
    assert sum(taken) / len(taken) == pytest.approx(said["step_s"], rel=0.1)
    with contextlib.closing(Ledger.open(run.state / "ledger.sqlite", read_only=True)) as ledger:
        assert [kept for kept in ledger.incidents() if kept.incident.culprits] == [], "that it waits at its end is a pause, and nobody's fault"
    assert {step.epoch for step in steps.values()} == {1}, "nothing was started again"
