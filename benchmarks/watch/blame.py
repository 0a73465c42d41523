"""Whom the ranks of a large job wait for, from the dumps of their flight recorders: how long it takes and what memory, beside torch's own analyser.

    python -m benchmarks.watch.blame [--ranks 1024] [--entries 2000] [--seed 7] [--form torch|python|json] [--peer-ranks 64]

A job that was never run: groups of 8 tensor ranks, of the data ranks that hold the same part, and the world; each step all-reduces within
the first, scatters and gathers within the second and ends with one of the world. One rank, drawn from the seed, does not enter an all-reduce
of its tensor group; its seven neighbours wait there, and everybody else for one of those. The dumps are written as torch writes them, or by
Python's own pickler, or as JSON. The peer (`torch.distributed.flight_recorder.fr_trace`) gets a job of the same kind with fewer ranks, and its
time and memory are multiplied by the ratio of the ranks: a favour, since they grow faster than that.
"""

import argparse
import json
import pickle
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from tests.fakes.torch_pickle import torch_pickle

GOAL_S, GOAL_MB = 5.0, 300.0
TENSOR = 8
"""Ranks of a tensor group."""
LAYERS = 12
SHARD = 13_107_200
"""Elements of a data rank's part of a tensor rank's parameters."""
SAMPLE_S = 0.02
FORMS: dict[str, Callable[[dict[str, Any]], bytes]] = {"torch": torch_pickle, "python": pickle.dumps, "json": lambda record: json.dumps(record).encode()}


