"""The telemetry of 10,000 nodes × 8 GPUs × 30 metrics at 1 Hz, through Kafka into frames and detectors, for minutes.

python -m benchmarks.cluster.telemetry [--seconds 300] [--nodes 10000] [--json]

Once as one job with one consumer, once as eight jobs on eight partitions with two. One process writes one record per node
and second with plain kafka-python, as fast as the second goes; the consumers are real `eagle-eye server --role detect`,
beside one that leads. The lag is what lies in the topic and is not judged and committed yet. The broker is Tansu, in memory.
"""

import argparse
import multiprocessing
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from rich.progress import Progress

from benchmarks.cluster.brokers import Tansu
from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import load
from eagle_eye.ports import free_port
from eagle_eye.stream import OBSERVATIONS, RUNNER_GROUP, Stream
from eagle_eye.stream.factory import open_stream
from eagle_eye.types import Batch, Block, Floats, Kind, Layout, RankPlacement, Reading, SchemaRecord
from tests.fakes.synthetic_frames import GPU_NORMALS

GPUS, METRICS = 8, 30
NAMES = (*GPU_NORMALS, *(f"site_metric_{index}" for index in range(METRICS - len(GPU_NORMALS))))
LAG_S = 3.0
"""Kept up: never further behind than so many seconds of records."""
CONFIG = """
[server]
listen = "127.0.0.1:{port}"
http = ""

[stream]
partitions = {partitions}

[stream.kafka]
brokers = "{brokers}"
replication = 1

[history]
enabled = false
"""


@dataclass
class Course:
    """What was seen of one run."""

    lags: list[int] = field(default_factory=list)
    """Records behind, once a second."""
    written: int = 0
    late_s: float = 0.0
    """By how much the writer itself fell behind its clock."""
    consumer_cpu: float = 0.0
    """Cores, all consumers together."""
    broker_cpu: float = 0.0
    writer_cpu: float = 0.0
    consumer_mb: float = 0.0
    """Of the largest one, at the end."""


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether the goals were met."""
    parser = argparse.ArgumentParser(description="telemetry of a cluster through Kafka")
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    parser.add_argument("--seconds", type=int, default=300, help="of each of the two runs (300)")
    parser.add_argument("--nodes", type=int, default=10_000, help="nodes in all (10000)")
    options = parser.parse_args(arguments)
    rows: list[Row] = []
    for jobs, consumers in ((1, 1), (8, 2)):
        with tempfile.TemporaryDirectory(prefix="eagle-eye-telemetry-") as folder, Tansu() as broker:
            course = measure(Path(folder), broker, jobs, consumers, options.nodes, options.seconds, SystemClock())
        rows += _rows(course, jobs, consumers, options.nodes)
    return report(rows, json=options.json, title=f"Telemetry of {options.nodes:,} nodes × {GPUS} × {METRICS} at 1 Hz")


def _rows(course: Course, jobs: int, consumers: int, nodes: int) -> list[Row]:
    steady = course.lags[len(course.lags) // 10 :]
    worst, last = max(steady, default=0), course.lags[-1] if course.lags else 0
    kept = worst <= LAG_S * nodes and course.late_s <= LAG_S
    name = f"{jobs} job{'s' * (jobs > 1)}, {consumers} consumer{'s' * (consumers > 1)}"
    numbers = course.written * GPUS * METRICS
    return [
        Row(f"{name}: kept up for {len(course.lags)} s", f"worst lag {worst / nodes:.1f} s ({worst:,} records), at the end {last / nodes:.1f} s", f"≤ {LAG_S:g} s", kept),
        Row(f"{name}: written", f"{course.written:,} records, {numbers / 1e6:,.0f} M numbers; the writer at most {course.late_s:.1f} s late"),
        Row(f"{name}: cores", f"consumers {course.consumer_cpu:.2f}, broker {course.broker_cpu:.2f}, writer {course.writer_cpu:.2f}; largest consumer {course.consumer_mb:.0f} MB"),
    ]  # fmt: skip


def measure(folder: Path, broker: Tansu, jobs: int, consumers: int, nodes: int, seconds: int, clock: Clock) -> Course:
    """One run in a folder of its own."""
    config_file = folder / "eagle-eye.toml"
    config_file.write_text(CONFIG.format(port=free_port(), brokers=broker.address, partitions=jobs))
    cluster = LocalCluster(folder=folder, config_file=config_file, clock=clock, state_dir=folder / "state")
    stream = open_stream(load(config_file, state_dir=str(cluster.state_dir)), clock)
    course = Course()
    names = _names(stream, jobs)
    try:
        _announce(stream, names, nodes, clock)
        cluster.start_server("--role", "lead")
        watchers = [cluster.start_further(f"detect-{index}", "--role", "detect") for index in range(consumers)]
        _settle(cluster, stream, jobs, clock)
        _follow(course, broker, stream, [watcher.pid for watcher in watchers], names, nodes, seconds, clock)
    finally:
        cluster.stop()
        stream.close()
    return course


def _names(stream: Stream, jobs: int) -> list[str]:
    """One job for each partition."""
    names: dict[int, str] = {}
    index = 0
    while len(names) < jobs:
        name = f"bench/telemetry-{index}/run-{index}"
        names.setdefault(stream.partition_of(OBSERVATIONS, name), name)
        index += 1
    return list(names.values())


def _announce(stream: Stream, jobs: Sequence[str], nodes: int, clock: Clock) -> None:
    schema = SchemaRecord(id="bench-gpu", source="gpu", kind=Kind.GPU, names=NAMES)
    for number, job in enumerate(jobs):
        run = job.rpartition("/")[2]
        mine = range(number * nodes // len(jobs), (number + 1) * nodes // len(jobs))
        places = tuple(
            RankPlacement(worker=f"{run}/node-{node}/{slot}", node=f"node-{node}", rank=index * GPUS + slot, local_rank=slot, gpu=gpu(node, slot))
            for index, node in enumerate(mine)
            for slot in range(GPUS)
        )
        first = places[0].node
        layout = Layout(job=job, epoch=1, time=clock.now(), coordinator=first, launchers={first: "127.0.0.1:1"}, placements=places, reason="start")
        stream.append(OBSERVATIONS, [(job, wire.encode(schema)), (job, wire.encode(layout))])


def gpu(node: int, slot: int) -> str:
    """A GPU's name, as long as a UUID."""
    return f"GPU-{node:08x}-0000-4000-8000-{slot:012x}"


