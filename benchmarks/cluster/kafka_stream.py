"""How many records of one node and second go through Kafka, one process writing and one reading.

    python -m benchmarks.cluster.kafka_stream                       on Tansu in a process of its own
    python -m benchmarks.cluster.kafka_stream --brokers host:9092   on a cluster of yours; it keeps the topics

Records are real batches: one node with 8 GPUs and 30 numbers each (about 1.3 KiB), and one with host and step blocks too
(about 5 KiB). The peer is plain kafka-python in the same run: its producer and consumer with the same batch size and
compression, which waits for nothing, looks into no record and knows no offsets.
"""

import argparse
import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import numpy as np

from benchmarks.cluster.brokers import Tansu
from benchmarks.report import Row, report
from eagle_eye.clock import SystemClock
from eagle_eye.config import KafkaConfig
from eagle_eye.stream.kafka import KafkaStream
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import Batch, Block, Kind, Reading
from eagle_eye.wire import encode

GOAL = 15_000
NODES = 2_000
CHUNK = 1_024
"""Records of one append: what a spool hands over at once."""
SIZES = {"1 KiB": (8, 30), "5 KiB": (40, 30)}
"""Name → rows and numbers of each record."""
PEER_BATCH = 512 << 10
Told = dict[str, float]


class Measured(NamedTuple):
    """One way through the broker."""

    written: float
    """Records in a second."""
    read: float
    write_cpu: float
    """Seconds of the writer's processor per second."""
    read_cpu: float
    broker_cpu: float
    together: float
    """Records in a second that were read while they were written."""
    writes_a_core: float
    """Records in a second of the writer's own processor, alone: what it could do if nothing else ran here."""
    reads_a_core: float


