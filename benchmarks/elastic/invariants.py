"""What must hold of every run, whatever happened in it: the bits, the samples, and nothing left behind."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.elastic.byte_gpt import MICRO_BATCHES
from benchmarks.elastic.chaos import Played
from benchmarks.elastic.commits import Commit

GONE_WITHIN_S = 10.0
"""How long the processes of an ended job may take to be gone."""
CLOSE = 1e-6
"""Relative: losses are added up in another order than in the reference."""


@dataclass(frozen=True)
class Expected:
    """What the reference ends with."""

    sha256: str
    losses: tuple[float, ...]


def reference(steps: int, size: str = "small") -> Expected:
    """In a process of its own, in which nothing of the runtime is imported."""
    words = [sys.executable, "-m", "benchmarks.elastic.reference", "--json", "--size", size, "--steps", str(steps)]
    said = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)
    return Expected(said["sha256"], tuple(said["losses"]))


def violations(played: Played, expected: Expected) -> list[str]:
    """What is wrong with a run; empty if nothing is."""
    commits = played.job.commits.look()
    found = [f"launcher {node} ended with {code}: {played.job.tail(node)}" for node, code in played.codes.items() if code != 0]
    found += wrong_bits(commits, expected)
    found += wrong_samples(commits, len(expected.losses))
    found += wrong_losses(commits, expected)
    found += left_behind(lambda: played.job.left_behind(played.killed))
    return found


def wrong_bits(commits: Sequence[Commit], expected: Expected) -> list[str]:
    """Every worker that came to the end has the parameters and the optimizer state of the reference."""
    ended = {commit.worker: commit.more["sha256"] for commit in commits if commit.more.get("sha256")}
    if not ended:
        return ["no worker came to the end"]
    return [f"{worker} ended with sha256 {found[:16]}, not {expected.sha256[:16]}" for worker, found in ended.items() if found != expected.sha256]


def wrong_samples(commits: Sequence[Commit], steps: int) -> list[str]:
    """Each step brings in each micro-batch once, all who committed it agree on whose, and nobody commits a step twice."""
    found = []
    accounts: dict[int, list[dict[str, list[int]]]] = {}
    for commit in commits:
        accounts.setdefault(commit.step, []).append(commit.more["micro_batches"])
    missing = [step for step in range(steps) if step not in accounts]
    if missing:
        found.append(f"nobody committed step {missing[0]} and {len(missing) - 1} more")
    for step, said in sorted(accounts.items()):
        if any(other != said[0] for other in said):
            found.append(f"step {step}: the workers do not agree on who did what: {said}")
        elif sorted(number for share in said[0].values() for number in share) != list(range(MICRO_BATCHES)):
            found.append(f"step {step}: lost or doubled samples: {said[0]}")
    twice = len(commits) - len({(commit.pid, commit.step) for commit in commits})
    return [*found, *([f"{twice} steps were committed twice by one worker"] if twice else [])]


def wrong_losses(commits: Sequence[Commit], expected: Expected) -> list[str]:
    """The loss of each step is that of the reference."""
    wrong = [commit for commit in commits if not math.isclose(commit.loss, expected.losses[commit.step], rel_tol=CLOSE)]
    return [f"step {commit.step}: {commit.worker} says loss {commit.loss}, not {expected.losses[commit.step]}" for commit in wrong[:3]]


def left_behind(look: Callable[[], Sequence[str]]) -> list[str]:
    """Processes, sockets and shared memory, once they have had a moment to go."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return [f"left behind: {', '.join(left)}"] if left else []
