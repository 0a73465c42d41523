"""What backup and storage cost the training beside checkpoints in memory: two workers, in windows of one run that follow one another.

    python -m benchmarks.checkpoint.backup                 12 rounds
    python -m benchmarks.checkpoint.backup --rounds 30
    python -m benchmarks.checkpoint.backup --every 1       each step is copied, whatever that costs

The training is that of `each_step`, each worker on a node of its own, whose launcher's cache (`CheckpointCache`) runs as a process. A round has three
windows of WINDOW steps, in an order that changes: no checkpoint; one in memory after each step; and that with each of them fetched by the other node,
while rank 0 writes the state to storage once a window, in a thread, as an elastic worker does. In the other windows the caches are stopped (SIGSTOP);
what they have not fetched by the end of a window is fetched at the beginning of the next one that has backups, so that none is for nothing.
How many steps are copied is what the caches come to by themselves (`backup_cpu_share` of the configuration) in a run before that, where nothing stops them.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from benchmarks.checkpoint.each_step import RANKS, Training, slowed
from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from eagle_eye.config import CheckpointsConfig
from eagle_eye.ports import free_port
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint.memory_checkpoints import COPIES_VARIABLE
from eagle_eye.training.checkpoint.memory_segment import SLOTS_WITH_BACKUP, SegmentFile
from eagle_eye.types import Layout, RankPlacement
from remediation.checkpoint import round_leader
from remediation.checkpoint.cache_settings import CacheSettings
from remediation.checkpoint.checkpoint_cache import CheckpointCache

MODULE = "benchmarks.checkpoint.backup"
WINDOW = 8
"""Steps."""
SLOWED = 0.05
"""Goal."""
SHARED = Path("/dev/shm")
NONE, MEMORY, BACKUP = range(3)
"""Kinds of windows."""
READY_S = 60.0
SETTLED = 160
"""Steps after which the caches know how many to copy."""
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--every", type=int, default=0, help="copied is each so many-th step; default: as the caches do it by themselves")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("a bound needs two rounds, at least")
    steal, load = neighbours(), os.getloadavg()[0]
    every = options.every or measured(0)["every"]
    rows = [*rows_of(measured(options.rounds, every)), Row("steps between two that are copied", f"{every}", peer=f"of {CheckpointsConfig().backup_cpu_share:.0%} of the processors, which copying may take")]
    waiting = Row("processes that wanted the processors, before and at the end", f"{load:.1f}, {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", peer="above 2 the times above say little")
    return report([*rows, steal(), waiting], options.json, "backup and storage beside checkpoints in memory")


def rows_of(found: Mapping[str, Any]) -> list[Row]:
    """Of rank 0's windows."""
    none, memory, backup = (found["seconds"][kind] for kind in (NONE, MEMORY, BACKUP))
    step_s, copies = statistics.median(none) / WINDOW, sum(found["copies"])
    mean, bound = slowed(backup, memory)
    whole, whole_bound = slowed(backup, none)
    each, each_bound = slowed(memory, none)
    what = f"2 workers, {len(none)} rounds of 3 windows of {WINDOW} steps of {step_s * 1000:.0f} ms, state of {found['bytes'] / 1e6:.0f} MB each"
    return [
        Row(f"{what}: slowed by backup and storage", f"{mean:+.2%}, 95 % bound {bound:+.2%}", f"≤ {SLOWED:.0%}", bound <= SLOWED, "the same with checkpoints in memory alone", f"{1 + mean:.4f}"),
        Row("slowed by memory, backup and storage together", f"{whole:+.2%}, 95 % bound {whole_bound:+.2%}", peer="the same without checkpoints", ratio=f"{1 + whole:.4f}"),
        Row("slowed by checkpoints in memory alone", f"{each:+.2%}, 95 % bound {each_bound:+.2%}", peer="the same without checkpoints", ratio=f"{1 + each:.4f}"),
        Row("copies that the other node has fetched and verified", f"{copies} of {2 * found['saves']} saved ({copies * found['bytes'] / 1e9:.1f} GB); {found['stored']} checkpoints written to storage"),
        Row("processor time of the two caches, of a step with backup", f"{found['processor_s'] / found['saves'] * 1000:.1f} ms"),
    ]


