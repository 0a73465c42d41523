"""kill -9 of a worker in the middle of a step: what it costs the others, part by part and as they see it on the wall.

    python -m benchmarks.elastic.kill                           4 and 8 workers, and torchrun and torchft beside
    python -m benchmarks.elastic.kill --workers 4 --trials 2 --no-peers

The parts are what the job's own record (event `transition.done`) says: noticing, planning, the new group, state. What
had to be computed again stands apart. The wall is the length of the step that was struck less an undisturbed one. The
same job is struck with its server up, and again with the server stopped.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.elastic.commits import Commit
from benchmarks.elastic.ours import Order, OurJob
from benchmarks.elastic.peers.__main__ import peers_of
from benchmarks.elastic.trials import Trial, series, summarize
from benchmarks.report import Row, report
from eagle_eye.app.local_cluster import LocalCluster
from eagle_eye.clock import SystemClock
from eagle_eye.ports import free_port
from eagle_eye.types import Event

GOALS_S = {4: 0.150, 8: 0.250}
STEP_S = 0.4
"""An undisturbed step of 4 workers is to take so long at least: else a kill has little of a step to strike."""
PARTS = ("notice_s", "plan_s", "group_s", "state_s")
PATIENCE_S = 60.0
RECORD_S = 10.0
LOOK_S = 0.1
QUOTED = "NVRx in-process 1.8 s (quoted, not run)"


class Struck:
    """One job, its worker killed again and again, with and without its server."""

    def __init__(self, workers: int, trials: int) -> None:
        self.workers = workers
        self.trials: dict[str, list[Trial]] = {}
        self.records: dict[str, list[Event]] = {}
        self.commits: list[Commit] = []
        with tempfile.TemporaryDirectory(prefix="ee-", ignore_cleanup_errors=True) as folder:
            self._run(Path(folder), trials)

    def _run(self, folder: Path, trials: int) -> None:
        server = f"127.0.0.1:{free_port()}"
        cluster = LocalCluster(folder=folder, config_file=None, clock=SystemClock(), state_dir=folder / "state")
        cluster.start_server("--listen", server, "--http", "")
        job = OurJob(folder, Order(nodes={"n0": self.workers}, leader=server))
        chance = random.Random(self.workers)
        try:
            for server_is in ("up", "stopped"):
                if server_is == "stopped":
                    cluster.stop()
                known = sum(map(len, self.records.values()))
                say(f"{self.workers} workers, server {server_is}")
                done = self.trials[server_is] = series(job, ["kill"] * trials, chance, PATIENCE_S)
                healed = sum(trial.cost_s is not None for trial in done)
                self.records[server_is] = recorded(job, known + healed)[known:]
                say(summarize(self.trials[server_is]))
        finally:
            job.end()
            cluster.stop()
            self.commits = job.commits.look()

    def rows(self, peers: Sequence[str]) -> list[Row]:
        found = [step_row(self.workers, [trial.step_s for trials in self.trials.values() for trial in trials if trial.step_s])]
        for server_is, trials in self.trials.items():
            records = self.records[server_is]
            where = f"{self.workers} workers, server {server_is}"
            found.append(cost_row(where, self.workers, records, peers))
            found.append(Row(f"{where}: computed again, beside that", seconds([again_of(record) for record in records])))
            walls = summarize(trials)
            found.append(Row(f"{where}: on the wall, the step less an undisturbed one of {trials[0].step_s:.3f} s", walls, peer="; ".join(peers)))
            found.append(waste_row(where, records, self.commits))
        return found


def step_row(workers: int, steps_s: Sequence[float]) -> Row:
    """What is struck."""
    goal = STEP_S if workers == 4 else None
    figure = f"{statistics.median(steps_s):.3f} s, at least {min(steps_s):.3f} s of {len(steps_s)}" if steps_s else "no record"
    met = bool(steps_s) and statistics.median(steps_s) >= goal if goal is not None else None
    return Row(f"{workers} workers: an undisturbed step", figure, f"≥ {goal} s" if goal is not None else "", met)


def deaths(job: OurJob) -> list[Event]:
    """The transitions that a death began."""
    return [event for event in job.events("transition.done") if event.attributes["reason"] == "death"]


def recorded(job: OurJob, count: int) -> list[Event]:
    """The same, once so many are there: a launcher writes its record a moment after the workers have committed."""
    deadline = time.monotonic() + RECORD_S
    while len(found := deaths(job)) < count and time.monotonic() < deadline:
        time.sleep(LOOK_S)
    return found


def cost_of(record: Event) -> float:
    """Seconds of noticing, planning, group and state."""
    return sum(float(record.attributes.get(part) or 0.0) for part in PARTS)


def again_of(record: Event) -> float:
    """Seconds of recomputation, of the worker that had most to do."""
    return float(record.attributes.get("recompute_s") or 0.0)


def cost_row(where: str, workers: int, records: Sequence[Event], peers: Sequence[str]) -> Row:
    """Beside the goal."""
    costs = [cost_of(record) for record in records]
    parts = ", ".join(f"{part[:-2]} {statistics.median(float(record.attributes.get(part) or 0) for record in records) * 1000:.0f}" for part in PARTS) if records else ""
    figure = f"{seconds(costs)} (median ms: {parts})"
    goal = GOALS_S.get(workers)
    met = bool(costs) and max(costs) <= goal if goal is not None else None
    return Row(f"{where}: kill -9 → notice + planning + group + state", figure, f"≤ {goal * 1000:.0f} ms" if goal else "", met, "; ".join([*peers[:1], QUOTED]))


def waste_row(where: str, records: Sequence[Event], commits: Sequence[Commit]) -> Row:
    """What the others computed in a step that was struck: each micro-batch once, and none of their own again."""
    struck = {int(record.attributes["step"]) for record in records}
    twice = {step: computed_twice([commit for commit in commits if commit.step == step]) for step in sorted(struck)}
    one = all(len(record.attributes.get("lost", "").split(",")) == 1 for record in records)
    kept = ", ".join(record.attributes.get("kept", "?") for record in records)
    words = f"{sum(map(len, twice.values()))} micro-batches computed twice by the others, in {len(twice)} steps; of 16 they kept {kept}"
    met = bool(records) and one and not any(twice.values())
    return Row(f"{where}: thrown away beside what the dead worker had done of this step", words, "nothing", met, "torchft: the replica's step")


def computed_twice(commits: Sequence[Commit]) -> list[int]:
    """Micro-batches of one step that more than one computation of the living went into."""
    counted = Counter(number for commit in commits for number in commit.more["computed"])
    return [number for number, times in counted.items() if times > 1]


def seconds(values: Sequence[float]) -> str:
    """Median and worst."""
    if not values:
        return "no record"
    return f"{statistics.median(values) * 1000:.0f} ms, at most {max(values) * 1000:.0f} ms of {len(values)}"


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--trials", type=int, default=5, help="with the server up, and as many with it stopped")
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[Row] = []
    for workers in options.workers:
        found = peers_of("kill", workers, min(options.trials, 3)) if options.peers and workers == 4 else []
        rows += Struck(workers, options.trials).rows([f"{name}: {summarize(trials)}" for name, trials in found])
    return report(rows, options.json, "a worker killed in the middle of a step")


if __name__ == "__main__":
    sys.exit(main())
