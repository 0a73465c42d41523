"""How long does a collective wait while torch copies the ring of its flight recorder for a reader?

    python -m benchmarks.collect.ring_reading [--reads N] [--entries N] [--json]

Two processes all-reduce a small tensor over gloo, again and again, with a full ring in each. Rank 0 is asked for its ring as an agent does (`live_flight_recorder.answers`), by another
process and far more often than an agent may; by turns, nobody reads. The longest all-reduce of each read is compared with the longest of a time just as long without one: a machine
that is busy with other things has its own long ones, and reads are long then, too.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import NamedTuple

from benchmarks.report import Row, report
from eagle_eye.training import live_flight_recorder

RANKS, ELEMENTS = 2, 256
ROUNDS = 4
EVERY_S = 0.1
"""Between two reads."""
READY_S, ANSWER_S = 120.0, 10.0


class Interval(NamedTuple):
    """Of one all-reduce; monotonic."""

    began: float
    took_s: float


def train(rank: int, folder: str, entries: int, filled: Event, over: Event) -> None:
    """All-reduces until it is over; rank 0 writes down how long each took. That it is over all ranks know from the sum."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = str(entries)
    import numpy as np
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    if rank == 0 and not live_flight_recorder.serve(f"{folder}/0.fr"):
        sys.exit("this torch serves no flight recorder")
    data, found, step = torch.ones(ELEMENTS), [], 0
    while data[0] > 0:
        data.fill_(0.0 if over.is_set() else 1.0)
        began = time.monotonic()
        dist.all_reduce(data, op=dist.ReduceOp.MIN)
        found.append(Interval(began, time.monotonic() - began))
        step += 1
        if step == entries + 100:
            filled.set()
    if rank == 0:
        np.save(f"{folder}/intervals.npy", np.array(found))
    os._exit(0)  # torch's server has no end of its own


class Measured(NamedTuple):
    """Seconds. Of all-reduces: the longest and the mean in each of the times."""

    reads: list[float]
    longest: list[float]
    means: list[float]
    longest_without: list[float]
    means_without: list[float]


def measure(reads: int, entries: int) -> Measured:
    """Raises RuntimeError where a worker does not begin, or does not answer."""
    import numpy as np

    context = multiprocessing.get_context("spawn")
    filled, over = context.Event(), context.Event()
    with tempfile.TemporaryDirectory(prefix="ring") as folder:
        workers = [context.Process(target=train, args=(rank, folder, entries, filled, over), daemon=True) for rank in range(RANKS)]
        for worker in workers:
            worker.start()
        if not filled.wait(READY_S):
            raise RuntimeError("the ring was not filled")
        quiet: list[tuple[float, float]] = []
        asked: list[tuple[float, float]] = []
        for _ in range(ROUNDS):
            asked += (round_of := [_read(f"{folder}/0.fr") for _ in range(reads // ROUNDS)])
            quiet += [_wait(last - first) for first, last in round_of]
        over.set()
        for worker in workers:
            worker.join(READY_S)
        began, took = np.load(Path(folder) / "intervals.npy").T

    def within(spans: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
        each = [took[(began + took >= first) & (began <= last)] for first, last in spans]
        some = [times for times in each if len(times)]  # none: the process had no processor meanwhile
        return [float(times.max()) for times in some], [float(times.mean()) for times in some]

    return Measured([last - first for first, last in asked], *within(asked), *within(quiet))


def _read(path: str) -> tuple[float, float]:
    """When it was asked and when the answer was there."""
    time.sleep(EVERY_S)
    began = time.monotonic()
    if not live_flight_recorder.answers(path, ANSWER_S):
        raise RuntimeError("the worker does not answer")
    return began, time.monotonic()


def _wait(seconds: float) -> tuple[float, float]:
    """When a time without a reader began and ended."""
    time.sleep(EVERY_S)
    began = time.monotonic()
    time.sleep(seconds)
    return began, time.monotonic()


def _words(times: list[float]) -> str:
    ms = sorted(1e3 * each for each in times)
    return f"median {statistics.median(ms):.2f} ms, 90 % within {ms[len(ms) * 9 // 10]:.2f} ms, longest {ms[-1]:.1f} ms"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reads", type=int, default=200)
    parser.add_argument("--entries", type=int, default=2000, help="of the ring")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.reads, arguments.entries)
    rows = [
        Row(f"a read of a ring of {arguments.entries:,}, of {len(found.reads)}", _words(found.reads)),
        Row("the longest all-reduce during each", _words(found.longest), peer=f"nobody reads: {_words(found.longest_without)}"),
        Row("the mean all-reduce during each", _words(found.means), peer=f"nobody reads: {_words(found.means_without)}"),
    ]
    return report(rows, arguments.json, "What reading a ring costs the collectives of its worker")


if __name__ == "__main__":
    sys.exit(main())