def measured(rounds: int, every: int = 0) -> dict[str, Any]:
    """Run two workers and two caches. Of no rounds: so long that the caches find out how many steps to copy."""
    with tempfile.TemporaryDirectory(prefix="eagle-eye-backup-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("EAGLE_EYE_")}
        environment |= {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", COPIES_VARIABLE: str(SLOTS_WITH_BACKUP)}
        processes: list[subprocess.Popen[Any]] = [subprocess.Popen([sys.executable, "-m", MODULE, "--cache", str(rank), folder, str(every)], env=environment) for rank in range(RANKS)]
        caches = [str(each.pid) for each in processes]
        try:
            command = [sys.executable, "-m", MODULE, "--worker", str(rounds), folder, *caches]
            workers = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in range(RANKS)]
            processes += workers
            printed = [each.communicate()[0] for each in workers]
            if any(each.returncode for each in workers):
                raise RuntimeError(f"a worker ended with {[each.returncode for each in workers]}")
            settled = max(json.loads((Path(folder) / f"{rank}.every").read_text()) for rank in range(RANKS))
            return {**json.loads(printed[0]), "every": settled, "copies": [fetched(rank, environment["MASTER_PORT"]) for rank in range(RANKS)]}
        finally:
            for each in processes:
                each.kill()
                each.wait()
            for path in SHARED.glob(f"{prefix_of(None, environment['MASTER_PORT'])}*"):
                path.unlink()


def prefix_of(rank: int | None, port: str) -> str:
    """Of the segments of a node; None: of both."""
    return f"eagle-eye-benchmark-{port}-" + ("" if rank is None else f"n{rank}-")


def fetched(rank: int, port: str) -> int:
    """How many copies of this rank the other node has fetched, but for the first one, before the windows."""
    path = SHARED / f"{prefix_of((rank + 1) % RANKS, port)}backup-{rank}of{RANKS}.memory"
    with closing(SegmentFile(path)) as segment:
        return max(stamp.sequence for slot in range(segment.slots) if (stamp := segment.stamp(slot)) is not None) - 1


# --- the two nodes -------------------------------------------------------------------------------------------------------


async def cache(rank: int, folder: Path, every: int) -> None:
    """A launcher's part, until it is killed. It tells in files where it serves its copies, and how many steps it copies."""
    nodes = tuple(f"n{number}" for number in range(RANKS))
    layout = Layout(
        job="t/j/r", epoch=1, time=1.0, coordinator="n0", launchers={node: f"127.0.0.1:{node[1:]}" for node in nodes},
        placements=tuple(RankPlacement(worker=f"r/{node}/0", node=node, rank=number, local_rank=0) for number, node in enumerate(nodes)),
    )  # fmt: skip

    async def ask(address: str, question: Mapping[str, Any]) -> Mapping[str, Any]:
        if question:  # of the rounds that all nodes copy in: here each makes its own
            return {"number": int(question["number"]) + 1, "target": int(question["newest"]) // int(question["every"]) * int(question["every"]) + int(question["every"]), "agreed": question["step"]}
        path = folder / address.rpartition(":")[2]
        while not path.exists():
            await asyncio.sleep(0.05)
        return dict(json.loads(path.read_text()))

    settings = CacheSettings(node=nodes[rank], run="r", host="127.0.0.1", folder=SHARED, prefix=prefix_of(rank, os.environ["MASTER_PORT"]), workers=1, limit_bytes=1 << 30, every=every or 1, share=0.0 if every else CheckpointsConfig().backup_cpu_share)
    round_leader.ROUND_S = 0.0  # each of the two leads its own rounds: they are in step, as their training is
    found = CheckpointCache(settings, lambda: layout, ask, lambda text, _: print(text, file=sys.stderr), None)
    found.start()
    told(folder / str(rank), await found.answer({}))
    while True:
        told(folder / f"{rank}.every", found.every)
        await asyncio.sleep(0.5)


def told(path: Path, what: object) -> None:
    """In a file that is never seen half written."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(what))
    unfinished.replace(path)


class Worker:
    """One rank."""

    def __init__(self, folder: Path, caches: list[int]) -> None:
        self.rank = int(os.environ["RANK"])
        self.port = os.environ["MASTER_PORT"]
        self.folder, self.caches = folder, caches
        self.training = Training(str(SHARED / f"{prefix_of(self.rank, self.port)}0.memory"))
        self.memory = self.training.memory
        self.writing = threading.Thread()
        self.saves = self.stored = 0
        self.processor_s = 0.0

    def begin(self) -> None:
        """The memory is reserved and the other node has a first copy; then the caches stand."""
        self.training.steps(range(2), lambda _: None)
        self.memory.prepare(self.training.state())
        self.save(0)
        self.memory.finish()
        kept = SHARED / f"{prefix_of((self.rank + 1) % RANKS, self.port)}backup-{self.rank}of{RANKS}.memory"
        deadline = time.monotonic() + READY_S
        while not kept.exists():
            if time.monotonic() > deadline:
                raise TimeoutError("the other node fetches nothing")
            time.sleep(0.05)
        torch.distributed.barrier()

    def settle(self) -> None:
        """Each step goes to memory, and on as the caches decide."""
        for first in range(1, SETTLED, WINDOW):
            self.training.steps(range(first, first + WINDOW), self.save)
        self.memory.finish()

    def save(self, number: int) -> None:
        """To memory."""
        self.memory.save(self.training.state(), number)

    def save_and_store(self, number: int) -> None:
        """Rank 0 writes to storage, too, once a window."""
        self.save(number)
        self.saves += 1
        if self.rank == 0 and number % WINDOW == 0:
            self.writing = threading.Thread(target=checkpoint.save, args=(self.training.copied(), number, self.folder / "storage"))
            self.writing.start()
            self.stored += 1

    def window(self, kind: int, first: int) -> float:
        """Seconds."""
        torch.distributed.barrier()
        if kind == BACKUP:
            self.signal_caches(signal.SIGCONT)
        before = sum(map(processor_s, self.caches))
        began = time.perf_counter()
        self.training.steps(range(first, first + WINDOW), (lambda _: None, self.save, self.save_and_store)[kind])
        self.memory.wait()
        seconds = time.perf_counter() - began
        if kind == BACKUP:
            self.processor_s += sum(map(processor_s, self.caches)) - before
            self.signal_caches(signal.SIGSTOP)
        self.memory.finish()
        if self.writing.is_alive():
            self.writing.join()
        return seconds

    def signal_caches(self, number: signal.Signals) -> None:
        """Rank 0 lets them run and stops them."""
        for pid in self.caches if self.rank == 0 else ():
            os.kill(pid, number)


def worker(rounds: int, folder: Path, caches: list[int]) -> None:
    """One rank; rank 0 prints the seconds of the windows by kind, and what was done meanwhile."""
    found = Worker(folder, caches)
    found.begin()
    if not rounds:
        found.settle()
    found.signal_caches(signal.SIGSTOP)
    seconds: list[list[float]] = [[], [], []]
    for turn in range(rounds):
        order = [(turn + place) % 3 for place in range(3)]
        for place, kind in enumerate(order if turn % 2 else order[::-1]):
            seconds[kind].append(found.window(kind, WINDOW * (3 * turn + place + 1)))
    found.memory.close()
    found.signal_caches(signal.SIGCONT)
    if found.rank == 0:
        print(json.dumps({"seconds": seconds, "bytes": found.training.bytes, "saves": found.saves, "stored": found.stored, "processor_s": found.processor_s}))
    torch.distributed.destroy_process_group()


def processor_s(pid: int) -> float:
    """That it has taken."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS


if __name__ == "__main__":
    if sys.argv[1:2] == ["--cache"]:
        asyncio.run(cache(int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
    elif sys.argv[1:2] == ["--worker"]:
        worker(int(sys.argv[2]), Path(sys.argv[3]), [int(pid) for pid in sys.argv[4:]])
    else:
        sys.exit(main())
