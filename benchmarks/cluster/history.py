"""The history of 10,000 nodes × 8 GPUs × 30 metrics at 1 Hz: how fast it is written on one core, how large it is, how fast it answers.

python -m benchmarks.cluster.history --data DIR [--minutes 10] [--json]

DIR holds `mlperf_power/64node_gpt3_*.npz` (wall power of real training, MLPerf Training v4.0) and `acme_dist/seren_cdf.csv.gz`
(distributions of GPU metrics of a real cluster, AcmeTrace). Four metrics are power: a node's own recorded seconds, with a
share of its own for each GPU. The others are drawn anew each second from the distributions, in the resolution of the data:
without the likeness of one second to the next that real sensors have, so that nothing is easier to compress than it is.

Measured is the time of the processor in the writer: from the bytes of the stream's records (made before, not measured) to
durable files. The peer gets the same numbers as ready columns: pyarrow writes them with its defaults and zstd, DuckDB inserts
them into a table.
"""

import argparse
import csv
import gzip
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.progress import track

from benchmarks.report import Row, report
from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.config import HistoryConfig
from eagle_eye.history.compaction import GRACE_S, Compactor
from eagle_eye.history.object_store import ObjectStore
from eagle_eye.history.partition_writer import PartitionWriter
from eagle_eye.history.queries import History
from eagle_eye.stream import OBSERVATIONS, Message
from eagle_eye.types import Batch, Block, Kind, Reading

NODES, GPUS, METRICS, POWERS = 10_000, 8, 30, 4
FILE_S = 30
BEGAN = 1_700_000_100.0
JOB = "bench/history/run"
GOAL_TIMES, GOAL_BYTES = 10.0, 2.0
PEER_S = 30


