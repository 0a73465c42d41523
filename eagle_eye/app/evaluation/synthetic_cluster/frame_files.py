"""The frames of a synthetic cluster as files that any detector can read: Parquet of steps and of readings, JSON lines of what is told, and labels.

All files of one sort have the same columns, whatever happens to a job. They are written into a folder beside the one that was asked for, which takes its name when all is written; one that is left half is deleted.
"""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob
from eagle_eye.errors import ConfigError
from eagle_eye.frames import Frame
from eagle_eye.types import Kind

from .cluster_score import JobLabel

ROWS = 1 << 17
"""Of one group: what is held of a table before it is written."""
STEPS = "steps"
STEP_VALUES = (
    "step_s", "data_s", "forward_s", "backward_s", "communication_s", "garbage_collection_s", "evaluation_s", "tokens", "sequence_length", "loss", "grad_norm", "loss_scale", "batch_digest",
    "replica_digest",
)  # fmt: skip
READINGS: Mapping[Kind, tuple[str, ...]] = {
    Kind.GPU: (
        "utilisation_percent", "power_watts", "temperature_celsius", "memory_temperature_celsius", "sm_clock_mhz", "memory_percent", "throttle_reasons", "throttled_thermal_percent", "throttled_power_percent",
        "ecc_corrected_per_s", "ecc_uncorrected_per_s", "remapped_rows_uncorrected", "remap_pending", "pcie_width", "nvlinks_active", "nvlinks_down", "nvlink_crc_errors_per_s", "nvlink_recoveries_per_s",
    ),
    Kind.WORKER: (
        "step", "marks", "step_marks", "phase", "running", "state", "step_age_s", "progress_age_s", "activity", "activity_seen_s", "cpu_percent", "runqueue_percent", "rss_bytes", "throttled_percent", "cpu_quota",
    ),
    Kind.NODE: ("cpu_percent", "processors", "memory_percent", "load_1", "net_sent_bytes_per_s", "power_watts", "clock_offset_s"),
    Kind.LINK: ("port_active", "link_rate_bytes_per_s", "symbol_errors_per_s", "receive_errors_per_s", "discards_per_s", "recoveries_per_s"),
    Kind.MOUNT: ("hung", "read_only", "stat_s", "read_s", "free_bytes"),
}  # fmt: skip
OF_NODES = ("newest_batch_age_s", "clock_ahead_s")
"""What the frame says of each node beside its readings."""