def record(rows: int, width: int, node: int) -> bytes:
    """A batch of one node with plausible values: they compress as telemetry does."""
    names = tuple(f"metric_{index}" for index in range(width))
    entities = tuple(f"GPU-{node}-{row}" for row in range(rows))
    random = np.random.default_rng(node)
    matrix = (random.normal(60, 5, (rows, width)) // 0.5 * 0.5).astype("<f4")
    reading = Reading(source="gpu", kind=Kind.GPU, entities=entities, names=names, matrix=matrix, time=1.0)
    block = Block(schema_id="gpu", reading=reading)
    return encode(Batch(node=f"node-{node}", incarnation="b", job="t/bench/r", number=node, time=1.0, blocks=(block,)))


def main() -> int:
    """Measure and print; returns 1 when the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brokers", default="", help="host:port; default: a Tansu of our own")
    parser.add_argument("--records", type=int, default=120_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", nargs=3, metavar=("WHAT", "TOPIC", "SIZE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        return _part(options.part, options.brokers, options.records)
    rows = [row for size in SIZES for row in _rows(size, options.brokers, options.records)]
    return report(rows, options.json, "Kafka: one record per node and second, one process each way")


def _rows(size: str, brokers: str, records: int) -> list[Row]:
    count = records if size == "1 KiB" else records // 3
    ours, plain = (_measured(way, size, brokers, count) for way in ("ours", "plain"))
    bytes_ = len(record(*SIZES[size], 0))
    what = f"records of {bytes_ / 1024:.1f} KiB, lz4"

    def row(name: str, figure: float, peer: float, goal: int = 0) -> Row:
        met = figure >= goal if goal else None
        told = f"≥ {goal:,} /s" if goal else ""
        return Row(f"{what}: {name}", f"{figure:,.0f} /s", told, met, f"kafka-python {peer:,.0f} /s", f"{figure / peer:.2f}")

    def each(measured: Measured) -> str:
        return f"{measured.writes_a_core:,.0f} written, {measured.reads_a_core:,.0f} read"

    cpu = f"writer {ours.write_cpu:.2f}, reader {ours.read_cpu:.2f}, broker {ours.broker_cpu:.2f} of a core"
    return [
        row("written and acknowledged, alone", ours.written, plain.written),
        row("read, alone", ours.read, plain.read),
        row("read while they are written", ours.together, plain.together, GOAL),
        Row(f"{what}: for one second of the client's own processor", each(ours), "", None, f"kafka-python {each(plain)}"),
        Row(f"{what}: what it costs while both work", cpu),
    ]


def _measured(way: str, size: str, brokers: str, records: int) -> Measured:
    with _broker(brokers) as (address, cpu):
        alone, both = f"bench-{uuid.uuid4().hex[:8]}", f"bench-{uuid.uuid4().hex[:8]}"
        wrote = _wait(_start("write", way, alone, size, address, records))
        read = _wait(_start("read", way, alone, size, address, records))
        before, clock = cpu(), SystemClock()
        began = clock.monotonic()
        reader = _start("read", way, both, size, address, records)
        writer = _start("write", way, both, size, address, records)
        last_write, last_read = _wait(writer), _wait(reader)
        busy = (cpu() - before) / (clock.monotonic() - began)
        return Measured(
            wrote["rate"], read["rate"], last_write["cpu"], last_read["cpu"], busy, min(last_write["rate"], last_read["rate"]),
            wrote["rate"] / wrote["cpu"], read["rate"] / read["cpu"],
        )  # fmt: skip


@contextmanager
def _broker(brokers: str) -> Iterator[tuple[str, Callable[[], float]]]:
    """Address, and the processor seconds that it has used (0 where it is not ours to see)."""
    if brokers:
        yield brokers, lambda: 0.0
    else:
        with Tansu() as tansu:
            yield tansu.address, lambda: tansu.cpu_s


def _start(what: str, way: str, topic: str, size: str, address: str, records: int) -> "subprocess.Popen[str]":
    line = [sys.executable, "-m", "benchmarks.cluster.kafka_stream", "--brokers", address, "--records", str(records)]
    return subprocess.Popen([*line, "--part", f"{what}-{way}", topic, size], stdout=subprocess.PIPE, text=True)


def _wait(process: "subprocess.Popen[str]") -> Told:
    output, _ = process.communicate(timeout=600)
    if process.returncode:
        raise SystemExit(f"a part of the benchmark ended with {process.returncode}")
    told: Told = json.loads(output)
    return told


# --- the parts, each in a process of its own ---------------------------------------------------------------------------


def _part(part: list[str], brokers: str, records: int) -> int:
    import time

    what, topic, size = part
    work = {"write-ours": _write, "read-ours": _read, "write-plain": _write_plain, "read-plain": _read_plain}[what]
    values = [record(*SIZES[size], node) for node in range(NODES)]
    with closing(KafkaStream(KafkaConfig(brokers=brokers))) as stream:
        stream.partitions(topic)
    clock = SystemClock()
    busy = time.process_time()
    seconds = work(brokers, topic, values, records)
    busy = time.process_time() - busy
    print(json.dumps({"rate": records / seconds, "cpu": busy / seconds, "ended": clock.now()}))
    return 0


def _write(brokers: str, topic: str, values: list[bytes], records: int) -> float:
    clock = SystemClock()
    with closing(KafkaStream(KafkaConfig(brokers=brokers))) as stream:
        stream.append(topic, [("warm", b"")])
        began = clock.monotonic()
        for at in range(0, records, CHUNK):
            stream.append(topic, [(f"node-{i % NODES}", values[i % NODES]) for i in range(at, min(at + CHUNK, records))])
        return clock.monotonic() - began


def _read(brokers: str, topic: str, _values: list[bytes], records: int) -> float:
    clock = SystemClock()
    with closing(KafkaStream(KafkaConfig(brokers=brokers))) as stream:
        follower, found, began = Tailer(stream, topic, 0, 0), 0, 0.0
        while found <= records:  # one more: the record that warmed the writer up
            messages = follower.read(2048) or []
            if not messages:
                follower.wait(0.1)
            elif not began:
                began = clock.monotonic()
            found += len(messages)
        return clock.monotonic() - began


def _write_plain(brokers: str, topic: str, values: list[bytes], records: int) -> float:
    from kafka import KafkaProducer

    clock = SystemClock()
    producer = KafkaProducer(bootstrap_servers=brokers, compression_type="lz4", batch_size=PEER_BATCH, linger_ms=50)
    producer.send(topic, b"", b"warm").get(30)
    began = clock.monotonic()
    for i in range(records):
        producer.send(topic, values[i % NODES], f"node-{i % NODES}".encode(), partition=0)
    producer.flush()
    seconds = clock.monotonic() - began
    producer.close()
    return seconds


def _read_plain(brokers: str, topic: str, _values: list[bytes], records: int) -> float:
    from kafka import KafkaConsumer, TopicPartition

    clock = SystemClock()
    consumer = KafkaConsumer(bootstrap_servers=brokers, max_partition_fetch_bytes=8 << 20, max_poll_records=2048)
    place = TopicPartition(topic, 0)
    consumer.assign([place])
    consumer.seek(place, 0)
    found, began = 0, 0.0
    while found <= records:
        messages = consumer.poll(timeout_ms=100).get(place, [])
        if messages and not began:
            began = clock.monotonic()
        found += len(messages)
    seconds = clock.monotonic() - began
    consumer.close()
    return seconds


if __name__ == "__main__":
    sys.exit(main())