def _settle(cluster: LocalCluster, stream: Stream, partitions: int, clock: Clock) -> None:
    """Until every partition has an owner that has begun to judge."""
    while any(stream.committed(RUNNER_GROUP, OBSERVATIONS, each) is None for each in range(partitions)):
        cluster.check()
        clock.sleep(0.1)


def _follow(
    course: Course, broker: Tansu, stream: Stream, watchers: Sequence[int], jobs: Sequence[str], nodes: int, seconds: int, clock: Clock
) -> None:
    processes = [psutil.Process(pid) for pid in watchers]
    context = multiprocessing.get_context("spawn")
    written, told = context.Pipe(duplex=False)
    writer = context.Process(target=write, args=(broker.address, tuple(jobs), nodes, seconds, told), daemon=True)
    before = _cpu(processes), broker.cpu_s
    writer.start()
    began = clock.monotonic()
    with Progress(transient=True) as bar:
        task = bar.add_task(f"{len(jobs)} jobs, {len(watchers)} consumers", total=seconds)
        while writer.is_alive():
            clock.sleep(1.0)
            course.lags.append(_lag(stream, len(jobs)))
            bar.update(task, completed=clock.monotonic() - began, description=f"lag {course.lags[-1]:,}")
    passed = clock.monotonic() - began
    if writer.exitcode:
        raise RuntimeError(f"the writer of records ended with {writer.exitcode}; its traceback stands above")
    course.written, course.late_s, used = written.recv()
    course.consumer_cpu, course.broker_cpu = (_cpu(processes) - before[0]) / passed, (broker.cpu_s - before[1]) / passed
    course.writer_cpu = used / passed
    course.consumer_mb = max(process.memory_info().rss for process in processes) / (1 << 20)


def _lag(stream: Stream, partitions: int) -> int:
    return sum(
        stream.end(OBSERVATIONS, each) - (stream.committed(RUNNER_GROUP, OBSERVATIONS, each) or 0) for each in range(partitions)
    )


def _cpu(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


# --- the writer's process ----------------------------------------------------------------------------------------------


def write(brokers: str, jobs: tuple[str, ...], nodes: int, seconds: int, told: "multiprocessing.connection.Connection") -> None:
    """One record per node and second, by plain kafka-python, spread over each second."""
    from kafka import KafkaProducer

    from eagle_eye.stream.partitioner import partition_of

    clock = SystemClock()
    producer = KafkaProducer(bootstrap_servers=brokers, compression_type="lz4", linger_ms=20, batch_size=256 << 10)
    rng = np.random.default_rng(1)
    blocks = [_numbers(rng) for _ in range(64)]
    places = [(job, partition_of(job, len(jobs))) for job in jobs for _ in range(nodes // len(jobs))]
    began, late, written = clock.monotonic(), 0.0, 0
    for second in range(seconds):
        for node, (job, partition) in enumerate(places):
            payload = _record(node, job, second, blocks[(node + second) % len(blocks)], clock.now())
            producer.send(OBSERVATIONS, key=job.encode(), value=payload, partition=partition)
            if node % 500 == 0:  # spread over the second, as the nodes of a cluster are
                early = began + second + node / len(places) - clock.monotonic()
                if early > 0:
                    clock.sleep(early)
                late = max(late, -early)
        written += len(places)
    producer.flush()
    times = psutil.Process().cpu_times()
    told.send((written, late, float(times.user + times.system)))


def _numbers(rng: np.random.Generator) -> Floats:
    columns = [rng.normal(mean, deviation, GPUS) for mean, deviation in GPU_NORMALS.values()]
    columns += [rng.normal(100.0, 1.0, GPUS) for _ in range(METRICS - len(GPU_NORMALS))]
    return np.stack(columns, axis=1).astype(np.float32)


def _record(node: int, job: str, number: int, matrix: Floats, now: float) -> bytes:
    reading = Reading(source="gpu", kind=Kind.GPU, entities=tuple(gpu(node, slot) for slot in range(GPUS)), names=NAMES, matrix=matrix, time=now)
    batch = Batch(node=f"node-{node}", incarnation="bench", job=job, number=number, time=now, blocks=(Block(schema_id="bench-gpu", reading=reading),))
    return wire.encode(batch)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
