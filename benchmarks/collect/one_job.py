"""What one job of all nodes costs the process that evaluates it, by part, and what fetchers take over: up to which size one process holds it. A part of path_at_size.

Processor time of parts that are measured one after the other, so that a machine of two cores can show what four would do. The fetcher is a real process; in the
place of a broker it reads batches as Kafka hands them out, with signatures. Left out is the client's own work at the socket of a broker.
"""

import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import psutil
from rich.progress import Progress

from benchmarks.collect.one_core import JOB, PARTITION_S
from benchmarks.collect.paper_agents import (
    GPUS,
    LZ4,
    SCHEMAS,
    STEPS_SCHEMA,
    PaperNode,
    layout_of,
    nodes_of,
    numbers,
    record,
)
from benchmarks.report import Row
from detectors.diagnosis.diagnosis import Diagnosis
from detectors.runtime.evaluator import Evaluation, Evaluator
from eagle_eye import wire
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.stream_keys import StreamKey, StreamWriter
from eagle_eye.app import plugin_wiring
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import JobSnapshots
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.stream.fetched_partition import FetchedPartition
from eagle_eye.stream.fetcher import ChildProcess, Fetcher
from eagle_eye.stream.fetcher_demand import RECORDS_EACH_S, FetcherDemand
from eagle_eye.stream.kafka import kafka_messages
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.stream.record_signature import INCARNATION_BYTES, SignatureCheck, Signer
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import Mark

FETCHED_NODES, LAPS, READ_AT_ONCE = 2_000, 10, 2_048
TICKS, WARM = 12, 4
ROOT = bytes(32)


# --- what a fetcher does -----------------------------------------------------------------------------------------------------


class KafkaLog:
    """A second of a partition's records, again and again, as Kafka hands it out: a batch of each node, packed and signed."""

    def __init__(self, nodes: Sequence[PaperNode]) -> None:
        rng, now = np.random.default_rng(4), SystemClock().now()
        self._check = SignatureCheck(ROOT, late_s=1e9, unsigned=False, refused=_refused)
        self._batches = [_batch(_signed(node, numbers(rng), now), node.job, now) for node in nodes]

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """As a stream does; it ends after LAPS."""
        count = len(self._batches)
        places = range(offset, min(offset + limit, count * LAPS))
        data = b"".join(struct.pack(">q", place) + self._batches[place % count] for place in places)
        return self._check.check(kafka_messages(topic, partition, offset, data, holes=False)[0])


def _signed(node: PaperNode, values: tuple[np.ndarray, np.ndarray], now: float) -> bytes:
    writer = StreamWriter(identity=Identity(kind=CertificateKind.NODE, name=node.name), ends=now + 1e6)
    signer = Signer(StreamKey(writer=writer, key=writer.key(ROOT)), os.urandom(INCARNATION_BYTES), SystemClock())
    return signer.sign(OBSERVATIONS, node.job, record(node, 1, now, values, step=1))


def _batch(value: bytes, key: str, now: float) -> bytes:
    """A batch of one record, without its first eight bytes, the offset."""
    from kafka.record import MemoryRecordsBuilder

    records = MemoryRecordsBuilder(2, LZ4, 1 << 20)
    records.append(timestamp=int(now * 1000), key=key.encode(), value=value, headers=[])
    records.close()
    return bytes(records.buffer())[8:]


def _refused(message: Message, why: str) -> None:
    raise AssertionError(f"record {message.offset} is refused: {why}")


def _serve(count: int, connection: socket.socket) -> None:
    Fetcher(connection, KafkaLog(nodes_of([(JOB, 0)], count)), OBSERVATIONS, 0).run()  # type: ignore[arg-type]  # it is read, and nothing else


def _spawn(started: list[int], count: int, connection: socket.socket) -> ChildProcess:
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(count, connection), daemon=True)
    process.start()
    assert process.pid is not None
    started.append(process.pid)
    return process


def fetched(bar: Progress) -> tuple[float, float]:
    """Processor seconds a record of (a fetcher, whoever takes its records over)."""
    clock, started, end = SystemClock(), list[int](), FETCHED_NODES * LAPS
    reads = FetchedPartition(
        MemoryStream(), OBSERVATIONS, 0, partial(_spawn, started, FETCHED_NODES), FetcherDemand(1, 2, clock), clock=clock,
        on_notice=lambda notice: print(notice.message), answer_s=600.0,
    )  # fmt: skip
    task = bar.add_task("a fetcher", total=end)
    tailer = Tailer(reads, OBSERVATIONS, 0, 0)
    while not tailer.read(READ_AT_ONCE):
        clock.sleep(0.05)
    fetcher, first = psutil.Process(started[0]), tailer.offset
    theirs, ours = sum(fetcher.cpu_times()[:2]), time.thread_time()
    while tailer.offset < end:
        assert tailer.read(READ_AT_ONCE) is not None
        bar.update(task, completed=tailer.offset)
    count = end - first
    theirs, ours = sum(fetcher.cpu_times()[:2]) - theirs, time.thread_time() - ours
    reads.close()
    bar.remove_task(task)
    return theirs / count, ours / count


