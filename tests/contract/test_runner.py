"""The runner in a thread of its own, over every kind of stream: an exit becomes an incident, and the record replays."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from detectors.diagnosis import Diagnosis
from detectors.exits import Exits
from detectors.runtime.replay import recorded_messages, replay
from detectors.runtime.runner import Runner
from eagle_eye import wire
from eagle_eye.clock import SystemClock
from eagle_eye.stream import OBSERVATIONS, Stream
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import Entity, Event, Incident, Kind
from fakes.synthetic_frames import layout_of

FACTORIES: dict[str, Callable[[Path], Stream]] = {
    "embedded": lambda directory: EmbeddedStream(directory, partitions=3),
    "memory": lambda _: MemoryStream(partitions=3),
}
DETECTORS = [("exits", Exits())]


@pytest.fixture(params=sorted(FACTORIES))
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stream]:
    with closing(FACTORIES[request.param](tmp_path / "stream")) as stream:
        yield stream


def test_an_exit_becomes_an_incident_while_the_runner_runs_and_the_record_replays(stream: Stream) -> None:
    layout = layout_of(2, 1)
    partition, clock = stream.partition_of(OBSERVATIONS, layout.job), SystemClock()
    told: list[Incident] = []
    found, stop = threading.Event(), threading.Event()

    def listen(incidents: list[Incident]) -> None:
        told.extend(incidents)
        found.set()

    runner = Runner(
        stream, partition, DETECTORS, Diagnosis(), clock=clock, generation=1, on_incidents=listen, tick_s=0.05
    )
    thread = threading.Thread(target=runner.run, args=(stop,))
    thread.start()
    try:
        worker = Entity(kind=Kind.WORKER, name=layout.workers[1])
        event = Event(
            name="exit", job=layout.job, entity=worker, time=clock.now(), node="node-1", incarnation="b", number=1,
            attributes={"code": "-9", "signal": "SIGKILL", "epoch": "1"},
        )  # fmt: skip
        stream.append(OBSERVATIONS, [(layout.job, wire.encode(layout)), (layout.job, wire.encode(event))])
        assert found.wait(30)
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert [culprit.entity for culprit in told[0].culprits] == [worker]
    replayed = replay(recorded_messages(stream), DETECTORS, Diagnosis())
    assert (replayed.differences, replayed.incidents) == ((), tuple(told))


def test_stop_from_another_thread_ends_it(stream: Stream) -> None:
    runner = Runner(stream, 0, DETECTORS, Diagnosis(), clock=SystemClock(), generation=1)
    thread = threading.Thread(target=runner.run)
    thread.start()
    runner.stop()
    thread.join(30)
    assert not thread.is_alive()
