"""A hundred fault schedules, each compared by one hash with a sequential run that knows nothing of faults.

    python -m benchmarks.elastic.schedules                      100, some ten minutes
    python -m benchmarks.elastic.schedules --count 9 --kind join
    python -m benchmarks.elastic.schedules --seed 17 --kind "during recovery" --count 1 --keep

Kinds in turn: a worker dies before, during and after the all-reduce; two at once; another one during the recovery; a
replacement joins, or dies as it joins; a worker is stopped or hangs; the coordinator's launcher is killed. A schedule
counts if the record of the job proves that the fault landed there; else the next one is drawn. Two schedules that strike one worker each share a run. What must hold
(benchmarks/elastic/invariants.py) must hold of those that do not count as well.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.elastic.chaos import ALONE, KINDS, STEPS, Played, Schedule, after, draw, one_at_a_time, play
from benchmarks.elastic.invariants import Expected, reference, violations, wrong_bits
from benchmarks.elastic.trials import GaveUp
from benchmarks.report import Row, report

ATTEMPTS = 12
"""Draws for one schedule before it is given up."""


@dataclass(frozen=True)
class Verdict:
    """Of one schedule as it was played."""

    schedule: Schedule
    not_landed: str
    """Why the record does not prove where the fault struck; empty if it does."""
    wrong: tuple[str, ...]

    @property
    def counts(self) -> bool:
        """Drawn again only if nothing is wrong."""
        return bool(self.wrong) or not self.not_landed

    def __str__(self) -> str:
        return f"{self.schedule}: {'; '.join(self.wrong) or self.not_landed or 'the same bits'}"


def judged(schedules: Sequence[Schedule], expected: Expected, keep: bool = False, script: Sequence[str] = ()) -> list[Verdict]:
    """Play them in one run and look. What is wrong with the run is wrong with each of them."""
    folder = Path(tempfile.mkdtemp(prefix="ee-"))  # short: paths of unix sockets are limited
    try:
        played = play(schedules, folder, script)
        wrong = tuple(violations(played, expected))
        found = [Verdict(schedule, why, wrong) for schedule, why in zip(schedules, played.not_landed, strict=True)]
        played.job.clear_up()
    except GaveUp as error:
        found = [Verdict(schedule, "", (str(error),)) for schedule in schedules]
    if keep or any(verdict.wrong for verdict in found):
        say(f"kept: {folder}")
    else:
        shutil.rmtree(folder)
    return found


def verdicts(kinds: Sequence[str], first_seed: int, expected: Expected, keep: bool = False) -> Iterator[Verdict]:
    """One schedule of each kind given that landed, and those that did not on the way. Two that strike one worker each share a run."""
    seeds = Counter[str]()
    most = Counter({kind: ATTEMPTS * count for kind, count in Counter(kinds).items()})
    ahead = list(kinds)
    while ahead:
        drawn = [drawn_next(ahead.pop(0), seeds, first_seed)]
        second = next((kind for kind in ahead if one_at_a_time(kind)), "")
        if second and one_at_a_time(drawn[0].kind):
            ahead.remove(second)
            drawn.append(after(drawn[0], drawn_next(second, seeds, first_seed)))
        for verdict in judged(drawn, expected, keep):
            kind = verdict.schedule.kind
            ahead += [kind] if not verdict.counts and seeds[kind] < most[kind] else []
            yield verdict


def drawn_next(kind: str, seeds: Counter[str], first_seed: int) -> Schedule:
    """The schedule of the kind's next seed."""
    seeds[kind] += 1
    return draw(kind, first_seed + seeds[kind] - 1)


def flipped(expected: Expected) -> bool:
    """Whether one flipped bit of one gradient makes the check fail, with no other fault."""
    folder = Path(tempfile.mkdtemp(prefix="ee-"))
    try:
        played: Played = play([Schedule(kind="before the all-reduce", seed=0, nodes=ALONE)], folder, ("--flip", "7:3"))
        return len(wrong_bits(played.job.commits.look(), expected)) == sum(ALONE.values())
    finally:
        shutil.rmtree(folder)


def say(text: str) -> None:
    """Progress, beside the result."""
    print(text, file=sys.stderr, flush=True)


def rows_of(found: Sequence[Verdict], wanted: int, noticed: bool, minutes: float) -> list[Row]:
    """The sums."""
    wrong = [words for verdict in found for words in verdict.wrong]
    landed = Counter(verdict.schedule.kind for verdict in found if verdict.counts and not verdict.wrong)
    right, again = sum(landed.values()), sum(not verdict.counts for verdict in found)
    return [
        Row(
            f"fault schedules whose parameters and optimizer end with the reference's sha256 ({STEPS} steps each)",
            f"{right} of {wanted}", "all", right == wanted and not wrong,
        ),
        Row("of them " + ", ".join(f"{count} {kind}" for kind, count in landed.items()), f"{minutes:.1f} min"),
        Row("schedules drawn again because the record did not prove where the fault landed", str(again)),
        Row("lost or doubled samples, orphans, leaked memory or sockets", "; ".join(wrong)[:500] or "none", "none", not wrong),
        Row("one flipped bit of one gradient makes the check fail", "yes" if noticed else "no", "yes", noticed),
    ]  # fmt: skip


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first schedule of each kind")
    parser.add_argument("--kind", choices=KINDS, action="append", help="default: all in turn")
    parser.add_argument("--keep", action="store_true", help="keep the folders of the runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    kinds = options.kind or KINDS
    expected, began = reference(STEPS), time.monotonic()
    found: list[Verdict] = []
    for verdict in verdicts([kinds[number % len(kinds)] for number in range(options.count)], options.seed, expected, options.keep):
        found.append(verdict)
        say(f"{len(found):3d} {verdict}"[:400])
    return report(rows_of(found, options.count, flipped(expected), (time.monotonic() - began) / 60), options.json, "fault schedules")


if __name__ == "__main__":
    sys.exit(main())
