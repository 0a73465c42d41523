"""A worker that stops or hangs in the middle of a step: how long until the others have committed it, default settings.

    python -m benchmarks.elastic.stop
    python -m benchmarks.elastic.stop --acts hang --trials 1 --no-peers

`stop` is SIGSTOP: nothing of the process runs. `hang` is a training loop that sleeps for ever in Python while every
other thread of the process, also one that sends heartbeats, goes on.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.elastic.ours import Order, OurJob
from benchmarks.elastic.peers.__main__ import peers_of
from benchmarks.elastic.trials import Trial, series, summarize
from benchmarks.report import Row, report

PATIENCE_S = 60.0
ITERATIONS, SLACK_S = 3, 0.5
QUOTED = "NVRx in-process: not recovered on gloo (quoted, not run)"
NAMES = {"stop": "SIGSTOP", "hang": "Python-level hang"}


def measure(act: str, workers: int, trials: int) -> list[Trial]:
    """One job, struck again and again."""
    with tempfile.TemporaryDirectory(prefix="ee-", ignore_cleanup_errors=True) as folder:
        job = OurJob(Path(folder), Order(nodes={"n0": workers}))
        try:
            return series(job, [act] * trials, random.Random(act), PATIENCE_S)
        finally:
            job.end()


def row_of(act: str, trials: Sequence[Trial], peers: Sequence[str]) -> Row:
    """Beside the goal."""
    whole = all(trial.cost_s is not None for trial in trials)
    times = ", ".join(f"{trial.until_s:.2f}" for trial in trials if trial.cost_s is not None)
    step_s = max(trial.step_s for trial in trials)
    limits_s = [ITERATIONS * trial.step_s + SLACK_S for trial in trials]
    met = whole and all(trial.until_s <= limit for trial, limit in zip(trials, limits_s, strict=True))
    figure = f"{times} s (a step: {step_s:.2f} s)" if whole else summarize(trials)
    goal = f"≤ {ITERATIONS} iterations + {SLACK_S:g} s = {min(limits_s):.2f} s" if act == "stop" else "the healthy go on"
    return Row(
        f"{NAMES[act]} in mid step, default settings → step committed by the others", figure, goal,
        met if act == "stop" else whole, "; ".join([*peers, QUOTED]),
    )  # fmt: skip


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--acts", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for act in options.acts:
        peers = [f"{name}: {summarize(found)}" for name, found in peers_of(act, options.workers, 1)] if options.peers else []
        rows.append(row_of(act, measure(act, options.workers, options.trials), peers))
    return report(rows, options.json, "a worker that does not move any more")


if __name__ == "__main__":
    sys.exit(main())
