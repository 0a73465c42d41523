"""What the same faults cost the peers, with the same model, one peer after another.

    python -m benchmarks.elastic.peers                                        all
    python -m benchmarks.elastic.peers --only torchft --acts kill --trials 1  a short look

NVRx is not run: its in-process restart needs 1.8 s after a kill and does not come back from a hang on gloo.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.elastic.peers.torchft import Torchft
from benchmarks.elastic.peers.torchrun import Torchrun
from benchmarks.elastic.trials import ACTS, Job, Trial, series, summarize
from benchmarks.report import Row, report

TIMEOUT_S = 5.0
"""What torchrun's script is given for a collective where it has to notice a hang: half an hour is what is shipped."""
PATIENCE_S = {"kill": 60.0, "stop": 90.0, "hang": 90.0}
Start = Callable[[Path, int, str], Job]
PEERS: dict[str, Start] = {
    "torchrun": lambda folder, workers, act: Torchrun(folder, workers, 1800.0 if act == "kill" else TIMEOUT_S),
    "torchft": lambda folder, workers, _: Torchft(folder, workers, tuned=False),
    "torchft tuned": lambda folder, workers, _: Torchft(folder, workers, tuned=True),
    "torchft allreduce": lambda folder, workers, _: Torchft(folder, workers, tuned=False, reduction="allreduce"),
    "torchft tuned allreduce": lambda folder, workers, _: Torchft(folder, workers, tuned=True, reduction="allreduce"),
}


def measure(start: Start, act: str, workers: int, trials: int, seed: int = 0) -> tuple[str, list[Trial]]:
    """The peer's name and its trials of one kind of fault."""
    with tempfile.TemporaryDirectory(prefix="eagle-eye-peer-", dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        job = start(Path(folder), workers, act)
        try:
            return job.name, series(job, [act] * trials, random.Random(seed), PATIENCE_S[act])
        finally:
            job.end()


def peers_of(act: str, workers: int, trials: int, only: str = "") -> list[tuple[str, list[Trial]]]:
    """All peers, one after another, whose name begins with `only`."""
    found = []
    for name, start in PEERS.items():
        if name.startswith(only):
            found.append(measure(start, act, workers, trials))
            print(f"{found[-1][0]}, {act}: {summarize(found[-1][1])}", file=sys.stderr, flush=True)
    return found


def rows_of(act: str, found: list[tuple[str, list[Trial]]]) -> list[Row]:
    """One row a peer."""
    return [Row(f"{name}: {act} in mid step → step of the others", summarize(trials)) for name, trials in found]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="peers whose name begins so")
    parser.add_argument("--acts", nargs="+", choices=ACTS, default=list(ACTS))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    for act in options.acts:
        rows += rows_of(act, peers_of(act, options.workers, options.trials, options.only))
    return report(rows, options.json, f"peers with {options.workers} workers")


if __name__ == "__main__":
    sys.exit(main())
