"""Scripts that nobody has changed: are their steps counted and timed, and are a straggler and a hang in them found?

    python -m benchmarks.collect.no_code [--only NAME ...] [--no-peer] [--json]

Each script of benchmarks/collect/unmodified (DistributedDataParallel, a loop in the manner of nanoGPT, transformers.Trainer, Lightning, Megatron-Core,
all on gloo) is run by four workers on two nodes with `--steps-from optimizer` and default settings. Rank 0 writes down when each of its steps was done;
that is compared with the steps that the agents report of its worker. Then all workers of one node are slowed down until that is told of them, and after
that one worker hangs until somebody is blamed. Such a script logs no tokens, so that more work looks like a slow machine: its stragglers are told ("unequal
compute"), and nobody is accused. The job is watched in mode `recommend`: what is found is written down, and the hang is left alone.

The peer: the same script under torchrun, which counts no steps and blames nobody; its step time shows what being watched costs.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.app import drills
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.errors import WireError
from eagle_eye.ledger import IncidentRecord
from eagle_eye.ports import free_port
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Batch, Record, SchemaRecord, StepReading

SCRIPTS = {
    "plain_ddp": "DistributedDataParallel", "nano_gpt": "a loop in the manner of nanoGPT", "transformers_gpt2": "transformers.Trainer",
    "lightning_mlp": "Lightning", "megatron_gpt": "Megatron-Core",
}  # fmt: skip
ROOT = Path(__file__).parents[2]
JOB, RANK_0, SLOW_NODE = "bench/unmodified", "run-1/node-a/0", "node-b"
STEPS, WARM_UP = 300, 50
TOLERANCE = 0.03
SLOW = frozenset({"worker.slow", "worker.unequal_compute"})
"""Findings of a straggler."""
PATIENCE_S, FOUND_S = 180.0, 90.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false

[engine]
mode = "recommend"
"""


class Told(NamedTuple):
    """What an incident says of somebody."""

    cause: str
    name: str

    def __str__(self) -> str:
        return f"{self.cause} {self.name}"


@dataclass(slots=True, kw_only=True)
class Trial:
    """What was seen of one script."""

    steps: int = 0
    """By rank 0's own log, when it was read."""
    counted: bool = False
    """Each of them was reported once, under its number."""
    own_s: float = 0.0
    reported_s: float = 0.0
    """Mean time of the same steps: by the script, and by what was reported."""
    straggler: str = ""
    """Cause and worker of the first incident that tells of a slow one; '' if none did."""
    straggler_s: float = 0.0
    hang: str = ""
    hang_s: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """Whoever was told of while nothing was wrong, or beside the right one."""

    @property
    def deviation(self) -> float:
        return abs(self.reported_s / self.own_s - 1.0) if self.own_s else 1.0

    @property
    def met(self) -> bool:
        found = bool(self.straggler) and bool(self.hang) and not self.wrong
        return self.counted and self.deviation <= TOLERANCE and found


class ScriptRun:
    """One script under launchers, agents and a server."""

    def __init__(self, name: str, folder: Path) -> None:
        self.log = folder / "steps"
        command = (sys.executable, "-m", f"benchmarks.collect.unmodified.{name}", str(self.log))
        self.job = DemoJob(folder=folder, config=CONFIG, command=command, job=JOB, launch=("--steps-from", "optimizer"), clock=SystemClock())
        self.trial = Trial()

    def run(self) -> Trial:
        """All of it."""
        self.job.start()
        try:
            if self.job.wait(lambda: len(times_in(self.log)) > STEPS and self.job.record.trace.highest() > STEPS, PATIENCE_S):
                self._compare()
                self._find_straggler()
                self._find_hang()
        finally:
            self.job.stop()
        return self.trial

    def _compare(self) -> None:
        trial, own = self.trial, times_in(self.log)
        reported = reported_steps(self.job.cluster.state_dir / "stream")
        trial.steps = len(own)
        known = [number for number, _ in reported]
        trial.counted = known == list(range(len(known))) and abs(len(own) - len(known)) <= len(own) - STEPS + 1
        common = range(WARM_UP, min(STEPS, len(known)))
        trial.own_s = (own[common[-1]] - own[common[0] - 1]) / len(common)
        trial.reported_s = statistics.fmean(seconds for number, seconds in reported if number in common)
        trial.wrong += map(str, self._slow(0.0))

    def _find_straggler(self) -> None:
        since = self.job.clock.now()
        slow = drills.slow_node(SLOW_NODE, self.job.cluster.run_dir(SLOW_NODE), self.job.clock)
        try:
            self.trial.straggler, self.trial.straggler_s = self._found(lambda: self._slow(since), lambda name: name.startswith((SLOW_NODE, f"run-1/{SLOW_NODE}/")))
        finally:
            slow.end()
        self.job.wait(lambda: not any(part.active for kept in self.job.record.kept for part in kept.incident.parts if part.kind in SLOW), FOUND_S)
        self.job.wait_steps(WARM_UP, PATIENCE_S)

    def _find_hang(self) -> None:
        worker = self.job.workers()[1]
        since = self.job.clock.now()
        drills.in_trainer("hang", worker, self.job.clock)
        self.trial.hang, self.trial.hang_s = self._found(lambda: self._accused(since), lambda name: name == worker.name)

    def _found(self, told: Callable[[], list[Told]], right: Callable[[str], bool]) -> tuple[str, float]:
        """The first that is told of, and after how long; others than the right one are noted."""
        began = self.job.clock.monotonic()
        self.job.wait(lambda: bool(told()), FOUND_S)
        taken_s = self.job.clock.monotonic() - began
        self.trial.wrong += [str(each) for each in told() if not right(each.name)]
        return next((str(each) for each in told() if right(each.name)), ""), taken_s

    def _accused(self, since: float) -> list[Told]:
        return [Told(each.incident.cause, culprit.entity.name) for each in self._since(since) for culprit in each.incident.culprits]

    def _slow(self, since: float) -> list[Told]:
        """Accused, or told of as slow."""
        slow = [Told(each.incident.cause, part.entity.name) for each in self._since(since) for part in each.incident.parts if part.kind in SLOW]
        return slow or self._accused(since)

    def _since(self, moment: float) -> list[IncidentRecord]:
        return sorted((each for each in self.job.record.kept if each.opened >= moment), key=lambda each: each.opened)


