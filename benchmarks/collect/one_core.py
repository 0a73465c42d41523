"""What one core needs for the telemetry of a cluster: frames, one partition with all its detectors, and nodes without a job. Parts of path_at_size."""

import time
from collections.abc import Sequence

import msgspec
import numpy as np
import psutil
from rich.progress import Progress

from benchmarks.chain.frames import Sample, Samples
from benchmarks.collect.paper_agents import (
    GPU_NAMES,
    GPUS,
    GROUP_NAMES,
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
from detectors.runtime.evaluator import IDLE, Evaluator
from eagle_eye import wire
from eagle_eye.app import plugin_wiring
from eagle_eye.config import Config
from eagle_eye.frames import FrameBuilder
from eagle_eye.job_snapshots import JobSnapshots
from eagle_eye.types import Floats, Mark

FRAME_S, PARTITION_S, IDLE_S = 0.5, 1.0, 50e-6
FRAME_TICKS, PARTITION_TICKS, IDLE_TICKS, SHARE = 5, 12, 60, 10
JOB = "bench/frames/run"


# --- frames ----------------------------------------------------------------------------------------------------------------


def frame_rows(count: int, bar: Progress) -> list[Row]:
    """Processor time from the bytes to a Frame."""
    nodes, rng = nodes_of([(JOB, 0)], count), np.random.default_rng(1)
    values = [numbers(rng) for _ in range(64)]
    schemas, reader = wire.Schemas(), wire.RecordReader()
    for schema in SCHEMAS:
        schemas.add(schema)
    builder, seconds = FrameBuilder(JOB, schemas), list[float]()
    task = bar.add_task("wire → frame", total=FRAME_TICKS + 1)
    for number in range(FRAME_TICKS + 1):
        payloads = [record(nodes[place], number, float(number), values[place % 64]) for place in rng.permutation(count).tolist()]
        began = time.process_time()
        for payload in payloads:
            builder.feed(reader.read(payload))
        frame = builder.tick(Mark(mark="tick", generation=1, number=number + 1, time=float(number)))
        seconds.append(time.process_time() - began)
        held = sum(len(columns) for columns in frame.metrics.values())
        assert held == len(GPU_NAMES) + len(GROUP_NAMES), "a benchmark that loses numbers measures nothing"
        bar.advance(task)
    bar.remove_task(task)
    first, steady = seconds[0], sorted(seconds[1:])
    median, peer = steady[len(steady) // 2], _peer(nodes[:: SHARE], values)
    work = f"{count:,} nodes × {GPUS} × ({len(GPU_NAMES)} + {len(GROUP_NAMES)} numbers of collectives): wire → Frame, processor time of a tick"
    ratio = f"{peer / median:.0f}×"
    return [
        Row(work, f"{median * 1e3:.0f} ms (of {len(steady)}: {steady[0] * 1e3:.0f} to {steady[-1] * 1e3:.0f})", f"≤ {FRAME_S * 1e3:.0f} ms", median <= FRAME_S, f"msgpack, an object a sample: {peer * 1e3:,.0f} ms", ratio),
        Row("the very first tick: every column is new", f"{first * 1e3:.0f} ms"),
    ]


def _peer(nodes: Sequence[PaperNode], values: Sequence[tuple[Floats, Floats]]) -> float:
    """Seconds for all nodes, from a share of them."""
    names, decode = (*GPU_NAMES, *GROUP_NAMES), msgspec.msgpack.Decoder(Samples).decode
    row = {name: index for index, name in enumerate(names)}
    payloads = []
    for node in nodes:
        both = np.hstack(values[node.index % len(values)]).tolist()
        samples = [Sample(name, gpu, value) for gpu, line in zip(node.gpus, both, strict=True) for name, value in zip(names, line, strict=True)]
        payloads.append(msgspec.msgpack.encode(Samples(node.name, 0.0, samples)))
    column = {gpu: index for index, gpu in enumerate(gpu for node in nodes for gpu in node.gpus)}
    began = time.process_time()
    matrix = np.full((len(names), len(column)), np.nan, dtype=np.float32)
    for payload in payloads:
        for sample in decode(payload).samples:
            matrix[row[sample.name], column[sample.gpu]] = sample.value
    return (time.process_time() - began) * SHARE


# --- one partition -----------------------------------------------------------------------------------------------------------


def partition_rows(count: int, bar: Progress) -> list[Row]:
    """All nodes in one partition, as one job: whatever jobs share a partition, it is not more than that."""
    nodes, rng = nodes_of([(JOB, 0)], count), np.random.default_rng(3)
    values = [numbers(rng) for _ in range(64)]
    evaluator, reader, snapshots = Evaluator(plugin_wiring.detectors(Config()), Diagnosis()), wire.RecordReader(), JobSnapshots()
    for schema in (*SCHEMAS, STEPS_SCHEMA):
        evaluator.take(schema)
    evaluator.take(layout_of(JOB, nodes, 0.5))
    seconds, found = list[float](), 0
    task = bar.add_task("one partition", total=PARTITION_TICKS)
    for number in range(1, PARTITION_TICKS + 1):
        payloads = [record(node, number, float(number), values[(node.index + number) % 64], step=number) for node in nodes]
        began = time.process_time()
        for payload in payloads:
            evaluator.take(reader.read(payload))
        evaluation = evaluator.take(Mark(mark="tick", generation=1, number=number, time=number + 0.5))
        assert evaluation is not None
        for frame in evaluation.frames:
            snapshots.of(frame)
        seconds.append(time.process_time() - began)
        found += len(evaluation.findings)
        bar.advance(task)
    bar.remove_task(task)
    steady = sorted(seconds[4:])
    median = steady[len(steady) // 2]
    work = f"all {count:,} nodes in one partition, steps too: bytes → frame → {len(plugin_wiring.detectors(Config()))} detectors → snapshot, processor time of a tick"
    return [Row(work, f"{median * 1e3:.0f} ms (of {len(steady)}: {steady[0] * 1e3:.0f} to {steady[-1] * 1e3:.0f}); {found} findings", f"≤ {PARTITION_S * 1e3:.0f} ms", median <= PARTITION_S)]


# --- idle nodes ------------------------------------------------------------------------------------------------------------


def idle_rows(count: int, bar: Progress) -> list[Row]:
    """The shipped detectors and nodes that have no job."""
    nodes, rng = [PaperNode(index, f"{IDLE}node-{index}", 0) for index in range(count)], np.random.default_rng(2)
    values = [numbers(rng) for _ in range(64)]
    evaluator, reader = Evaluator(plugin_wiring.detectors(Config()), Diagnosis()), wire.RecordReader()
    for schema in SCHEMAS:
        evaluator.take(schema)
    before, process = 0, psutil.Process()
    read, ticked = list[float](), list[float]()
    task = bar.add_task("idle nodes", total=IDLE_TICKS)
    for number in range(1, IDLE_TICKS + 1):
        payloads = [record(node, number, float(number), values[(node.index + number) % 64]) for node in nodes]
        before = before or process.memory_info().rss
        began = time.process_time()
        for payload in payloads:
            evaluator.take(reader.read(payload))
        between = time.process_time()
        evaluator.take(Mark(mark="tick", generation=1, number=number, time=number + 0.5))
        read.append((between - began) / count)
        ticked.append((time.process_time() - between) / count)
        bar.advance(task)
    bar.remove_task(task)
    late = slice(IDLE_TICKS // 2, None)
    tick, reading = float(np.mean(ticked[late])), float(np.mean(read[late]))
    window = sum(job.window.nbytes for job in evaluator.jobs.values())
    grown = (process.memory_info().rss - before) / count
    return [
        Row(f"{count:,} idle nodes: a tick of each, its record read too", f"{(tick + reading) * 1e6:.0f} µs (evaluated {tick * 1e6:.0f}, read {reading * 1e6:.0f})", f"≤ {IDLE_S * 1e6:.0f} µs", tick + reading <= IDLE_S),
        Row("hot windows of idle nodes", f"{window:,} B", "0 B", window == 0, "before: 5 MB a node after ten minutes"),
        Row("memory of an idle node in all", f"{grown / 1024:.0f} KiB"),
    ]
