"""10,000 nodes × 8 GPUs × 30 metrics, from the bytes on the wire to one Frame, on one core; and a peer on the same work.

python -m benchmarks.chain.frames [--json]

The peer sends what most monitoring pipelines send, one object per sample ({name, gpu, value}), as msgpack and as JSON,
decoded into typed objects by msgspec and gathered into the same matrix. It runs on a tenth of the nodes, times ten.
"""

import argparse
import gc
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.types import Batch, Block, Kind, Mark, Reading

NODES, GPUS, METRICS = 10_000, 8, 30
SHARE = 10
"""The peer gets one node in so many."""
TICKS = 7
GOAL_S = 0.2
JOB = "bench/frames/run"
NAMES = tuple(f"metric_{index}" for index in range(METRICS))


class Sample(msgspec.Struct):
    """One number of the peer's."""

    name: str
    gpu: str
    value: float


class Samples(msgspec.Struct):
    """What a node of the peer's sends a second."""

    node: str
    time: float
    samples: list[Sample]


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether the goal was met."""
    parser = argparse.ArgumentParser(description="wire bytes to one Frame, 80,000 GPUs with 30 metrics")
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(1)
    names = [tuple(f"GPU-{rng.bytes(16).hex()}" for _ in range(GPUS)) for _ in range(NODES)]
    first, ticks, record_bytes = ours(names, rng)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = statistics.median(ticks)
    packed = peer(names[:: SHARE], rng, msgspec.msgpack.encode, msgspec.msgpack.Decoder(Samples).decode)
    text = peer(names[:: SHARE], rng, msgspec.json.encode, msgspec.json.Decoder(Samples).decode)
    work = f"{NODES:,} nodes × {GPUS} GPUs × {METRICS} metrics"
    rows = [
        Row(
            f"{work}: wire bytes → one Frame, median of {len(ticks)} ticks, one core",
            f"{seconds * 1e3:.0f} ms",
            f"≤ {GOAL_S * 1e3:.0f} ms",
            seconds <= GOAL_S,
            f"msgpack, one object per sample, a tenth × {SHARE}: {packed * 1e3:,.0f} ms",
            f"{packed / seconds:.0f}×",
        ),
        Row("the same beside JSON", f"{seconds * 1e3:.0f} ms", "", None, f"{text * 1e3:,.0f} ms", f"{text / seconds:.0f}×"),
        Row("slowest of these ticks", f"{max(ticks) * 1e3:.0f} ms"),
        Row("the very first tick: every column is new", f"{first * 1e3:.0f} ms"),
        Row("bytes of one node's record", f"{record_bytes:,} B"),
        Row("peak memory of the process, input and frames included", f"{peak:.0f} MiB"),
    ]
    return report(rows, json=options.json, title="Frames")


def ours(names: list[tuple[str, ...]], rng: np.random.Generator) -> tuple[float, list[float], int]:
    """(seconds of the first tick, of the ticks after it, bytes of one record)."""
    schemas, reader = wire.Schemas(), wire.RecordReader()
    builder = FrameBuilder(JOB, schemas)
    seconds = []
    for number in range(TICKS + 1):
        order = rng.permutation(len(names)).tolist()  # nodes do not report in the same order each second
        payloads = [_record(node, names[node], number, schemas, rng) for node in order]
        mark = Mark(mark="tick", generation=1, number=number + 1, time=float(number))
        began = time.process_time()
        for payload in payloads:
            builder.feed(reader.read(payload))
        frame = builder.tick(mark)
        seconds.append(time.process_time() - began)
        _check(frame)
    return seconds[0], seconds[1:], len(payloads[0])


def peer(
    names: list[tuple[str, ...]],
    rng: np.random.Generator,
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes], Samples],
) -> float:
    """Seconds for all nodes, from the best of three runs over a share of them."""
    column = {gpu: index for index, gpu in enumerate(gpu for gpus in names for gpu in gpus)}
    row = {name: index for index, name in enumerate(NAMES)}
    payloads = [
        encode(Samples(f"node-{node}", 0.0, [Sample(name, gpu, rng.random()) for gpu in gpus for name in NAMES]))
        for node, gpus in enumerate(names)
    ]
    seconds = []
    for _ in range(3):
        gc.collect()
        began = time.process_time()
        matrix = np.full((METRICS, len(column)), np.nan, dtype=np.float32)
        for payload in payloads:
            for sample in decode(payload).samples:
                matrix[row[sample.name], column[sample.gpu]] = sample.value
        seconds.append(time.process_time() - began)
    return min(seconds) * SHARE


def _record(node: int, gpus: tuple[str, ...], number: int, schemas: wire.Schemas, rng: np.random.Generator) -> bytes:
    matrix = rng.random((GPUS, METRICS), dtype=np.float32)
    reading = Reading(
        source="gpu", kind=Kind.GPU, entities=gpus, names=NAMES, matrix=matrix, time=float(number)
    )
    block = Block(schema_id=schemas.schema_of(reading).id, reading=reading)
    batch = Batch(node=f"node-{node}", incarnation="b00t", job=JOB, number=number, time=float(number), blocks=(block,))
    return wire.encode(batch)


def _check(frame: Frame) -> None:
    """A benchmark that loses numbers measures nothing."""
    matrix = np.stack(list(frame.metrics[Kind.GPU].values()))
    assert matrix.shape == (METRICS, NODES * GPUS)
    assert not np.isnan(matrix).any()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
