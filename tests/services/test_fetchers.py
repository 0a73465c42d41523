"""Fetchers of a server on Kafka: processes that may be killed or stopped at any moment, and that end with the server, however that ends."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.cluster.brokers import INSTALL, tansu_binary
from detectors.diagnosis import Diagnosis
from detectors.runtime.replay import recorded_messages, replay
from eagle_eye import wire
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import SystemClock
from eagle_eye.stream import FINDINGS, OBSERVATIONS, Stream
from eagle_eye.types import Batch, Block, Entity, Event, Kind, Reading
from fakes.synthetic_frames import layout_of
from servers.kafka_site import Site, kafka_site

pytestmark = pytest.mark.skipif(tansu_binary() is None, reason=f"no broker here: {INSTALL}")
LAYOUT = layout_of(4, 2)
CONFIG = """
[server]
listen = "127.0.0.1:1"
http = ""

[stream]
fetchers = 2

[stream.kafka]
brokers = "{brokers}"
replication = 1

[history]
enabled = false
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with kafka_site(tmp_path, CONFIG) as made:
        yield made


def test_they_are_killed_and_stopped_and_each_record_is_evaluated_once(site: Site) -> None:
    cluster, config, stream = site
    written, rng = _Writer(stream), random.Random(1)
    server = psutil.Process(cluster.start_further("detect", "--role", "detect").pid)
    seen: set[int] = set()
    for _ in range(3):
        _wait(lambda: written.some() and len(_children(server)) == 2)
        victims = _children(server)
        seen |= {each.pid for each in victims}
        killed, stopped = rng.choice(victims), rng.choice(victims)
        stopped.suspend()  # if it is not killed it answers no more, and holds nobody up
        killed.kill()
        _wait(lambda: not _runs(killed))  # noqa: B023 - at once
    written.exits(6)
    _wait(lambda: written.some() and len(_found(stream)) >= 6)
    assert len(seen) > 2, "others took their places"
    replayed = replay(recorded_messages(stream), plugin_wiring.detectors(config), Diagnosis(), from_start=True)
    assert replayed.summary.endswith("are the same, byte for byte"), replayed.differences
    others = _children(server)
    server.kill()
    for each in others:
        each.resume()
    _wait(lambda: not any(map(_runs, others)))


def _found(stream: Stream) -> list[bytes]:
    return [message.value for message in stream.read(FINDINGS, 0, 0)]


class _Writer:
    """Four nodes that report, some of it twice, and workers that exit."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._number, self._schemas = stream, 0, wire.Schemas()
        self._put(wire.encode(LAYOUT))

    def some(self) -> bool:
        """A record of each node."""
        for node in LAYOUT.nodes:
            now, names = SystemClock().now(), ("cpu_percent",)
            reading = Reading(source="host", kind=Kind.NODE, entities=(node,), names=names, matrix=np.array([[self._number % 90]], np.float32), time=now)
            schema = self._schemas.schema_of(reading)
            batch = Batch(node=node, incarnation="b", job=LAYOUT.job, number=self._number, time=now, blocks=(Block(schema_id=schema.id, reading=reading),))
            records = ([] if self._number else [wire.encode(schema)]) + [wire.encode(batch)] * (1 + (self._number % 7 == 0))
            self._put(*records)
        self._number += 1
        return True

    def exits(self, count: int) -> None:
        for number, worker in enumerate(LAYOUT.workers[:count]):
            entity = Entity(kind=Kind.WORKER, name=worker)
            node = LAYOUT.node_of(worker)
            attributes = {"code": "-9", "signal": "SIGKILL", "epoch": "1"}
            self._put(wire.encode(Event(name="exit", job=LAYOUT.job, entity=entity, time=SystemClock().now(), node=node, incarnation="e", number=number, attributes=attributes)))

    def _put(self, *records: bytes) -> None:
        self._stream.append(OBSERVATIONS, [(LAYOUT.job, record) for record in records])


def _children(server: psutil.Process) -> list[psutil.Process]:
    """Those that are spawned, but for multiprocessing's own."""
    return [child for child in server.children() if _runs(child) and "spawn_main" in " ".join(child.cmdline())]


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _wait(look: Callable[[], bool]) -> None:
    clock = SystemClock()
    until = clock.monotonic() + 240.0
    while not look():
        assert clock.monotonic() < until, "waited in vain"
        clock.sleep(0.1)
