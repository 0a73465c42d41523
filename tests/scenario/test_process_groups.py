"""Process groups of a real job: its parallel ranks are in the layout undeclared, and who has not begun a collective is seen in its numbers."""

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from collectors.collective import CollectiveCollector
from eagle_eye.app.demo.demo_job import DemoJob
from eagle_eye.clock import SystemClock
from eagle_eye.stream import JOB_SNAPSHOTS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import JobSnapshot, Layout, Reading

MESH_LOOP = Path(__file__).with_name("mesh_loop.py")
LATE = "late"
DEADLINE_S = 150.0
CONFIG = """\
[server]
listen = "127.0.0.1:{port}"
http = ""

[history]
enabled = false
"""


@pytest.fixture(scope="module")
def demo_job() -> Iterator[DemoJob]:
    """Two nodes with two workers each, at work."""
    with tempfile.TemporaryDirectory(prefix="mesh") as folder:
        command = (sys.executable, str(MESH_LOOP), str(Path(folder) / LATE))
        made = DemoJob(folder=Path(folder), config=CONFIG, command=command, job="test/mesh", launch=("--preload", "none"), clock=SystemClock())
        try:
            made.start()
            assert made.wait(made.full, DEADLINE_S)
            yield made
        finally:
            made.stop()


def test_parallel_ranks_that_nobody_has_declared_are_in_the_layout(demo_job: DemoJob) -> None:
    """In what the engine is told of the job; the newest snapshot with a layout counts."""
    with EmbeddedStream(demo_job.cluster.state_dir / "stream") as stream:
        partition, offset, layouts = stream.partition_of(JOB_SNAPSHOTS, demo_job.job), 0, list[Layout]()

        def places() -> list[tuple[int, int, int]]:
            nonlocal offset
            for message in stream.read(JOB_SNAPSHOTS, partition, offset):
                offset = message.offset + 1
                snapshot = msgspec.json.decode(message.value, type=JobSnapshot)
                layouts.extend(filter(None, [snapshot.layout]))
            return [(place.rank, place.pp, place.tp) for place in layouts[-1].placements] if layouts else []

        assert demo_job.wait(lambda: places() == [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)], DEADLINE_S), places()


def test_who_has_not_begun_the_collective_that_all_others_are_in_is_one_behind(demo_job: DemoJob) -> None:
    collectors = [CollectiveCollector(run_dir=demo_job.cluster.run_dir(node)) for node in demo_job.nodes]

    def numbers() -> list[tuple[float, float, bool]]:
        """(begun, over, one is under way for a second) of each rank, in all its group of all ranks."""
        readings = [each for collector in collectors for each in collector.collect() if isinstance(each, Reading)]
        rows = {worker: dict(zip(each.names, row.tolist(), strict=True)) for each in readings for worker, row in zip(each.entities, each.matrix, strict=True)}
        return [(row["world_collectives"], row["world_collectives_over"], row["world_collective_age_s"] >= 1.0) for _, row in sorted(rows.items())]

    def held() -> bool:
        found = numbers()
        over = found[1][1] if len(found) == 4 else -1.0
        return found == [(over + 1, over, True), (over, over, False), (over + 1, over, True), (over + 1, over, True)]

    late = demo_job.folder / LATE
    late.touch()
    try:
        assert demo_job.wait(held, DEADLINE_S), numbers()
    finally:
        late.unlink()
