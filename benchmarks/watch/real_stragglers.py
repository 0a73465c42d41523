"""Whether the slow workers of real jobs are found, with when it began, and nobody healthy is accused.

    python -m benchmarks.watch.real_stragglers --data DIR       DIR/straggler_ops, DIR/pai_minibatch

straggler_ops (ByteDance, traces of operations): AR has one slow worker from the start; ST a long last pipeline stage and no slow worker. What a rank computed in a step is the
sum of its forward and backward operations; the tokens of its batches are not in the trace. pai_minibatch (Alibaba, time of each mini-batch of ten workers, which do not wait for one another): in job 1 worker 6
becomes slow in the middle, in job 3 several are; all mini-batches of a job are of one size. Beside it, the rule of NVIDIA's Resiliency Extension (median of the fastest rank / median of the own one < 0.75)
over the same steps: all of a trace, or the newest 20 of a job.
"""

import argparse
import csv
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.report import Row, report
from detectors.fail_slow import FailSlow
from detectors.straggler import Straggler
from eagle_eye.types import Doubles, Layout

from .job_steps import frames_of, layout_of, told
from .slow_rank import ACCUSED, NVRX_SCORE

WINDOW = 20


class Job(NamedTuple):
    """What was read of one job."""

    compute_s: Doubles
    """Steps × workers."""
    layout: Layout
    tokens: bool


def trace(path: Path) -> Job:
    """A trace of operations; its workers are the ranks of pipeline stage and replica."""
    columns = np.load(path, allow_pickle=False)
    names = columns["optype_names"].tolist()
    computes = np.isin(columns["optype"], [names.index(name) for name in names if name.endswith("-compute")])
    steps, number = np.unique(columns["step"], return_inverse=True)
    replicas, stages = int(columns["dp_rank"].max()) + 1, int(columns["stage"].max()) + 1
    seconds = np.zeros((len(steps), replicas * stages))
    worker = columns["dp_rank"].astype(np.int64) * stages + columns["stage"]
    np.add.at(seconds, (number[computes], worker[computes]), columns["duration"][computes].astype(np.float64))
    return Job(seconds, layout_of([index % stages for index in range(replicas * stages)]), tokens=False)


def mini_batches(path: Path) -> Job:
    """Each worker's mini-batches in their order; a unit is a millisecond of a batch that takes half a second."""
    times: dict[int, list[float]] = {}
    with gzip.open(path, "rt") as file:
        for row in csv.DictReader(file):
            times.setdefault(int(row["worker"]), []).append(float(row["batch_time_norm"]) / 1000.0)
    shortest = min(map(len, times.values()))
    seconds = np.array([times[worker][:shortest] for worker in sorted(times)]).T
    return Job(np.maximum(seconds, 1e-3), layout_of([0] * len(times)), tokens=True)


def named(job: Job) -> dict[int, int]:
    """Worker → step in which it was accused first."""
    found: dict[int, int] = {}
    for detector in (FailSlow(), Straggler()):
        for name, step in told(detector, frames_of(job.compute_s, job.layout, tokens=job.tokens), ACCUSED).items():
            index = job.layout.workers.index(name)
            found[index] = min(step, found.get(index, step))
    return found


def by_nvrx(job: Job, window: int) -> set[int]:
    """Whom that rule accuses in any window."""
    found: set[int] = set()
    for end in range(min(window, len(job.compute_s)), len(job.compute_s) + 1):
        medians = np.median(job.compute_s[max(0, end - window) : end], axis=0)
        found |= set(np.flatnonzero(medians.min() / medians < NVRX_SCORE).tolist())
    return found


def row_of(words: str, job: Job, expected: set[int], onset: tuple[int, int], window: int) -> Row:
    """`onset`: between these steps it must be found."""
    found, peer = named(job), by_nvrx(job, window)
    figure = ", ".join(f"worker {index} in step {step}" for index, step in sorted(found.items())) or "nobody accused"
    goal = ", ".join(f"worker {index} in steps {onset[0]} to {onset[1]}" for index in sorted(expected)) or "nobody accused"
    met = found.keys() == expected and all(onset[0] <= step <= onset[1] for step in found.values())
    return Row(words, figure, goal, met, f"NVRx's rule: {sorted(peer) or 'nobody'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with straggler_ops/ and pai_minibatch/")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    operations, batches = options.data / "straggler_ops", options.data / "pai_minibatch"
    rows = [
        row_of("straggler_ops AR: worker 0 (replica 0, stage 0), 2.4 times as slow from the start", trace(operations / "trace_AR.npz"), {0}, (0, 20), 10_000),
        row_of("straggler_ops ST: a long last stage", trace(operations / "trace_ST.npz"), set(), (0, 0), 10_000),
        row_of("pai_minibatch job 1: worker 6 in the middle", mini_batches(batches / "job_1.csv.gz"), {6}, (180, 200), WINDOW),
    ]
    third = mini_batches(batches / "job_3.csv.gz")
    told_of = ", ".join(f"worker {index} in step {step}" for index, step in sorted(named(third).items())) or "nobody accused"
    rows.append(Row("pai_minibatch job 3: several workers, which are not named", told_of, peer=f"NVRx's rule: {sorted(by_nvrx(third, WINDOW)) or 'nobody'}"))
    return report(rows, options.json, "slow workers of real jobs")


if __name__ == "__main__":
    sys.exit(main())
