"""10,000 saves: does anything grow, memory, open files or files?

    python -m benchmarks.checkpoint.many_saves                              10,000 after 1,000 that are not counted
    python -m benchmarks.checkpoint.many_saves --saves 1000 --warm-up 300

Once in memory: a trainer saves after each step, waits until that copy is whole, and says how many it has; its launcher's cache and that of the neighbour,
which fetches copies meanwhile, are processes of their own (those of node_kills). Once to storage, by `checkpoint.save`, whose retention deletes what is older;
the folder lies in shared memory, since a disk adds time and nothing else. Looked at are, after the first saves and at the end: anonymous memory (RssAnon, so
that shared memory, which is reserved once, is not counted for each process), descriptors, threads, and number and bytes of the files; SAMPLES times each, the
lowest of them, since a copy may be under way.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.checkpoint.kills import state_of
from benchmarks.checkpoint.node_kills import Pair, Told
from benchmarks.report import Row, report
from eagle_eye import MemoryCheckpoints
from eagle_eye.parent_death import of_ours
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint.memory_checkpoints import COPIES_VARIABLE
from eagle_eye.training.checkpoint.memory_segment import SLOTS_WITH_BACKUP, SegmentFile

LARGEST_BYTES = 1_000_000
"""Goal: growth of the anonymous memory of each process in 10,000 saves; of fewer saves the same, since what an allocator takes by chance does not shrink with them."""
LARGEST_FILE_BYTES = 1_000
"""Goal: of all files together, which hold numbers of steps, times and sums as text."""
SAMPLES, SAMPLE_S = 20, 0.02
STORED_ELEMENTS = 4096
"""Of each tensor that goes to storage: what could grow does not depend on it."""
STRIDE = 250
"""Saves between two looks at how far it is."""


class Usage(NamedTuple):
    """Of a process, and of the folder that all of them have."""

    memory: int
    descriptors: int
    threads: int
    files: int
    file_bytes: int


class SavingPair(Pair):
    """Two nodes whose trainer waits for each of its saves."""

    def begin(self, name: str) -> Told:
        """The launchers are those of a pair that is killed."""
        return Told(partial(save_in_memory, self.own)) if name == "trainer" else super().begin(name)


def save_in_memory(path: Path, tell: Callable[[int], None]) -> None:
    """For ever; each that is whole counts."""
    parameters = {name: torch.nn.Parameter(tensor) for name, tensor in state_of(0).items()}
    optimizer = torch.optim.SGD(parameters.values(), lr=1.0)
    memory = MemoryCheckpoints([optimizer], path)
    memory.prepare(parameters)
    for parameter in parameters.values():
        parameter.grad = torch.full_like(parameter, -1.0)
    step = saved = 0
    while True:
        optimizer.step()
        step += 1
        saved += memory.save(parameters, step)
        memory.finish()
        tell(saved)


def save_to_storage(home: Path, tell: Callable[[int], None]) -> None:
    """For ever."""
    state = {name: tensor[:STORED_ELEMENTS].clone() for name, tensor in state_of(0).items()}
    step = 0
    while True:
        step += 1
        for tensor in state.values():
            tensor.fill_(step)
        checkpoint.save_or_raise(state, step, home)
        tell(step)


def usage(pid: int, folder: Path) -> Usage:
    """The least of several looks."""
    looks = []
    for _ in range(SAMPLES):
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        sizes = list(sizes_in(folder))
        looks.append(Usage(int(status["RssAnon"].split()[0]) * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(status["Threads"]), len(sizes), sum(sizes)))
        time.sleep(SAMPLE_S)
    return Usage(*map(min, zip(*looks, strict=True)))


def sizes_in(folder: Path) -> Iterator[int]:
    """Of all files that stay there long enough to be looked at."""
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield path.stat().st_size
        except FileNotFoundError:
            continue


def grown(saving: Told, pids: Mapping[str, int], folder: Path, what: str, warm_up: int, saves: int) -> dict[str, tuple[Usage, Usage]]:
    """By process: after the first saves, and at the end."""
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=warm_up + saves)
        reach(saving, 0, warm_up, lambda done: progress.update(task, completed=done))
        before = {name: usage(pid, folder) for name, pid in pids.items()}
        reach(saving, saving.look(), warm_up + saves, lambda done: progress.update(task, completed=done))
        return {name: (before[name], usage(pid, folder)) for name, pid in pids.items()}


def reach(saving: Told, first: int, last: int, told: Callable[[int], None]) -> None:
    """Wait until so many are done. Raises TimeoutError where it does not go on."""
    for number in (*range(first, last, STRIDE), last):
        saving.after(number - 1)
        told(number)


def fetched(path: Path) -> int:
    """So many copies were written to the neighbour's segment."""
    with closing(SegmentFile(path)) as segment:
        return max((stamp.sequence for slot in range(segment.slots) if (stamp := segment.stamp(slot)) is not None), default=0)


@contextmanager
def in_memory(folder: Path) -> Iterator[tuple[Told, dict[str, int]]]:
    """(who saves, pids of all three)"""
    pair = SavingPair(folder)
    try:
        yield pair.processes["trainer"], {name: process.pid for name, process in pair.processes.items()}
    finally:
        for process in pair.processes.values():
            process.kill()


@contextmanager
def to_storage(folder: Path) -> Iterator[tuple[Told, dict[str, int]]]:
    """(who saves, its pid)"""
    trainer = Told(partial(save_to_storage, folder / "kept"))
    try:
        yield trainer, {"trainer": trainer.pid}
    finally:
        trainer.kill()


def rows_of(where: str, saves: int, found: Mapping[str, tuple[Usage, Usage]]) -> list[Row]:
    """One for each process."""
    rows = []
    for name, (before, after) in found.items():
        memory = after.memory - before.memory
        others = [(field, getattr(before, field), getattr(after, field)) for field in ("descriptors", "threads", "files", "file_bytes")]
        figure = f"{memory / 1e6:+.2f} MB (of {before.memory / 1e6:.1f}); " + ", ".join(f"{field.replace('_', ' ')} {one} → {other}" for field, one, other in others)
        met = memory <= LARGEST_BYTES and all(other <= one + (LARGEST_FILE_BYTES if field == "file_bytes" else 0) for field, one, other in others)
        rows.append(Row(f"{saves:,} saves {where}, growth of the {name}", figure, f"≤ {LARGEST_BYTES / 1e6:g} MB, ≤ {LARGEST_FILE_BYTES:,} bytes of files, nothing else", met))
    return rows


def main() -> int:
    """Save and look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saves", type=int, default=10_000)
    parser.add_argument("--warm-up", type=int, default=1_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger().setLevel(logging.ERROR)
    for name in [name for name in os.environ if name.startswith("EAGLE_EYE_")]:
        del os.environ[name]
    os.environ |= {**of_ours(), COPIES_VARIABLE: str(SLOTS_WITH_BACKUP)}
    rows: list[Row] = []
    for where, saving in (("in memory", in_memory), ("to storage", to_storage)):
        with tempfile.TemporaryDirectory(prefix="eagle-eye-saves-", dir="/dev/shm") as folder, saving(Path(folder)) as (told, pids):
            rows += rows_of(where, options.saves, grown(told, pids, Path(folder), where, options.warm_up, options.saves))
            rows += [Row("copies of them that the neighbour has fetched meanwhile", f"{fetched(path):,}") for path in Path(folder).glob("*backup*.memory")]
    return report(rows, options.json, "many saves")


if __name__ == "__main__":
    sys.exit(main())
