"""What three faults of a broker cost: is every event judged once, in its order, and no incident lost or doubled?

    python -m benchmarks.cluster.kafka_faults               30 s each, on Tansu in a process of its own
    python -m benchmarks.cluster.kafka_faults --seconds 5   shorter

Real writers (one spool and one client for each node), a real broker, the real runner with all detectors and the real
diagnosis. Each job loses one worker: before, during or after the fault. Before the broker is killed, the runner is held
up for three seconds, so that the broker loses records that it had acknowledged and nobody had read.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.cluster.brokers import Proxy, Tansu
from benchmarks.report import Row, report
from detectors.diagnosis import Diagnosis
from detectors.runtime.runner import Runner
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import Config, KafkaConfig, StreamConfig
from eagle_eye.frames import Frame
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.factory import confirmed_by, open_stream_in
from eagle_eye.stream.spool import SpooledWriter
from eagle_eye.types import Entity, Event, Incident, Kind, Notice
from eagle_eye.wire import encode

NODES = 6
"""Each runs a job of its own."""
RATE_HZ = 20.0
"""Events of each node in a second."""
LEAD_S = 5.0
"""Before anything happens, and after the fault."""
HELD_S = 3.0
PATIENCE_S = 90.0
KINDS = {"frozen": "broker stopped (SIGSTOP)", "cut": "connections cut", "emptied": "broker killed, started empty"}


class Result(NamedTuple):
    """What was found of one fault."""

    events: int
    lost: int
    doubled: int
    out_of_order: int
    incidents: int
    incidents_lost: int
    incidents_doubled: int
    back_s: float
    """From the end of the fault to the first new event that was judged."""
    sent_again: int
    """Notices of writers and runner that the stream had begun anew."""

    @property
    def clean(self) -> bool:
        """Nothing is missing, twice or in the wrong order."""
        return not (self.lost or self.doubled or self.out_of_order or self.incidents_lost or self.incidents_doubled)


@dataclass
class Seen:
    """What the runner has told so far."""

    numbers: dict[str, list[int]] = field(default_factory=dict)
    """Node → numbers of its events in the order in which they were in frames."""
    incidents: dict[str, set[str]] = field(default_factory=dict)
    """Job → ids."""
    notices: list[Notice] = field(default_factory=list)

    def frame(self, frame: Frame) -> None:
        for event in frame.events:
            self.numbers.setdefault(event.node, []).append(event.number)

    def told(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            self.incidents.setdefault(incident.job, set()).add(incident.id)

    @property
    def count(self) -> int:
        """Events so far."""
        return sum(map(len, self.numbers.values()))


class Node:
    """One node: its writer and what it has written."""

    def __init__(self, index: int, writer: SpooledWriter, clock: Clock) -> None:
        self.name, self.job = f"node-{index}", f"t/faults/r{index}"
        self.written = 0
        self._worker = Entity(kind=Kind.WORKER, name=f"r{index}/{self.name}/0")
        self._writer, self._clock = writer, clock

    def tick(self) -> None:
        """An event that means nothing."""
        self._write("note", Entity(kind=Kind.NODE, name=self.name), {})

    def die(self) -> None:
        """The worker's death."""
        self._write("exit", self._worker, {"code": "-9", "signal": "SIGKILL", "rank": "0"})

    def _write(self, name: str, entity: Entity, attributes: dict[str, str]) -> None:
        event = Event(
            name=name, job=self.job, entity=entity, time=self._clock.now(), node=self.name, incarnation="b", number=self.written,
            attributes=attributes,
        )  # fmt: skip
        self.written += 1
        self._writer.write(OBSERVATIONS, self.job, encode(event), keep=True)


