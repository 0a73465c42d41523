"""A recorded run judged again: the same findings and incidents, byte for byte; with one number changed, others.

    python -m benchmarks.chain.replay [--state-dir DIR] [--config FILE] [--json]

Without DIR it makes a record: a job of four workers on two nodes, one of them killed, one stopped, one raising an
exception. The changed record differs in one reading: the loss of one worker in one healthy step is infinite.
"""

import argparse
import math
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.chain.detection import field, say
from benchmarks.report import Row, report
from detectors.diagnosis import Diagnosis
from detectors.runtime.replay import ReplayResult, recorded_messages
from detectors.runtime.replay import replay as replayed
from eagle_eye import config as configuration
from eagle_eye import wire
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Batch, Block, Mark, Record, SchemaRecord, StepReading

DRILLS = ("kill", "stop", "exception")
HABIT = 10
"""The changed step comes after so many of the same epoch that are as they were recorded."""


def make(folder: Path, seed: int) -> None:
    """Record a short run with its faults."""
    with field(folder, seed) as under_fire:
        for kind in DRILLS:
            under_fire.worker(kind)
        under_fire.demo_job.wait_steps(20, 60.0)


def messages_of(state: Path) -> list[Message]:
    """Everything that was recorded."""
    stream = EmbeddedStream(state / "stream", clock=SystemClock())
    try:
        return list(recorded_messages(stream))
    finally:
        stream.close()


@dataclass(frozen=True, slots=True)
class Changed:
    """A record in which one number is another."""

    messages: list[Message]
    what: str


def changed(messages: list[Message]) -> Changed:
    """The same record with one loss that is infinite, some steps after the beginning of what it holds."""
    position, batch, block, row = next(_steps_with_loss(messages))
    reading = block.reading
    assert isinstance(reading, StepReading)
    values = reading.values.copy()
    values[row, 0, reading.names.index("loss")] = math.inf
    other = msgspec.structs.replace(block, reading=msgspec.structs.replace(reading, values=values))
    blocks = tuple(other if each is block else each for each in batch.blocks)
    message = messages[position]._replace(value=wire.encode(msgspec.structs.replace(batch, blocks=blocks)))
    what = f"the loss of {reading.workers[0]} in step {reading.numbers[row]} is infinite"
    return Changed([*messages[:position], message, *messages[position + 1 :]], what)


def _steps_with_loss(messages: list[Message]) -> Iterator[tuple[int, Batch, Block, int]]:
    """(position, batch, block, row) of steps that the first worker of a reading has done, after others."""
    for position, record in decoded(messages):
        if isinstance(record, Batch):
            for block in record.blocks:
                reading = block.reading
                if isinstance(reading, StepReading) and "loss" in reading.names:
                    done = [row for row in range(HABIT, len(reading.numbers)) if np.isfinite(reading.ends[row - HABIT : row + 1, 0]).all()]
                    yield from ((position, record, block, row) for row in done if reading.epochs[row - HABIT] == reading.epochs[row])


def decoded(messages: list[Message]) -> Iterator[tuple[int, Record]]:
    """(position, record) of each observation."""
    schemas = wire.Schemas()
    for position, message in enumerate(messages):
        if message.topic == OBSERVATIONS:
            record = wire.decode(message.value, schemas)
            if isinstance(record, SchemaRecord):
                schemas.add(record)
            yield position, record


def duration_s(messages: list[Message]) -> float:
    """From the first mark to the last."""
    times = [record.time for _, record in decoded(messages) if isinstance(record, Mark)]
    return max(times) - min(times)


def run(config: Config, messages: list[Message]) -> tuple[ReplayResult, float]:
    """(what was found again, seconds it took)"""
    clock = SystemClock()
    found, began = plugin_wiring.detectors(config), clock.monotonic()
    again = replayed(messages, found, Diagnosis(), from_start=True)
    return again, clock.monotonic() - began


def rows_of(config: Config) -> list[Row]:
    """Replay the record as it is, and changed."""
    messages = messages_of(config.state)
    length = duration_s(messages)
    same, took = run(config, messages)
    altered = changed(messages)
    other, _ = run(config, altered.messages)
    for difference in [*same.differences[:5], *other.differences[:3]]:
        say(str(difference)[:600])
    found = f"{same.records} records, {len(same.findings)} revisions of findings, {len(same.incidents)} of incidents"
    known = {incident.id for incident in same.incidents}
    new = [incident for incident in other.incidents if incident.id not in known]
    accused = sorted({f"{incident.cause}, {culprit.entity}" for incident in new for culprit in incident.culprits})
    return [
        Row(f"a record of {length:.0f} s again: {found}", f"{len(same.differences)} of {same.compared} differ", "0", not same.differences and same.compared > 0),
        Row(f"the same, but {altered.what}", f"{len(other.differences)} differ; new: {'; '.join(accused) or 'nobody accused'}", "> 0", bool(other.differences)),
        Row("seconds of record judged per second", f"{length / took:.0f} ({took:.2f} s)"),
    ]


def main() -> int:
    """Record unless there is one, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-dir", default="", help="of a server that ran; default: a record is made")
    parser.add_argument("--config", default="", help="its configuration; default: eagle-eye.toml beside DIR, else the defaults")
    parser.add_argument("--seed", type=int, default=random.randrange(1000))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    with tempfile.TemporaryDirectory(prefix="eagle-eye-replay-") as folder:
        state = Path(options.state_dir) if options.state_dir else Path(folder) / "state"
        if not options.state_dir:
            make(Path(folder), options.seed)
        beside = state.parent / "eagle-eye.toml"
        file = options.config or (beside if beside.is_file() else None)
        rows = rows_of(configuration.load(file, state_dir=str(state)))
    return report(rows, options.json, "a record judged again")


if __name__ == "__main__":
    sys.exit(main())
