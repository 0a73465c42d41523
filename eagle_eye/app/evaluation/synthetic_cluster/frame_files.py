"""The frames of a synthetic cluster as files that any detector can read: Parquet of each job's steps, JSON lines of what is told, and labels.

They are written into a folder beside the one that was asked for, which takes its name when all is written; one that is left half is deleted.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from eagle_eye.errors import ConfigError

from .cluster_score import JobLabel
from .job_run import RunFrame
from .scenarios import PlannedJob

ROWS = 1 << 17
"""Of one group: what is held of a job before it is written."""
VALUES = ("step_s", "forward_s", "backward_s", "communication_s", "tokens", "loss")


class FrameFiles:
    """A context manager; `folder` must not exist, or be empty. Raises ConfigError."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._part = folder, folder.with_name(folder.name + ".part")
        try:
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise ConfigError(f"--out {folder}: it is there already; name a folder that is new or empty")
            shutil.rmtree(self._part, ignore_errors=True)
            (self._part / "steps").mkdir(parents=True)
        except OSError as error:
            raise ConfigError(f"--out {folder}: cannot be written: {error.strerror}; name a folder that is yours") from error
        self._buffer: list[RunFrame] = []
        self._writer: Any = None
        self._workers = 0

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

    def begin(self, job: PlannedJob) -> None:
        """The job's layout, and a file for its steps."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._close()
        self._workers = len(job.layout.placements)
        schema = pa.schema([("step", pa.int32()), ("end", pa.float64()), ("rank", pa.int32()), *((name, pa.float32()) for name in VALUES)])
        self._writer = pq.ParquetWriter(self._part / "steps" / f"{job.name.rsplit('/', 1)[-1]}.parquet", schema, compression="zstd")
        rows = ({"job": job.name, "rank": each.rank, "worker": each.worker, "node": each.node, "gpu": each.gpu, "dp": each.dp, "pp": each.pp} for each in job.layout.placements)
        self._append("workers.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))

    def add(self, made: RunFrame) -> None:
        """One tick; steps are written some thousands of rows at once."""
        if made.events:
            rows = ({"job": each.job, "time": each.time, "name": each.name, "kind": each.entity.kind, "entity": each.entity.name, "message": each.message, "attributes": each.attributes} for each in made.events)
            self._append("events.jsonl", b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
        if made.values:
            self._buffer.append(made)
            if len(self._buffer) * self._workers >= ROWS:
                self._flush()

    def finish(self, labels: Sequence[JobLabel]) -> None:
        """After the last job."""
        self._append("labels.jsonl", b"".join(msgspec.json.encode(each) + b"\n" for each in labels))

    def _append(self, name: str, data: bytes) -> None:
        with (self._part / name).open("ab") as file:
            file.write(data)

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._buffer:
            return
        made, self._buffer = self._buffer, []
        steps = np.repeat(np.array([each.frame.steps[0].number for each in made], np.int32), self._workers)
        ends = np.repeat(np.array([each.frame.time for each in made]), self._workers)
        ranks = np.tile(np.arange(self._workers, dtype=np.int32), len(made))
        values = [np.concatenate([each.values[name] for each in made]) for name in VALUES]
        self._writer.write_table(pa.table([steps, ends, ranks, *values], schema=self._writer.schema))

    def _close(self) -> None:
        if self._writer is not None:
            self._flush()
            self._writer.close()
            self._writer = None