class FrameFiles:
    """A context manager; `folder` must not exist, or be empty. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._part = folder, folder.with_name(folder.name + ".part")
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise ConfigError(f"--out {folder}: it is there already; name a folder that is new or empty")
            shutil.rmtree(self._part, ignore_errors=True)
            for name in (STEPS, *READINGS):
                (self._part / name).mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be written: {error.strerror}; name a folder that is yours") from error
        self._jobs: dict[str, JobTables] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._close()
        if kind is None:
            if self._folder.exists():
                self._folder.rmdir()
            self._part.rename(self._folder)
        else:
            shutil.rmtree(self._part, ignore_errors=True)

    def begin(self, job: DrillJob) -> None:
        """The job's layout, and files for it. Those of a job that has had all of its frames are closed; two jobs of one run begin one after the other."""
        if any(tables.begun for tables in self._jobs.values()):
            self._close()
        self._jobs[job.name] = JobTables(self._part, job)
        switches = {node: place.switch for node, place in job.layout.places.items()}
        rows = ({"job": job.name, "rank": each.rank, "worker": each.worker, "node": each.node, "gpu": each.gpu, "dp": each.dp, "pp": each.pp, "switch": switches[each.node]} for each in job.layout.placements)
        self._append("workers.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def add(self, frame: Frame) -> None:
        """One frame; rows are written some thousands at once."""
        if frame.events:
            rows = ({"job": each.job, "time": each.time, "arrives": frame.time, "name": each.name, "kind": each.entity.kind, "entity": each.entity.name, "message": each.message, "attributes": each.attributes} for each in frame.events)
            self._append("events.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        self._jobs[frame.job].add(frame)

    def finish(self, labels: Sequence[JobLabel]) -> None:
        """After the last job."""
        self._append("labels.jsonl", b"".join(msgspec.json.encode(each) + b"\n" for each in labels))

    def _append(self, name: str, data: bytes) -> None:
        with (self._part / name).open("ab") as file:
            file.write(data)

    def _close(self) -> None:
        for tables in self._jobs.values():
            tables.close()
        self._jobs.clear()


class JobTables:
    """The Parquet files of one job."""

    def __init__(self, folder: Path, job: DrillJob) -> None:
        self.begun = False
        self._rank_of = {place.worker: place.rank for place in job.layout.placements}
        name = f"{job.name.rsplit('/', 1)[-1]}.parquet"
        self._steps = ClusterTable(folder / STEPS / name, {"step": "int32", "epoch": "int32", "end": "float64", "rank": "int32"}, STEP_VALUES)
        self._readings = {kind: ClusterTable(folder / kind / name, {"time": "float64", kind.value: "name"}, names + (OF_NODES if kind is Kind.NODE else ())) for kind, names in READINGS.items()}

    def add(self, frame: Frame) -> None:
        self.begun = True
        for step in frame.steps:
            ranks = np.array([self._rank_of[worker] for worker in step.workers], np.int32)
            self._steps.add({"step": step.number, "epoch": step.epoch, "end": step.end, "rank": ranks}, step.values)
        for kind, values in frame.metrics.items():
            told = {**values, **_of_nodes(frame)} if kind is Kind.NODE else values
            if any(bool(np.isfinite(each).any()) for each in values.values()):  # links and mounts are read now and then
                self._readings[kind].add({"time": frame.time, kind.value: frame.entities[kind]}, told)

    def close(self) -> None:
        for table in (self._steps, *self._readings.values()):
            table.close()


def _of_nodes(frame: Frame) -> dict[str, Any]:
    nodes = frame.entities[Kind.NODE]
    return {
        "newest_batch_age_s": np.array([frame.time - frame.reporting.get(node, np.nan) for node in nodes], np.float32),
        "clock_ahead_s": np.array([frame.clocks.get(node, 0.0) for node in nodes], np.float32),
    }


class ClusterTable:
    """One Parquet file; `keys`: name → type, `name` for names that come again and again. All else is float32."""

    def __init__(self, path: Path, keys: Mapping[str, str], values: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {"int32": pa.int32(), "float64": pa.float64(), "name": pa.dictionary(pa.int32(), pa.string())}
        self._schema = pa.schema([*((name, types[kind]) for name, kind in keys.items()), *((name, pa.float32()) for name in values)])
        self._keys, self._values = keys, values
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._buffer: list[tuple[Mapping[str, Any], Mapping[str, Any], int]] = []
        self._held = 0

    def add(self, keys: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Rows; a key is one value for all of them, or one for each."""
        count = len(values[self._values[0]])
        self._buffer.append((keys, values, count))
        self._held += count
        if self._held >= ROWS:
            self._flush()

    def close(self) -> None:
        """A file without rows has its columns all the same."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._buffer:
            return
        made, self._buffer, self._held = self._buffer, [], 0
        columns = [self._key(name, kind, made) for name, kind in self._keys.items()]
        columns += [np.concatenate([np.asarray(values[name], np.float32) for _, values, _ in made]) for name in self._values]
        self._writer.write_table(pa.table(columns, schema=self._schema))

    def _key(self, name: str, kind: str, made: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], int]]) -> Any:
        import pyarrow as pa

        if kind != "name":
            return np.concatenate([np.broadcast_to(np.asarray(keys[name], kind), count) for keys, _, count in made])
        names = list(dict.fromkeys(each for keys in {id(keys[name]): keys[name] for keys, _, _ in made}.values() for each in keys))
        places = {each: place for place, each in enumerate(names)}
        rows = {id(keys[name]): np.array([places[each] for each in keys[name]], np.int32) for keys, _, _ in made}
        return pa.DictionaryArray.from_arrays(np.concatenate([rows[id(keys[name])] for keys, _, _ in made]), pa.array(names, pa.string()))
