"""The history of a server on Kafka: written by a process of its own that may be killed, and that ends with the server, however that ends."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.cluster.brokers import INSTALL, tansu_binary
from eagle_eye import wire
from eagle_eye.clock import SystemClock
from eagle_eye.history.factory import open_history
from eagle_eye.stream import OBSERVATIONS, Stream
from eagle_eye.types import Batch, Block, Kind, Reading
from servers.kafka_site import Site, kafka_site

pytestmark = pytest.mark.skipif(tansu_binary() is None, reason=f"no broker here: {INSTALL}")
JOB = "team/gpt/run"
CONFIG = """
[server]
listen = "127.0.0.1:1"
http = ""

[stream.kafka]
brokers = "{brokers}"
replication = 1

[history]
file_s = 1.0
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with kafka_site(tmp_path, CONFIG) as made:
        yield made


def test_it_is_killed_and_goes_on_and_ends_with_its_server(site: Site) -> None:
    cluster, config, stream = site
    written = _Writer(stream)
    server = psutil.Process(cluster.start_further("detect", "--role", "detect").pid)
    history = open_history(config)

    def rows() -> list[float]:
        if not history.tables():
            return []
        return sorted(history.series("node", ["cpu_percent"], since=0.0, until=SystemClock().now() + 3600.0)["cpu_percent"].to_pylist())

    def has_written(number: int) -> Callable[[], bool]:
        def look() -> bool:
            written.one()
            return len(rows()) > number

        return look

    _wait(has_written(0))
    (writer,) = _children(server)
    writer.kill()
    killed_at = len(rows())
    _wait(has_written(killed_at + 2))
    assert (found := rows()) == [float(number) for number in range(len(found))], "each once, and none is missing"
    (another,) = _children(server)
    server.kill()
    _wait(lambda: not another.is_running() or another.status() == psutil.STATUS_ZOMBIE)


class _Writer:
    """Writes one batch after the other."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._number, self._schemas = stream, 0, wire.Schemas()

    def one(self) -> None:
        now = SystemClock().now()
        reading = Reading(source="host", kind=Kind.NODE, entities=("n",), names=("cpu_percent",), matrix=np.array([[self._number]], np.float32), time=now)
        schema = self._schemas.schema_of(reading)
        batch = Batch(node="n", incarnation="b", job=JOB, number=self._number, time=now, blocks=(Block(schema_id=schema.id, reading=reading),))
        records = ([] if self._number else [wire.encode(schema)]) + [wire.encode(batch)]
        self._stream.append(OBSERVATIONS, [(JOB, record) for record in records])
        self._number += 1


def _children(server: psutil.Process) -> list[psutil.Process]:
    """Those that are spawned, but for multiprocessing's own."""
    return [child for child in server.children() if "spawn_main" in " ".join(child.cmdline())]


def _wait(look: Callable[[], bool]) -> None:
    clock = SystemClock()
    until = clock.monotonic() + 240.0
    while not look():
        assert clock.monotonic() < until, "waited in vain"
        clock.sleep(0.3)