class Held(threading.Thread):
    """The runner, in a thread that can be held up."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(name="runner", daemon=True)
        self.runner, self.going, self.ended = runner, threading.Event(), threading.Event()
        self.going.set()

    def run(self) -> None:
        while not self.ended.is_set():
            self.going.wait()
            self.runner.step(0.2)
        self.runner.close()

    def end(self) -> None:
        self.ended.set()
        self.going.set()
        self.join(30.0)


def strike(
    kind: str, seconds: float, *, timeout_s: float = 10.0, lead_s: float = LEAD_S, clock: Clock | None = None
) -> Result:
    """One fault of `seconds`, on a broker of its own."""
    clock = clock or SystemClock()
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        broker = stack.enter_context(Tansu(proxy.address))
        proxy.target = broker.address
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = StreamConfig(partitions=2, kafka=KafkaConfig(brokers=proxy.address, timeout_s=timeout_s))
        seen = Seen()
        nodes = [stack.enter_context(_node(index, directory, settings, seen, clock)) for index in range(NODES)]
        runners = [stack.enter_context(_runner(number, directory, settings, seen, clock)) for number in range(2)]
        back_s = _play(_Fault(kind, seconds, broker, proxy, runners), lead_s, nodes, seen, clock)
        return _judged(nodes, seen, back_s)


@contextmanager
def _node(index: int, directory: Path, settings: StreamConfig, seen: Seen, clock: Clock) -> Iterator[Node]:
    stream = open_stream_in(directory, settings, clock)
    writer = SpooledWriter(
        stream, directory / "spool", clock=clock, name=f"node-{index}", confirmed_by=confirmed_by(settings),
        on_notice=seen.notices.append,
    )  # fmt: skip
    try:
        yield Node(index, writer, clock)
    finally:
        writer.close()
        stream.close()
        writer.close()


@contextmanager
def _runner(partition: int, directory: Path, settings: StreamConfig, seen: Seen, clock: Clock) -> Iterator[Held]:
    stream = open_stream_in(directory, settings, clock)
    runner = Runner(
        stream, partition, plugin_wiring.detectors(Config()), Diagnosis(), clock=clock, generation=1,
        on_frame=seen.frame, on_incidents=seen.told, on_notice=seen.notices.append,
    )  # fmt: skip
    held = Held(runner)
    held.start()
    try:
        yield held
    finally:
        held.end()
        stream.close()


@dataclass
class _Fault:
    kind: str
    seconds: float
    broker: Tansu
    proxy: Proxy
    runners: list[Held]

    def before(self) -> None:
        if self.kind == "emptied":
            for runner in self.runners:
                runner.going.clear()

    def begin(self) -> None:
        {"frozen": self.broker.freeze, "cut": self.proxy.cut, "emptied": self.broker.kill}[self.kind]()
        for runner in self.runners:
            runner.going.set()

    def end(self) -> None:
        {"frozen": self.broker.thaw, "cut": self.proxy.mend, "emptied": self.broker.start}[self.kind]()


def _play(fault: _Fault, lead_s: float, nodes: list[Node], seen: Seen, clock: Clock) -> float:
    """Write all the time; returns the seconds from the end of the fault to the first event judged after it."""
    began, struck, ended = lead_s, lead_s + HELD_S, lead_s + HELD_S + fault.seconds
    moments: list[tuple[float, Callable[[], None]]] = [(began, fault.before), (struck, fault.begin), (ended, fault.end)]
    deaths = (0.6 * began, struck - 0.5, struck + 0.2 * fault.seconds, struck + 0.8 * fault.seconds, ended + 0.5, ended + lead_s)
    moments += [(moment, node.die) for moment, node in zip(deaths, nodes, strict=True)]
    start, back_at, last = clock.monotonic(), 0.0, 0
    todo = sorted(moments, key=lambda each: each[0])
    while (elapsed := clock.monotonic() - start) < ended + lead_s + 1.0:
        while todo and todo[0][0] <= elapsed:
            todo.pop(0)[1]()
        for node in nodes:
            node.tick()
        if elapsed < ended:
            last = seen.count
        elif not back_at and seen.count > last:
            back_at = elapsed
        clock.sleep(1.0 / RATE_HZ)
    _settle(nodes, seen, clock)
    return (back_at or clock.monotonic() - start) - ended


def _settle(nodes: list[Node], seen: Seen, clock: Clock) -> None:
    """Until everything that was written has been judged, or patience is over."""
    end = clock.monotonic() + PATIENCE_S
    while clock.monotonic() < end and any(len(set(seen.numbers.get(node.name, ()))) < node.written for node in nodes):
        clock.sleep(0.2)
    clock.sleep(3.0)  # for what might come twice


def _judged(nodes: list[Node], seen: Seen, back_s: float) -> Result:
    numbers = {node.name: seen.numbers.get(node.name, []) for node in nodes}
    ids = [len(seen.incidents.get(node.job, ())) for node in nodes]
    return Result(
        events=sum(node.written for node in nodes),
        lost=sum(node.written - len(set(numbers[node.name])) for node in nodes),
        doubled=sum(len(each) - len(set(each)) for each in numbers.values()),
        out_of_order=sum(second < first for each in numbers.values() for first, second in pairwise(each)),
        incidents=sum(ids),
        incidents_lost=ids.count(0),
        incidents_doubled=sum(max(0, count - 1) for count in ids),
        back_s=back_s,
        sent_again=sum(notice.name == "stream.reset" for notice in seen.notices),
    )


def main() -> int:
    """Strike three times and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long each fault lasts")
    parser.add_argument("--only", choices=sorted(KINDS), help="one of the faults")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for kind in [options.only] if options.only else KINDS:
        print(f"{KINDS[kind]} ...", file=sys.stderr, flush=True)
        found = strike(kind, options.seconds)
        what = f"{KINDS[kind]} for {options.seconds:g} s, {found.events} events of {NODES} nodes"
        figure = (
            f"events lost {found.lost}, doubled {found.doubled}, out of order {found.out_of_order}; incidents {found.incidents}, "
            f"lost {found.incidents_lost}, doubled {found.incidents_doubled}"
        )
        rows.append(Row(what, figure, "every event once, in order per key; no incident lost or doubled", found.clean))
        rows.append(Row(f"{KINDS[kind]}: judged again after", f"{found.back_s:.1f} s; told to have begun anew {found.sent_again} times"))
    return report(rows, options.json, "Kafka: faults of the broker (no peer promises this: plain kafka-python lost or doubled is up to its user)")


if __name__ == "__main__":
    sys.exit(main())