class Source:
    """Numbers of the whole cluster, second by second."""

    def __init__(self, data: Path, rng: np.random.Generator) -> None:
        self._rng = rng
        self._powers = _powers(data)
        self._offsets = rng.integers(0, self._powers.shape[1] - 1, NODES)
        self._nodes = rng.integers(0, len(self._powers), NODES)
        self._shares = rng.normal(1.0, 0.03, (NODES, GPUS, POWERS)) / GPUS
        self._distributions = _distributions(data)

    def second(self, number: int) -> np.ndarray:
        """NODES × GPUS × METRICS float32."""
        at = (self._offsets + number // 2) % self._powers.shape[1]
        power = self._powers[self._nodes, at][:, None, None] * self._shares
        values = np.empty((NODES, GPUS, METRICS), dtype=np.float32)
        values[..., :POWERS] = np.round(power, 3)
        for metric in range(POWERS, METRICS):
            points = self._distributions[metric % len(self._distributions)]
            values[..., metric] = points[self._rng.integers(0, len(points), (NODES, GPUS))]
        return values


def _powers(data: Path) -> np.ndarray:
    """Nodes × seconds/2: recorded watts of the largest runs; gaps keep the value before them."""
    rows = []
    for path in sorted((data / "mlperf_power").glob("64node_gpt3_*.npz")):
        watts = np.load(path)["ac_watt"]
        rows += [row[np.isfinite(row)] for row in watts]
    length = min(len(row) for row in rows if len(row) > 600)
    return np.array([row[:length] for row in rows if len(row) >= length])


def _distributions(data: Path) -> list[np.ndarray]:
    """One for each metric of the file: values at equal steps of probability, halfway points between them, in the data's own resolution."""
    with gzip.open(data / "acme_dist" / "seren_cdf.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    found = []
    for metric in dict.fromkeys(row["metric"] for row in rows):
        texts = [row["x"] for row in rows if row["metric"] == metric]
        decimals = max(len(text.partition(".")[2]) for text in texts)
        points = np.array([float(text) for text in texts])
        between = np.round((points[1:] + points[:-1]) / 2, decimals)
        found.append(np.concatenate([points, between]).astype(np.float32))
    return found


class Cluster:
    """Records of the stream."""

    def __init__(self, rng: np.random.Generator, nodes: int = NODES) -> None:
        self.nodes = nodes
        self.names = tuple(f"metric_{index}" for index in range(METRICS))
        self.gpus = [tuple(f"GPU-{rng.bytes(16).hex()}" for _ in range(GPUS)) for _ in range(nodes)]
        self._phase = rng.uniform(0.0, 1.0, nodes)
        self._schemas = wire.Schemas()
        empty = Reading(source="gpu", kind=Kind.GPU, entities=(), names=self.names, matrix=np.zeros((0, METRICS), dtype=np.float32), time=0.0)
        self.schema = self._schemas.schema_of(empty)
        self._offset = 1

    def first(self) -> Message:
        return Message(OBSERVATIONS, 0, 0, JOB, wire.encode(self.schema), BEGAN)

    def messages(self, number: int, values: np.ndarray) -> list[Message]:
        """One record for each node."""
        made = []
        for node in range(self.nodes):
            moment = BEGAN + number + float(self._phase[node])
            reading = Reading(source="gpu", kind=Kind.GPU, entities=self.gpus[node], names=self.names, matrix=values[node], time=moment)
            batch = Batch(node=f"node-{node:05}", incarnation="b", job=JOB, number=number, time=moment, blocks=(Block(schema_id=self.schema.id, reading=reading),))
            made.append(Message(OBSERVATIONS, 0, self._offset, JOB, wire.encode(batch), BEGAN + number + 0.5))
            self._offset += 1
        return made

    def end(self, number: int) -> Message:
        return Message(OBSERVATIONS, 0, self._offset, JOB, b"", BEGAN + number)


def main(arguments: list[str]) -> int:
    """Measure and print; the exit status says whether the goals were met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with mlperf_power/ and acme_dist/")
    parser.add_argument("--minutes", type=float, default=10.0, help="of telemetry")
    parser.add_argument("--json", action="store_true", help="the same rows as JSON")
    options = parser.parse_args(arguments)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pa.set_cpu_count(1)
    seconds = max(PEER_S, round(options.minutes * 60 / FILE_S) * FILE_S)
    folder = Path(tempfile.mkdtemp(prefix="eagle-eye-history-"))
    try:
        rows = measure(options.data, seconds, folder)
    finally:
        shutil.rmtree(folder)
    return report(rows, options.json, "history")


def measure(data: Path, seconds: int, folder: Path) -> list[Row]:
    """Write, answer, tidy up; and the peer."""
    rng = np.random.default_rng(1)
    source, cluster = Source(data, rng), Cluster(rng)
    place = ObjectStore.of(folder / "history")
    writer = PartitionWriter(place, 0, file_s=FILE_S)
    writer.warm([cluster.first()])
    spent, shown = 0.0, []
    for number in track(range(seconds), description="writing", console=None, transient=True, disable=not sys.stderr.isatty()):
        values = source.second(number)
        if number < PEER_S:
            shown.append(values)
        messages = cluster.messages(number, values)
        spent += _cpu(lambda messages=messages: writer.take(messages))
    spent += _cpu(lambda: writer.take([cluster.end(seconds)]))
    numbers = NODES * GPUS * METRICS * seconds
    assert writer.counts.rows == NODES * GPUS * seconds, "every row, and none twice"
    peer = Peer(folder, cluster, shown)
    return [*_written(writer, spent, seconds, numbers, peer), *_answers(place, cluster, seconds, peer), *_tidied(folder, source, rng)]


def _cpu(work: Any) -> float:
    """Seconds of the processor, of all threads of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def _written(writer: PartitionWriter, spent: float, seconds: int, numbers: int, peer: "Peer") -> list[Row]:
    times, size = seconds / spent, writer.counts.bytes / numbers
    what = f"{NODES:,} nodes × {GPUS} GPUs × {METRICS} metrics at 1 Hz, {seconds / 60:g} min"
    of_peer = f"pyarrow alone, ready columns: {peer.parquet_rate / 1e6:.0f} M numbers/s; DuckDB insert: {peer.duckdb_rate / 1e6:.0f} M/s"
    return [
        Row(
            f"{what}: the stream's bytes → durable files, times real time, one core", f"{times:.1f}× ({numbers / spent / 1e6:.0f} M numbers/s)",
            f"≥ {GOAL_TIMES:.0f}×", times >= GOAL_TIMES, of_peer, f"{numbers / spent / peer.parquet_rate:.2f}× of pyarrow alone",
        ),
        Row(
            "bytes a number, keys and names included", f"{size:.2f}", f"≤ {GOAL_BYTES:.0f}", size <= GOAL_BYTES,
            f"pyarrow: {peer.parquet_bytes:.2f}; DuckDB: {peer.duckdb_bytes:.2f}", f"{peer.parquet_bytes / size:.2f}× smaller than pyarrow's",
        ),
    ]  # fmt: skip


def _answers(place: ObjectStore, cluster: Cluster, seconds: int, peer: "Peer") -> Iterator[Row]:
    history = History(place)
    gpu = cluster.gpus[NODES // 2][3]
    until = BEGAN + seconds + 1
    history.metrics("gpu")
    series = _wall(lambda: history.series("gpu", ["metric_0"], since=BEGAN, until=until, entities=[gpu]))
    yield Row(f"one metric of one GPU over {seconds / 60:g} min", f"{series * 1e3:.0f} ms", "", None, f"DuckDB's own table, {PEER_S} s: {peer.series_s * 1e3:.0f} ms")
    means = _wall(lambda: history.series("gpu", ["metric_0"], since=until - 61, until=until, every=10.0))
    yield Row("10 s means of one metric of all 80,000 GPUs, last minute", f"{means * 1e3:.0f} ms", "", None, f"DuckDB's own table, {PEER_S} s: {peer.means_s * 1e3:.0f} ms")


def _tidied(folder: Path, source: Source, rng: np.random.Generator) -> Iterator[Row]:
    """An hour's small files of a small cluster become one."""
    nodes, place = 16, ObjectStore.of(folder / "small")
    cluster = Cluster(rng, nodes)
    writer = PartitionWriter(place, 0, file_s=FILE_S)
    writer.warm([cluster.first()])
    for number in range(0, 3600, 4):
        writer.take(cluster.messages(number, source.second(number)[:nodes]))
    writer.take([cluster.end(3600)])
    tender = Compactor(place, HistoryConfig(file_s=FILE_S, compact_s=3600.0), FakeClock(BEGAN + 7200.0 + GRACE_S))
    before = [file.bytes for file in place.files()]
    spent = _cpu(lambda: tender.compact(0))
    after = [file.bytes for file in place.files() if file.merged]
    numbers = nodes * GPUS * METRICS * 900
    yield Row(
        f"{nodes} nodes, an hour (every 4 s): {len(before)} files made into {len(after)}", f"{numbers / spent / 1e6:.0f} M numbers/s",
        peer=f"bytes a number {sum(before) / numbers:.2f} → {sum(after) / numbers:.2f}",
    )  # fmt: skip


class Peer:
    """pyarrow and DuckDB on the same numbers, as ready columns."""

    def __init__(self, folder: Path, cluster: Cluster, values: list[np.ndarray]) -> None:
        table = _columns(cluster, values)
        numbers = len(values) * NODES * GPUS * METRICS
        path = folder / "peer.parquet"
        self.parquet_rate = numbers / _cpu(lambda: pq.write_table(table, path, compression="zstd"))
        self.parquet_bytes = path.stat().st_size / numbers
        database = folder / "peer.duckdb"
        with duckdb.connect(str(database), config={"threads": "1"}) as connection:
            connection.register("numbers", table)
            inserting = _cpu(lambda: connection.execute("CREATE TABLE kept AS SELECT * FROM numbers; CHECKPOINT"))
            self.duckdb_rate = numbers / inserting
            gpu = cluster.gpus[NODES // 2][3]
            self.series_s = _wall(lambda: connection.execute("SELECT time, metric_0 FROM kept WHERE entity = ?", [gpu]).fetchall())
            self.means_s = _wall(lambda: connection.execute("SELECT floor(time / 10), entity, avg(metric_0) FROM kept GROUP BY ALL").fetchall())
        self.duckdb_bytes = database.stat().st_size / numbers


def _columns(cluster: Cluster, values: list[np.ndarray]) -> Any:
    """One Arrow table, second after second."""
    entities = pa.array([gpu for gpus in cluster.gpus for gpu in gpus])
    codes = np.tile(np.arange(NODES * GPUS, dtype=np.int32), len(values))
    columns: dict[str, Any] = {
        "time": pa.array(np.repeat(BEGAN + np.arange(len(values)), NODES * GPUS)),
        "entity": pa.DictionaryArray.from_arrays(pa.array(codes), entities),
    }
    for metric, name in enumerate(cluster.names):
        columns[name] = pa.array(np.concatenate([each[..., metric].reshape(-1) for each in values]))
    return pa.table(columns)




def _wall(work: Any, attempts: int = 3) -> float:
    """Seconds by the clock, the best of a few."""
    best = float("inf")
    for _ in range(attempts):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
