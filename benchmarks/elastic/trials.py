"""What a fault costs a running job, measured the same way for us and for the peers: by the commits of its workers.

A step ends when every worker has committed it. The cost of a fault is the time from the last commit before it to the
first step that all the others have committed after it, less an undisturbed step.
"""

import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.elastic.commits import Commit, Commits

LOOK_S = 0.002
WARM_UP_STEPS = 3
UNDISTURBED_STEPS = 8
ACTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "hang": signal.SIGUSR1}


class Job(Protocol):
    """A job of several workers that runs by itself."""

    name: str
    workers: int
    commits: Commits

    def pids(self) -> dict[str, int]:
        """Worker → its process, of those that run now."""

    def failed(self) -> str:
        """Why the job will never commit a step again; empty while it may."""

    def repair(self, worker: str) -> None:
        """Bring the worker back, if the job does not do so by itself."""

    def end(self) -> None:
        """End every process of it."""


@dataclass(frozen=True)
class Trial:
    """One fault."""

    act: str
    step_s: float
    """An undisturbed step."""
    cost_s: float | None
    """None: the others never committed a step again."""
    until_s: float = 0.0
    """From the fault itself to the step of the others."""
    error: str = ""
    """Why not."""
    victim: str = ""


class GaveUp(Exception):
    """Something did not come in time, or cannot come any more."""


def wait(job: Job, what: str, patience_s: float, condition: Callable[[list[Commit]], bool]) -> None:
    """Look at the commits until they satisfy the condition. Raises GaveUp."""
    deadline = time.monotonic() + patience_s
    while not condition(job.commits.look()):
        if words := job.failed():
            raise GaveUp(words)
        if time.monotonic() > deadline:
            raise GaveUp(f"no {what} within {patience_s:g} s")
        time.sleep(LOOK_S)


def ends(commits: Sequence[Commit], workers: int, since: float = 0.0) -> dict[int, float]:
    """Step → when the last of so many workers committed it, for steps that began and ended after `since`."""
    by_step: dict[int, dict[str, float]] = {}
    for commit in commits:
        if commit.at > since:
            by_step.setdefault(commit.step, {}).setdefault(commit.worker, commit.at)
    return {step: max(by.values()) for step, by in sorted(by_step.items()) if len(by) >= workers}


def lengths(ended: dict[int, float]) -> list[float]:
    """Seconds of each step whose predecessor's end is known."""
    return [at - ended[step - 1] for step, at in ended.items() if step - 1 in ended]


def undisturbed(job: Job, steps: int = UNDISTURBED_STEPS, patience_s: float = 180.0) -> float:
    """Median length of the next steps that all workers do, after a few to warm up."""
    since = time.monotonic()
    count = WARM_UP_STEPS + steps + 1
    wait(job, f"{count} steps of {job.workers} workers", patience_s, lambda now: len(ends(now, job.workers, since)) >= count)
    return statistics.median(lengths(ends(job.commits.all, job.workers, since))[WARM_UP_STEPS:])


def strike(job: Job, act: str, chance: random.Random, patience_s: float) -> Trial:
    """Let one worker have the fault in the middle of a step, and see what it costs the others."""
    step_s = undisturbed(job)
    victim = chance.choice(sorted(job.pids()))
    last = max(ends(job.commits.look(), job.workers))
    wait(job, "step", patience_s, lambda now: max(ends(now, job.workers)) > last)
    time.sleep(step_s * chance.uniform(0.3, 0.7))
    struck = time.monotonic()
    os.kill(job.pids()[victim], ACTS[act])
    try:
        wait(job, "step of the others", patience_s, lambda now: len(first_after(now, struck, victim)) >= job.workers - 1)
    except GaveUp as error:
        return Trial(act, step_s, None, error=str(error), victim=victim)
    before = max(commit.at for commit in job.commits.all if commit.at <= struck)
    after = max(first_after(job.commits.all, struck, victim).values())
    return Trial(act, step_s, after - before - step_s, after - struck, victim=victim)


def first_after(commits: Sequence[Commit], at: float, victim: str) -> dict[str, float]:
    """Worker → when it first committed a step after that moment; without the victim."""
    found: dict[str, float] = {}
    for commit in commits:
        if commit.at > at and commit.worker != victim:
            found.setdefault(commit.worker, commit.at)
    return found


def series(job: Job, acts: Sequence[str], chance: random.Random, patience_s: float) -> list[Trial]:
    """One fault after another, the job whole again in between; stops at the first that it does not survive."""
    done: list[Trial] = []
    try:
        for act in acts:
            done.append(strike(job, act, chance, patience_s))
            if done[-1].cost_s is None:
                break
            job.repair(done[-1].victim)
    except GaveUp as error:
        done.append(Trial(acts[min(len(done), len(acts) - 1)], 0.0, None, error=f"before the fault: {error}"))
    return done


def summarize(trials: Sequence[Trial]) -> str:
    """The costs as one line of text."""
    costs = [trial.cost_s for trial in trials if trial.cost_s is not None]
    words = [f"crashed: {trial.error}" for trial in trials if trial.cost_s is None]
    if costs:
        several = f", of {', '.join(f'{cost:.3f}' for cost in costs)}" if len(costs) > 1 else ""
        words.insert(0, f"{statistics.median(costs):.3f} s{several}")
    return "; ".join(words)