def times_in(log: Path) -> list[float]:
    """When each step was done, by the script's own clock; a line that is being written is left out."""
    text = log.read_text() if log.exists() else ""
    return [float(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def reported_steps(directory: Path) -> list[tuple[int, float]]:
    """Number and seconds of each step of rank 0's worker, in the order in which the stream has them."""
    schemas = wire.Schemas()
    found: list[tuple[int, float]] = []
    offset = 0
    with EmbeddedStream(directory) as stream:
        while messages := stream.read(OBSERVATIONS, 0, offset):
            offset = messages[-1].offset + 1
            for message in messages:
                with suppress(WireError):
                    found += _steps_in(wire.decode(message.value, schemas), schemas)
    return found


def _steps_in(record: Record, schemas: wire.Schemas) -> Iterator[tuple[int, float]]:
    if isinstance(record, SchemaRecord):
        schemas.add(record)
    elif isinstance(record, Batch):
        for block in record.blocks:
            if isinstance(block.reading, StepReading):
                yield from _rows(block.reading)


def _rows(reading: StepReading) -> list[tuple[int, float]]:
    if RANK_0 not in reading.workers or "step_s" not in reading.names:
        return []
    column, name = list(reading.workers).index(RANK_0), list(reading.names).index("step_s")
    ends, values = reading.ends[:, column], reading.values[:, column, name]
    return [(int(number), float(seconds)) for number, end, seconds in zip(reading.numbers, ends, values, strict=True) if end == end]


def under_torchrun(name: str, folder: Path) -> float:
    """Mean seconds of the same steps, watched by nobody."""
    log = folder / "steps"
    line = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4", "--master-port", str(free_port()), "-m", f"benchmarks.collect.unmodified.{name}", str(log)]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(line, cwd=ROOT, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + PATIENCE_S
            while len(times_in(log)) <= STEPS and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait()
    own = times_in(log)
    return (own[STEPS - 1] - own[WARM_UP - 1]) / (STEPS - WARM_UP) if len(own) >= STEPS else 0.0


def row_of(name: str, trial: Trial, peer_s: float) -> Row:
    """One line of the table."""
    counted = f"{trial.steps} steps, {'all counted' if trial.counted else 'NOT all counted'}"
    times = f"{trial.own_s * 1e3:.1f} ms, told {trial.reported_s * 1e3:.1f} ({trial.deviation:.1%} apart)"
    found = f"straggler: {trial.straggler or 'NOT found'} ({trial.straggler_s:.1f} s); hang: {trial.hang or 'NOT found'} ({trial.hang_s:.1f} s)"
    wrong = f"; wrongly named: {', '.join(trial.wrong)}" if trial.wrong else ""
    peer = f"torchrun: no step, nobody; {peer_s * 1e3:.1f} ms a step" if peer_s else ""
    return Row(
        SCRIPTS[name], f"{counted}; {times}; {found}{wrong}", f"all counted, ≤ {TOLERANCE:.0%}, both found", trial.met, peer,
        f"{trial.own_s / peer_s:.2f} times its step" if peer_s else "",
    )  # fmt: skip


def main() -> int:
    """Returns the exit status: 1 when a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS), help="these scripts alone")
    parser.add_argument("--no-peer", action="store_true", help="do not run them under torchrun")
    parser.add_argument("--json", action="store_true", help="the rows as JSON")
    asked = parser.parse_args()
    rows, taken = [], neighbours()
    for name in asked.only:
        with tempfile.TemporaryDirectory(prefix="no-code") as folder, tempfile.TemporaryDirectory(prefix="torchrun") as beside:
            trial = ScriptRun(name, Path(folder)).run()
            rows.append(row_of(name, trial, 0.0 if asked.no_peer else under_torchrun(name, Path(beside))))
            print(f"{name}: {rows[-1].figure}", file=sys.stderr, flush=True)
    return report([*rows, taken()], asked.json, "Unmodified scripts, four workers on two nodes of one machine")


if __name__ == "__main__":
    sys.exit(main())
