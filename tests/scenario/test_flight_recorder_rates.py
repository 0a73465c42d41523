"""Bytes of a real job's collectives, as its agents write them into the stream each second, beside what its script has moved."""

import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Batch, Reading, SchemaRecord
from eagle_eye.wire import Schemas, decode

LOOP = Path(__file__).with_name("all_reduce_loop.py")
MOVED = "moved"
DEADLINE_S = 150.0
ENOUGH = 24
"""Rows of both workers together."""
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false
"""


@pytest.fixture(scope="module")
def demo_job() -> Iterator[DemoJob]:
    """Two nodes with a worker each, at work."""
    with tempfile.TemporaryDirectory(prefix="bytes") as folder:
        command = (sys.executable, str(LOOP), str(Path(folder) / MOVED))
        made = DemoJob(folder=Path(folder), config=CONFIG, command=command, job="test/bytes", workers_per_node=1, launch=("--preload", "none"), clock=SystemClock())
        try:
            made.start()
            assert made.wait(made.full, DEADLINE_S)
            yield made
        finally:
            made.stop()


class RowsInStream:
    """What the agents have written of `flight_recorder` since this was made."""

    def __init__(self, stream: EmbeddedStream, job: str) -> None:
        self.rows: list[dict[str, float]] = []
        self._stream, self._partition, self._offset, self._schemas = stream, stream.partition_of(OBSERVATIONS, job), 0, Schemas()

    def read(self) -> int:
        for message in self._stream.read(OBSERVATIONS, self._partition, self._offset):
            self._offset = message.offset + 1
            record = decode(message.value, self._schemas)
            if isinstance(record, SchemaRecord):
                self._schemas.add(record)
            elif isinstance(record, Batch):
                of_rings = [each.reading for each in record.blocks if isinstance(each.reading, Reading) and each.reading.source == "flight_recorder"]
                self.rows += [dict(zip(each.names, row.tolist(), strict=True)) for each in of_rings for row in each.matrix]
        return len(self.rows)


def moved(job: DemoJob) -> tuple[float, float]:
    """When (monotonic) rank 0 had moved how many bytes."""
    at, count = (job.folder / MOVED).read_text().split()
    return float(at), float(count)


def test_bytes_of_each_second_are_those_that_the_script_moves(demo_job: DemoJob) -> None:
    with EmbeddedStream(demo_job.cluster.state_dir / "stream") as stream:
        reader = RowsInStream(stream, demo_job.job + "/run-1")
        assert demo_job.wait(lambda: reader.read() > 0, DEADLINE_S)
        began, before = moved(demo_job)
        reader.rows.clear()
        assert demo_job.wait(lambda: reader.read() >= ENOUGH, DEADLINE_S)
        ended, after = moved(demo_job)
    rate = (after - before) / (ended - began)
    assert statistics.fmean(row["world_bytes_per_s"] for row in reader.rows) == pytest.approx(rate, rel=0.2)
    assert statistics.fmean(row["all_reduce_bytes_per_s"] for row in reader.rows) == pytest.approx(rate * 10 / 11, rel=0.2)
    assert {round(row["world_ring_mean_bytes"] / 4) for row in reader.rows if row["all_reduce_per_s"] > 0} <= set(range(140_000, 148_000))
    assert all(math.isnan(row["world_ring_bus_bandwidth_bytes_per_s"]) for row in reader.rows), "gloo has no durations"