# --- what is left --------------------------------------------------------------------------------------------------------------


@dataclass
class Parts:
    """Processor seconds of each tick."""

    headers: list[float] = field(default_factory=list)
    frames: list[float] = field(default_factory=list)
    detectors: list[float] = field(default_factory=list)
    snapshots: list[float] = field(default_factory=list)

    def medians(self) -> list[float]:
        return [float(np.median(each[WARM:])) for each in (self.headers, self.frames, self.detectors, self.snapshots)]


def evaluated(count: int, bar: Progress) -> Parts:
    """From the bytes of the records on."""
    nodes, rng, parts = nodes_of([(JOB, 0)], count), np.random.default_rng(3), Parts()
    values = [numbers(rng) for _ in range(64)]
    evaluator, reader, snapshots = Evaluator(plugin_wiring.detectors(Config()), Diagnosis()), wire.RecordReader(), JobSnapshots()
    for schema in (*SCHEMAS, STEPS_SCHEMA):
        evaluator.take(schema)
    evaluator.take(layout_of(JOB, nodes, 0.5))
    task = bar.add_task("one job", total=TICKS)
    for number in range(1, TICKS + 1):
        payloads = [record(node, number, float(number), values[(node.index + number) % 64], step=number) for node in nodes]
        began = time.process_time()
        records = [reader.read(payload) for payload in payloads]
        read = time.process_time()
        for each in records:
            evaluator.take(each)
        fed = time.process_time()
        building, evaluation = _ticked(evaluator, Mark(mark="tick", generation=1, number=number, time=number + 0.5))
        ticked = time.process_time()
        for frame in evaluation.frames:
            snapshots.of(frame)
        parts.headers.append(read - began)
        parts.frames.append(fed - read + building)
        parts.detectors.append(ticked - fed - building)
        parts.snapshots.append(time.process_time() - ticked)
        bar.advance(task)
    bar.remove_task(task)
    return parts


def _ticked(evaluator: Evaluator, mark: Mark) -> tuple[float, Evaluation]:
    """(processor seconds until the frame was there, what came of it)"""
    builder, building = evaluator.jobs[JOB].builder, [0.0]
    tick = builder.tick

    def timed(mark: Mark) -> Frame:
        began = time.process_time()
        frame = tick(mark)
        building[0] = time.process_time() - began
        return frame

    builder.tick = timed  # type: ignore[method-assign]
    evaluation = evaluator.take(mark)
    builder.tick = tick  # type: ignore[method-assign]
    assert evaluation is not None
    return building[0], evaluation


# --- the figures -----------------------------------------------------------------------------------------------------------------


def job_rows(count: int, bar: Progress) -> list[Row]:
    """Both, and what follows."""
    fetcher, taken = fetched(bar)
    headers, frames, detectors, snapshots = evaluated(count, bar).medians()
    rest = headers + frames + detectors + snapshots
    alone, beside = rest + fetcher * count, rest + taken * count
    micro = 1e6 / count
    sizes = [count / seconds for seconds in (alone, beside)]
    return [
        Row("a fetcher: a record of a node unpacked, its signature checked, handed over", f"{fetcher * 1e6:.1f} µs"),
        Row("the process that evaluates, of a node and tick: taken over, header, frame, detectors, snapshot", f"{taken * 1e6:.1f} + {headers * micro:.1f} + {frames * micro:.1f} + {detectors * micro:.1f} + {snapshots * micro:.1f} µs"),
        Row(f"{count:,} nodes, one job: processor time of a tick of that process", f"{beside * 1e3:.0f} ms", f"≤ {PARTITION_S * 1e3:.0f} ms", beside <= PARTITION_S, f"without fetchers: {alone * 1e3:.0f} ms", f"{alone / beside:.1f}×"),
        Row("the job whose tick takes a whole core of it, at 1 Hz, with as many fetchers as that asks for", f"{sizes[1]:,.0f} nodes, {sizes[1] * GPUS:,.0f} GPUs; {np.ceil(sizes[1] / RECORDS_EACH_S):.0f} fetchers", peer=f"without fetchers: {sizes[0]:,.0f} nodes"),
    ]
