"""How little slower a rank must be to be found, how soon, and whom that accuses falsely.

    python -m benchmarks.watch.slow_rank [--full]

Frames of jobs that were never run, of 4 to 4,096 workers whose compute varies by 2 %: one of them is slower from a step on, or from the start. Beside it,
over the same steps: the rule of NVIDIA's Resiliency Extension 0.7 (`reporting.py`: median of the fastest rank / median of the own one < 0.75, over the newest
steps), and the rule of thumb that a worker above 1.1 times the median of all in each of 5 successive steps is slow. --full: more seeds, and more healthy steps.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.report import Row, report
from detectors.fail_slow import FailSlow
from detectors.straggler import Straggler
from eagle_eye.app.evaluation.job_steps import frames_of, layout_of, told
from eagle_eye.app.evaluation.slow_workers import ACCUSING, NVRX_SCORE
from eagle_eye.types import Doubles

SIZES = (4, 16, 64, 256, 1024, 4096)
GOALS = ((1.25, 10), (1.10, 30), (1.05, 200))
"""(times as slow, iterations within which it must be found)"""
ONSET = 100
NOISE = 0.02
THUMB, THUMB_STEPS = 1.1, 5
LIMIT = 1e-6
"""False alarms a rank and iteration."""


class Peers(NamedTuple):
    """Whom the rules of others accuse: worker → how many rows were needed."""

    nvrx: dict[int, int]
    thumb: dict[int, int]


def rows_of(steps: int, workers: int, seed: int, shape: Callable[[int, Doubles], None], noise: float = NOISE) -> Doubles:
    """Steps × workers: seconds of computing. `shape` changes each row."""
    rng = np.random.default_rng(seed)
    rows = np.exp(rng.normal(0.0, noise, (steps, workers)) + rng.normal(0.0, 0.03, (steps, 1)))
    for number, row in enumerate(rows):
        shape(number, row)
    return rows


def slower(worker: int, times: float, onset: int) -> Callable[[int, Doubles], None]:
    """One worker is, from a step on."""

    def shape(number: int, row: Doubles) -> None:
        if number >= onset:
            row[worker] *= times

    return shape


def others(rows: Doubles, onset: int) -> Peers:
    """The newest rows since the onset, as their reports would hold them."""
    nvrx: dict[int, int] = {}
    thumb: dict[int, int] = {}
    late = rows > THUMB * np.median(rows, axis=1, keepdims=True)
    for count in range(1, len(rows) - onset + 1):
        medians = np.median(rows[onset : onset + count], axis=0)
        for index in np.flatnonzero(medians.min() / medians < NVRX_SCORE).tolist():
            nvrx.setdefault(index, count)
        if count >= THUMB_STEPS:
            for index in np.flatnonzero(late[onset + count - THUMB_STEPS : onset + count].all(axis=0)).tolist():
                thumb.setdefault(index, count)
    return Peers(nvrx, thumb)


def accused(rows: Doubles, stages: Sequence[int]) -> dict[int, int]:
    """Worker → step in which it was accused first, by both detectors of slow workers."""
    layout = layout_of(stages)
    found: dict[int, int] = {}
    for detector in (FailSlow(), Straggler()):
        for name, step in told(detector, frames_of(rows, layout, tokens=True), ACCUSING).items():
            index = layout.workers.index(name)
            found[index] = min(step, found.get(index, step))
    return found


def sweep(times: float, limit: int, seeds: Callable[[int], int]) -> Iterator[Row]:
    """One of N is slower."""
    for onset, words in ((1, "from the start"), (ONSET, f"from step {ONSET} on")):
        runs = hits = wrong = nvrx = thumb = 0
        delays = []
        for workers in SIZES:
            for seed in range(seeds(workers)):
                rows = rows_of(onset + limit, workers, seed, slower(1, times, onset))
                found, peers = accused(rows, [0] * workers), others(rows, onset) if workers <= 256 else Peers({}, {})
                runs, hits, wrong = runs + 1, hits + (1 in found), wrong + len(found.keys() - {1})
                delays += [found[1] - onset + 1] if 1 in found else []
                nvrx, thumb = nvrx + (1 in peers.nvrx), thumb + (1 in peers.thumb)
        small = sum(seeds(workers) for workers in SIZES if workers <= 256)
        figure = f"{hits} of {runs}, after {np.median(delays):.0f} iterations, {max(delays)} at most" if delays else f"0 of {runs}"
        yield Row(
            f"one of {SIZES[0]} to {SIZES[-1]:,} {times:.2f} times as slow, {words}", figure, f"all within {limit}", hits == runs and not wrong,
            f"NVRx's rule {nvrx} of {small}, rule of thumb {thumb} of {small} (up to 256)",
        )


def quiet(seeds: int) -> Iterator[Row]:
    """Nobody is slow in these."""
    stages = [rank % 4 for rank in range(32)]

    def unequal(_: int, row: Doubles) -> None:
        for rank, stage in enumerate(stages):
            row[rank] *= (1.15, 1.0, 1.0, 1.45)[stage]

    def fast(_: int, row: Doubles) -> None:
        row[1] *= 0.7

    def common(number: int, row: Doubles) -> None:
        row *= 1.2 if number >= ONSET else 1.0

    cases = (
        ("four stages, the first 1.15 and the last 1.45 times as long", stages, unequal),
        ("one of 4 is fast: 0.7 times as long", [0] * 4, fast),
        ("one of 32 is fast: 0.7 times as long", [0] * 32, fast),
        (f"all 1.2 times as slow from step {ONSET} on", [0] * 32, common),
    )
    for words, layout, shape in cases:
        mine, nvrx, thumb = 0, 0, 0
        for seed in range(seeds):
            rows = rows_of(300, len(layout), seed, shape)
            peers = others(rows[:130], 100)
            mine, nvrx, thumb = mine + len(accused(rows, layout)), nvrx + len(peers.nvrx), thumb + len(peers.thumb)
        yield Row(f"nobody is sick: {words}", f"{mine} accused in {seeds} runs", "nobody", mine == 0, f"NVRx's rule {nvrx}, rule of thumb {thumb}")


def healthy(steps: int) -> Iterator[Row]:
    """False alarms over many steps of 1,000 healthy workers."""
    workers = 1000

    def heavy(rng: np.random.Generator) -> Iterator[Doubles]:
        return (np.exp(0.02 * rng.standard_t(3.0, workers)) for _ in range(steps))

    def lasting(rng: np.random.Generator) -> Iterator[Doubles]:
        noise = np.zeros(workers)
        for _ in range(steps):
            noise = 0.7 * noise + rng.normal(0.0, NOISE * 0.7, workers)
            yield np.exp(noise)

    def unlike(rng: np.random.Generator) -> Iterator[Doubles]:
        level = rng.normal(0.0, 0.02, workers)
        return (np.exp(level + rng.normal(0.0, NOISE, workers)) for _ in range(steps))

    def plain(rng: np.random.Generator) -> Iterator[Doubles]:
        return (np.exp(rng.normal(0.0, NOISE, workers)) for _ in range(steps))

    for words, make in (("2 % noise", plain), ("noise of heavy tails (Student's t of 3)", heavy), ("noise that lasts (correlation 0.7)", lasting), ("workers that differ by 2 % for good", unlike)):
        layout = layout_of([0] * workers)
        found = told(FailSlow(), frames_of(make(np.random.default_rng(5)), layout, tokens=True), ACCUSING)
        rate = len(found) / (steps * workers)
        yield Row(f"healthy, {words}: {steps * workers:,} iterations of ranks", f"{len(found)} accused", f"≤ {LIMIT * steps * workers:.0f}", rate <= LIMIT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    times = 4 if options.full else 1
    rows = [row for slowness, limit in GOALS for row in sweep(slowness, limit, lambda workers: times * (3 if workers <= 256 else 1))]
    rows += [*quiet(3 * times), *healthy(1000 * times)]
    return report(rows, options.json, "slow ranks")


if __name__ == "__main__":
    sys.exit(main())
