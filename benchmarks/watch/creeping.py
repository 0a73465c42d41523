"""Slowness that creeps, and slowness of all: when it is found, as what, and who is accused.

    python -m benchmarks.watch.creeping

Jobs that were never run, of steps of 4 s whose compute varies by 2 %: within two hours one worker, or all of them, become 1.5 times as slow; or all become 1.2 times
as slow at once. Beside it what the mean of the newest 50 steps would show, which follows whatever creeps: the largest ratio of a step to it.
"""

import argparse
import sys
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.report import Row, report
from detectors.fail_slow import FailSlow
from detectors.iteration_time import IterationTime
from detectors.straggler import Straggler
from detectors.throughput import ThroughputLoss
from eagle_eye.app.evaluation.job_steps import frames_of, layout_of
from eagle_eye.types import Doubles

STEP_S = 4.0
HEALTHY, CREEPING = 200, 1800
"""Steps; 1,800 of 4 s are two hours."""
AGAINST_WORKERS = frozenset({"worker.slow", "worker.slower"})
OF_THE_JOB = frozenset({"job.slow", "job.very_slow", "job.throughput_lost"})


def rows_of(workers: int, shape: Callable[[int, Doubles], None], seed: int) -> Doubles:
    """Steps × workers: seconds of computing."""
    rng = np.random.default_rng(seed)
    rows = STEP_S * np.exp(rng.normal(0.0, 0.02, (HEALTHY + CREEPING, workers)) + rng.normal(0.0, 0.01, (HEALTHY + CREEPING, 1)))
    for number, row in enumerate(rows):
        shape(number, row)
    return rows


def creep(number: int) -> float:
    """Times as slow in a step."""
    return 1.0 + 0.5 * max(0, number - HEALTHY) / CREEPING


def judged(rows: Doubles, stages: Sequence[int]) -> dict[tuple[str, str], int]:
    """(kind, entity) → step in which it was claimed first."""
    found: dict[tuple[str, str], int] = {}
    detectors = (FailSlow(), Straggler(), IterationTime(), ThroughputLoss())
    for frame in frames_of(rows, layout_of(stages), tokens=True):
        for detector in detectors:
            for claim in detector.update(frame):
                if claim.active:
                    found.setdefault((claim.kind, claim.entity.name), frame.steps[-1].number)
    return found


def one(words: str, stages: Sequence[int]) -> Row:
    """Worker 1 creeps."""

    def shape(number: int, row: Doubles) -> None:
        row[1] *= creep(number)

    rows = rows_of(len(stages), shape, 1)
    found = {entity: step for (kind, entity), step in reversed(judged(rows, stages).items()) if kind in AGAINST_WORKERS}
    step = found.get("run/node-1/0")
    figure = f"after {(step - HEALTHY) * STEP_S / 60:.0f} min, at {creep(step):.3f} times; accused: {', '.join(found)}" if step is not None else f"not found; accused: {', '.join(found) or 'nobody'}"
    moving = np.convolve(rows[:, 1], np.full(50, 0.02), "valid")
    return Row(f"one creeps to 1.5 times over 2 h, {words}", figure, "found, alone", found.keys() == {"run/node-1/0"}, f"beside its mean of 50 steps {np.median(rows[-200:, 1] / moving[-200:]):.2f} times at the end")


def all_of(words: str, shape: Callable[[int, Doubles], None], at: Callable[[int], float]) -> Row:
    """Everybody is slower."""
    found = judged(rows_of(8, shape, 2), [0] * 8)
    accused = sorted(entity for kind, entity in found if kind in AGAINST_WORKERS)
    of_the_job = {kind: step for (kind, _), step in found.items() if kind in OF_THE_JOB}
    told = ", ".join(f"{kind} after {step - HEALTHY + 1} steps, at {at(step):.2f} times" for kind, step in of_the_job.items())
    return Row(words, f"{told or 'not found'}; accused: {', '.join(accused) or 'nobody'}", "found as the job's, nobody accused", bool(of_the_job) and not accused)


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)

    def creeping(number: int, row: Doubles) -> None:
        row *= creep(number)

    def common(number: int, row: Doubles) -> None:
        row *= 1.2 if number >= HEALTHY else 1.0

    rows = [
        one("of 8 peers", [0] * 8),
        one("of 2 of its stage (4 stages)", [0, 1, 2, 3] * 2),
        all_of("all creep to 1.5 times over 2 h", creeping, creep),
        all_of("all are 1.2 times as slow at once", common, lambda _: 1.2),
    ]
    return report(rows, options.json, "slowness that creeps")


if __name__ == "__main__":
    sys.exit(main())
