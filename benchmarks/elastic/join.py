"""A fresh worker joins a job that trains: the longest extra time of the others.

    python -m benchmarks.elastic.join
    python -m benchmarks.elastic.join --trials 2

A worker is killed; its replacement is forked from a process that has imported everything, builds its model while the
others train on, and enters between two steps. It begins to build only after some steps without it: so the step that
was struck and the join are not in each other's way, and there are undisturbed steps of as many workers to compare
with. A step counts from the moment at which the replacement begins to the second step that it is part of: less the
median of undisturbed steps of the same number of workers, before the join one worker fewer than after it. Beside that
stands the time that the moving of state took, as the job's own record has it.
"""

import argparse
import random
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.commits import Commit, began
from benchmarks.elastic.ours import Order, OurJob
from benchmarks.elastic.trials import Trial, series, undisturbed
from benchmarks.report import Row, report
from eagle_eye.types import Event

GOAL_S = 0.050
LATE_STEPS = 6
"""Done without the replacement before it begins; the first of them was struck."""
PATIENCE_S = 60.0
QUOTED = "torchft: 0.9 s, and 2.4 to 2.7 s until the replacement trains (quoted)"


@dataclass(frozen=True)
class Joined:
    """One worker that came in. Seconds of the others' steps, less an undisturbed one of as many workers."""

    building_s: float
    """Longest step while the replacement made itself ready."""
    entering_s: float
    """Longest of its first two steps; the first begins with the others' last one without it, and holds the pause."""
    state_s: float
    megabytes: float
    ready_s: float
    """From the moment at which the replacement began to its first step."""

    @property
    def extra_s(self) -> float:
        """Over both."""
        return max(self.building_s, self.entering_s)

    @property
    def net_s(self) -> float:
        """Without the state."""
        return max(self.building_s, self.entering_s - self.state_s)


def joined(event: Event, commits: Sequence[Commit], trial: Trial, folder: Path) -> Joined | None:
    """What the others noticed of the join of this epoch; None if it cannot be told."""
    epoch = int(event.attributes["epoch"])
    fresh = next(commit for commit in commits if commit.more["epoch"] == epoch and commit.worker == trial.victim)
    since = began(folder, fresh.pid)
    alone, together = ends(commits, epoch - 1, trial.victim), ends(commits, epoch, trial.victim)
    if since is None or not alone or len(together) < 2:
        return None
    every = alone | together
    steps = {step: at - every[step - 1] for step, at in every.items() if step - 1 in every}  # without the one that was struck
    before = [steps[step] for step, at in alone.items() if step in steps and at <= since]
    during = [steps[step] for step, at in alone.items() if step in steps and at > since]
    first = min(together)
    if not before:
        return None
    return Joined(
        max(during, default=0.0) - statistics.median(before), max(steps[first], steps[first + 1]) - trial.step_s,
        float(event.attributes.get("state_s") or 0.0), int(event.attributes.get("bytes") or 0) / 1e6, together[first] - since,
    )  # fmt: skip


def ends(commits: Sequence[Commit], epoch: int, without: str) -> dict[int, float]:
    """Step of this epoch → when the last of the others had done it."""
    found: dict[int, float] = {}
    for commit in commits:
        if commit.more["epoch"] == epoch and commit.worker != without:
            found[commit.step] = max(found.get(commit.step, 0.0), commit.at)
    return found


def measure(workers: int, trials: int) -> list[Joined]:
    """One job, a worker killed again and again."""
    with tempfile.TemporaryDirectory(prefix="ee-", ignore_cleanup_errors=True) as folder:
        job = OurJob(Path(folder), Order(nodes={"n0": workers}, script=("--late", str(LATE_STEPS))))
        try:
            struck = [trial for trial in series(job, ["kill"] * trials, random.Random(5), PATIENCE_S) if trial.cost_s is not None]
            undisturbed(job)
        finally:
            job.end()
        joins = [event for event in job.events("transition.done") if event.attributes["reason"] == "join"]
        after = [event for event in joins if int(event.attributes["epoch"]) > min(map(epoch_of, joins))]
        found = [joined(event, job.commits.look(), trial, job.commits.folder) for event, trial in zip(after, struck, strict=False)]
        return [each for each in found if each is not None]


def epoch_of(event: Event) -> int:
    """The first join of all is the job's own beginning."""
    return int(event.attributes["epoch"])


def rows_of(found: Sequence[Joined]) -> list[Row]:
    """Beside the goal."""
    extras = [each.extra_s for each in found]
    worst = max(found, key=lambda each: each.net_s)
    figure = (
        f"{milliseconds(max(extras))}, of which state {milliseconds(max(each.state_s for each in found))}; "
        f"median {milliseconds(statistics.median(extras))} of {len(found)}"
    )
    return [
        Row("a worker joins: the others' longest step, less an undisturbed one", figure, f"≤ {milliseconds(GOAL_S)} + state", worst.net_s <= GOAL_S, QUOTED),
        Row("of that: while it makes itself ready", several([each.building_s for each in found])),
        Row("of that: its first two steps, without state", several([each.entering_s - each.state_s for each in found])),
        Row("state that moved to it", f"{max(each.megabytes for each in found):.0f} MB"),
        Row("the replacement begins to build → its first step is done", f"{statistics.median(each.ready_s for each in found):.2f} s", peer=QUOTED),
    ]


def milliseconds(seconds: float) -> str:
    """As text."""
    return f"{seconds * 1000:.0f} ms"


def several(seconds: Sequence[float]) -> str:
    """The longest, and the one in the middle."""
    return f"{milliseconds(max(seconds))}; median {milliseconds(statistics.median(seconds))}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.workers, options.trials)
    if not found:
        raise SystemExit("no worker joined: the record has no transition of that reason")
    return report(rows_of(found), options.json, f"join, {options.workers} workers")


if __name__ == "__main__":
    sys.exit(main())