class Job(NamedTuple):
    """Whose dumps are made."""

    ranks: int
    entries: int
    seed: int

    @property
    def culprit(self) -> int:
        return random.Random(self.seed).randrange(self.ranks)

    def groups(self, rank: int) -> dict[str, tuple[str, str, range]]:
        """Of a rank: what it is for → name, description, ranks."""
        tensor, data = rank // TENSOR, rank % TENSOR
        return {
            "world": ("0", "default_pg", range(self.ranks)),
            "tensor": (f"{1 + tensor}", "TENSOR_MODEL_PARALLEL_GROUP", range(TENSOR * tensor, TENSOR * (tensor + 1))),
            "data": (f"{1 + self.ranks // TENSOR + data}", "DATA_PARALLEL_GROUP", range(data, self.ranks, TENSOR)),
        }

    def dump(self, rank: int) -> dict[str, Any]:
        """As torch 2.13 gives it."""
        groups = self.groups(rank)
        configured = {name: {"name": name, "desc": text, "ranks": str(list(ranks))} for name, text, ranks in groups.values()}
        return {"version": "2.10", "pg_config": configured, "comm_lib_version": "2.29", "pg_status": {}, "entries": self._entries(rank)}

    def _entries(self, rank: int) -> list[dict[str, Any]]:
        """The last but one of the tensor group's all-reduces is the one that the culprit does not enter."""
        groups, entries = self.groups(rank), list[dict[str, Any]]()
        steps = list(_operations(self.entries, self.ranks // TENSOR))
        last = max(place for place, (group, *_) in enumerate(steps) if group == "tensor")
        stuck_in_tensor = rank // TENSOR == self.culprit // TENSOR
        waits = last if stuck_in_tensor else next((place for place in range(last + 1, len(steps)) if steps[place][0] == "data"), len(steps) - 1)
        counts = dict.fromkeys(groups, 100_000)
        for place, (group, operation, *elements) in enumerate(steps[: waits + (rank != self.culprit)]):
            counts[group] += 1
            entries.append(_entry(place, groups[group], counts[group], operation, elements, over=place != waits))
        return entries


def _operations(entries: int, data_ranks: int) -> Iterator[tuple[str, str, int, int]]:
    """Group, operation, elements in and out, in the order of a step, over and over; the ring begins amid one."""
    step = [("tensor", "all_reduce", 20_971_520, 20_971_520), ("tensor", "all_reduce", 56_623_104, 56_623_104)] * LAYERS
    step += [("data", "_reduce_scatter_base", SHARD * data_ranks, SHARD), ("data", "_all_gather_base", SHARD, SHARD * data_ranks), ("world", "all_reduce", 1, 1)]
    whole, part = divmod(entries, len(step))
    yield from [*step[len(step) - part :], *(step * whole)]


def _entry(place: int, group: tuple[str, str, range], number: int, operation: str, elements: Sequence[int], *, over: bool) -> dict[str, Any]:
    created = 1_795_770_370_995_575_799 + 1_250_000 * place
    return {
        "record_id": 3_000_000 + place, "pg_id": 0, "process_group": group[:2], "thread_name": "python", "thread_id": "140633037974400", "collective_seq_id": number, "p2p_seq_id": 0,
        "op_id": number, "profiling_name": f"nccl:{operation}", "time_created_ns": created, "input_sizes": [[elements[0]]], "input_dtypes": ["BFloat16"], "output_sizes": [[elements[1]]],
        "output_dtypes": ["BFloat16"], "state": "completed" if over else "started", "time_discovered_started_ns": created + 90_000,
        "time_discovered_completed_ns": created + 900_000 if over else None, "retired": over, "timeout_ms": 600_000, "is_p2p": False,
    }  # fmt: skip


def write(job: Job, form: str, folder: Path) -> float:
    """All dumps, and how many MB they have."""
    with ProcessPoolExecutor() as pool:
        return sum(pool.map(partial(_write_dump, job, form, folder), range(job.ranks), chunksize=8)) / 1e6


def _write_dump(job: Job, form: str, folder: Path, rank: int) -> int:
    return (folder / f"_dump_{rank}").write_bytes(FORMS[form](job.dump(rank)))


class Cost(NamedTuple):
    """Of a command."""

    seconds: float
    processor_s: float
    mb: float
    """Resident at most, of all its processes together."""
    output: str


def measured(command: Sequence[str]) -> Cost:
    """Of a command from its start to its end. Raises RuntimeError where it fails."""
    with tempfile.TemporaryFile() as output:
        began, used, most = time.monotonic(), _used_by_children(), 0
        process = psutil.Popen([sys.executable, *command], stdout=output, stderr=subprocess.STDOUT)
        while process.poll() is None:
            most = max(most, sum(map(_resident, _tree(process))))
            time.sleep(SAMPLE_S)
        seconds = time.monotonic() - began
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {text[-500:]}")
    return Cost(seconds, _used_by_children() - used, most / 1e6, text)


def _used_by_children() -> float:
    """Seconds of the processor, of those that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _tree(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def main() -> int:
    """Print the figures beside their goals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--entries", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--form", choices=sorted(FORMS), default="torch")
    parser.add_argument("--peer-ranks", type=int, default=64, help="0: without the peer")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    others, job = neighbours(), Job(arguments.ranks, arguments.entries, arguments.seed)
    with tempfile.TemporaryDirectory() as folder:
        size = write(job, arguments.form, Path(folder))
        ours = measured(["-m", "eagle_eye.app.cli", "collectives", folder, "--json"])
    named = json.loads(ours.output)["ranks"]
    theirs = _peer(Job(arguments.peer_ranks, arguments.entries, arguments.seed)) if arguments.peer_ranks else None
    times = job.ranks / max(arguments.peer_ranks, 1)
    beside = f"of {arguments.peer_ranks} ranks × {times:g}: fr_trace "
    what = f"{job.ranks:,} ranks × {job.entries:,} entries ({arguments.form}, {size:.0f} MB)"
    rows = [
        Row(f"{what}: rank named", ", ".join(map(str, named)), f"{job.culprit} alone", named == [job.culprit], f"{len(theirs.output.splitlines())} lines" if theirs else ""),
        _row(f"{what}: time", ours.seconds, GOAL_S, "s", theirs and theirs.seconds * times, beside),
        _row("the same: processor time", ours.processor_s, None, "s", theirs and theirs.processor_s * times, beside),
        _row("the same: memory of all processes", ours.mb, GOAL_MB, "MB", theirs and theirs.mb * times, beside),
        others(),
    ]
    return report(rows, arguments.json, "Blame")


def _peer(job: Job) -> Cost:
    with tempfile.TemporaryDirectory() as folder:
        write(job, "torch", Path(folder))
        return measured(["-m", "torch.distributed.flight_recorder.fr_trace", folder, "-p", "_dump_"])


def _row(what: str, figure: float, goal: float | None, unit: str, peer: float | None, beside: str) -> Row:
    compared = (f"{beside}{peer:,.0f} {unit}", f"{peer / figure:.0f}×") if peer is not None else ("", "")
    wanted, met = (f"≤ {goal:g} {unit}", figure <= goal) if goal is not None else ("", None)
    return Row(what, f"{figure:.1f} {unit}", wanted, met, *compared)


if __name__ == "__main__":
    sys.exit(main())
