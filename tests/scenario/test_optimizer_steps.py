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
from eagle_eye.types import Incident, JobSnapshot, SnapshotStep

PLAIN_DDP = Path(__file__).with_name("plain_ddp.py")
BROKEN_GRADIENT = PLAIN_DDP.with_name("broken_gradient_ddp.py")
DEADLINE_S = 200.0


class Run:
    """`eagle-eye run` around it."""

    def __init__(self, folder: Path, script: Path = PLAIN_DDP, *more: str) -> None:
        self.state, self._said = folder / "state", folder / "said"
        line = [sys.executable, "-m", "eagle_eye.app.cli", "run", "--nproc-per-node", "2", "--steps-from", "optimizer", "--state-dir", str(self.state)]
        with (folder / "output").open("wb") as output:
            self.process = subprocess.Popen([*line, "--", sys.executable, str(script), str(self._said), *more], stdout=output, stderr=output)

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

    def incidents(self) -> list[Incident]:
        """Those that accuse somebody; none before the server has steps."""
        if not self.steps():
            return []
        with contextlib.closing(Ledger.open(self.state / "ledger.sqlite", read_only=True)) as ledger:
            return [kept.incident for kept in ledger.incidents() if kept.incident.culprits]

    def wait(self, condition: Any) -> bool:
        until = time.monotonic() + DEADLINE_S
        while not condition() and time.monotonic() < until and self.process.poll() is None:
            time.sleep(0.1)
        return bool(condition())

    def finish(self) -> int:
        """Let the script end; the command's exit code."""
        Path(f"{self._said}.go").touch()
        return self.process.wait(DEADLINE_S)


@contextlib.contextmanager
def ended(run: Run) -> Iterator[Run]:
    """It is over behind this."""
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(DEADLINE_S)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with ended(Run(tmp_path)) as made:
        yield made


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
    assert run.incidents() == [], "that it waits at its end is a pause, and nobody's fault"
    assert {step.epoch for step in steps.values()} == {1}, "nothing was started again"


@pytest.mark.parametrize("more", [(), ("compiled",)], ids=["eager", "compiled"])
def test_the_worker_whose_gradient_was_no_number_first_is_named_though_nothing_is_logged(tmp_path: Path, more: tuple[str, ...]) -> None:
    """A step before, which a loss scaler left out, was nothing."""
    with ended(Run(tmp_path, BROKEN_GRADIENT, *more)) as run:
        assert run.wait(run.incidents), (tmp_path / "output").read_text()[-3000:]
        (incident,) = run.incidents()
        assert run.finish() == 0
    assert (incident.cause, [culprit.entity.name.rpartition("/")[2] for culprit in incident.culprits]) == ("loss not finite", ["1"])
    assert any("of tensor" in line.text and "module.0." in line.text for line in incident.evidence), incident.evidence
