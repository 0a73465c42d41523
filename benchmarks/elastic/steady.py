"""What healing costs while nothing is broken: time of a step and memory, against plain DDP.

    python -m benchmarks.elastic.steady                 both reductions, 200 and 60 pairs
    python -m benchmarks.elastic.steady --pairs 10 --reduction fast

Time is paired: the same four processes do a step of ours and a step of DDP by turns, and the difference within a pair
is what counts; its 95 % bound is by bootstrap. Memory is the peak of a worker less that of a worker that accumulates
gradients and never reduces them, in copies of the gradient.
"""

import argparse
import math
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, layers_of, parameters_of
from benchmarks.elastic.ours import Order, OurJob
from benchmarks.elastic.trials import wait
from benchmarks.report import Row, report

GOALS = {"fast": 0.01, "exact": 0.10}
PAIRS = {"fast": 200, "exact": 60}
"""A bound of one part in a hundred takes more of them than one of ten."""
COPIES = {"fast": 1.0, "exact": math.log2(MICRO_BATCHES) + 2}
WARM_UP = 4
MEMORY_STEPS = 4
RESAMPLES = 4000
PATIENCE_S = 900.0
QUOTED = "torchft: +4.3 ms a step (quoted)"


def said(workers: int, steps: int, *words: str) -> list[list[dict[str, Any]]]:
    """What each worker noted of each step."""
    with tempfile.TemporaryDirectory(prefix="ee-", ignore_cleanup_errors=True) as folder:
        script = ("--steps", str(steps), "--meet", f"{folder}/meet", *words)
        elastic = not {"ddp", "none"} & set(words)
        order = Order(
            program="benchmarks.elastic.steady_job", script=script, nodes={"n0": workers},
            heal="in-place:0" if elastic else "none",
        )  # fmt: skip
        job = OurJob(Path(folder), order)
        try:
            wait(job, f"{steps} steps", PATIENCE_S, lambda now: len(now) >= workers * steps)
        finally:
            job.end()
        by_step: dict[int, list[dict[str, Any]]] = {}
        for commit in job.commits.all:
            by_step.setdefault(commit.step, []).append(commit.more)
        return [by_step[step] for step in sorted(by_step)]


def bound(differences: Sequence[float], chance: random.Random) -> float:
    """Above the median of the differences with 95 % confidence."""
    medians = sorted(statistics.median(chance.choices(differences, k=len(differences))) for _ in range(RESAMPLES))
    return medians[int(0.95 * RESAMPLES)]


def time_row(reduction: str, workers: int, pairs: int) -> Row:
    """A step of the slowest worker, in pairs."""
    steps = said(workers, pairs + WARM_UP, "--reduction", reduction)[WARM_UP:]
    ours = [max(note["ours_s"] for note in notes) for notes in steps]
    plain = [max(note["plain_s"] for note in notes) for notes in steps]
    usual = statistics.median(plain)
    differences = [mine - theirs for mine, theirs in zip(ours, plain, strict=True)]
    middle, most = statistics.median(differences) / usual, bound(differences, random.Random(0)) / usual
    return Row(
        f"{reduction}: a step against plain DDP, {pairs} pairs, {workers} workers",
        f"{middle:+.1%}, 95 % bound {most:+.1%} ({statistics.median(ours):.3f} s)", f"≤ {GOALS[reduction]:.0%}",
        most <= GOALS[reduction], f"DDP {usual:.3f} s; {QUOTED}", f"{1 + middle:.3f}×",
    )  # fmt: skip


def memory_rows(reductions: Sequence[str], workers: int) -> list[Row]:
    """Peaks over that of a worker that reduces nothing."""
    gradient = sum(parameter.numel() for parameter in parameters_of(layers_of(SIZES["full"]))) * 4
    peaks = {
        kind: max(note["peak_bytes"] for note in said(workers, MEMORY_STEPS, "--alone", kind)[-1])
        for kind in ("none", "ddp", *reductions)
    }
    copies = {kind: (peak - peaks["none"]) / gradient for kind, peak in peaks.items()}
    return [
        Row(
            f"{kind}: extra memory of a worker, in copies of the gradient ({gradient / 1e6:.0f} MB)", f"{copies[kind]:.2f}",
            f"≤ {COPIES[kind]:g}", copies[kind] <= COPIES[kind], f"DDP {copies['ddp']:.2f}",
        )
        for kind in reductions
    ]  # fmt: skip


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, help="of steps, for each reduction; default: fast 200, exact 60")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--reduction", choices=GOALS, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    reductions = options.reduction or list(GOALS)
    rows = [time_row(reduction, options.workers, options.pairs or PAIRS[reduction]) for reduction in reductions]
    return report([*rows, *memory_rows(reductions, options.workers)], options.json, "while nothing is broken")


if __name__ == "__main__":
    sys.exit(main())
