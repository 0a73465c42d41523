"""Simulates launchers and server under seeded schedules of faults, and checks what must hold in each.

    python -m benchmarks.faults.agreement --schedules 10000 --jobs 2
    python -m benchmarks.faults.agreement --replay 4711
    python -m benchmarks.faults.agreement --bug silence --schedules 1000

The code of the launchers and of the server's leader is the product's; time, network, disks and worker processes are simulated. Faults: messages
that are late or sent again, links that are cut (one way, both ways, with or without the network of the training), launchers, machines and
server that stop, thaw, die and are started again, workers that are killed, held by the kernel or at a long evaluation, disks that are full, and
votes that cannot be read any more. A seed gives the same run each time.

`--bugs` puts back each mistake that the launchers once made, and says after how many schedules it was found.
"""

import argparse
import logging
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.progress import track

from benchmarks.report import Row, report

from .bugs import BUGS, put_back
from .schedule import drawn
from .world import INVARIANTS, Violation, world_of

CHUNK = 10
WITHIN = 1000
"""Schedules within which each mistake is to be found."""


def quiet() -> None:
    """What a launcher logs is of interest in a replay alone; a process that was killed leaves unfinished tasks behind."""
    logging.disable()
    sys.unraisablehook = lambda *_: None


def checked(task: tuple[int, str]) -> tuple[int, list[Violation]]:
    """One schedule, with a mistake or none."""
    seed, bug = task
    with put_back(bug), world_of(drawn(seed)) as world:
        return seed, world.run()


def results(seeds: Sequence[int], bug: str, jobs: int) -> Iterator[tuple[int, list[Violation]]]:
    """As they come."""
    with multiprocessing.get_context("fork").Pool(jobs, initializer=quiet) as pool:
        yield from pool.imap_unordered(checked, [(seed, bug) for seed in seeds], CHUNK)


def first_found(bug: str, seed: int, jobs: int) -> int:
    """How many schedules it took; 0 if none showed it."""
    for number, (_, violations) in enumerate(results(range(seed, seed + WITHIN), bug, jobs), 1):
        if violations:
            return number
    return 0


def replay(seed: int, bug: str) -> int:
    """Print one run."""
    sys.unraisablehook = lambda *_: None
    logging.disable()
    with put_back(bug), world_of(drawn(seed)) as world:
        violations = world.run()
        print(world.schedule, *world.told, *(f"VIOLATED {each}" for each in violations), sep="\n")
    return int(bool(violations))


def rows_of(count: int, found: dict[int, list[Violation]]) -> list[Row]:
    """One for each invariant."""
    kinds = Counter(violation.invariant for violations in found.values() for violation in violations)
    rows = [Row("schedules", str(count))]
    for invariant in INVARIANTS:
        seeds = [seed for seed, violations in sorted(found.items()) if any(each.invariant == invariant for each in violations)]
        told = f", first in seeds {', '.join(map(str, seeds[:5]))}" if seeds else ""
        rows.append(Row(f"violated: {invariant}", f"{kinds[invariant]}{told}", "0", not seeds))
    return rows


def main() -> int:
    """Check, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.agreement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1000, help="how many; the full goal is 10000 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: one for each core)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="one schedule, with all that happens")
    parser.add_argument("--bug", choices=sorted(BUGS), default="", help="with this mistake put back")
    parser.add_argument("--bugs", action="store_true", help="each mistake, one after another")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.replay is not None:
        return replay(options.replay, options.bug)
    if options.bugs:
        found = {bug: first_found(bug, options.seed, options.jobs) for bug in track(BUGS, "mistakes put back")}
        goal = f"within {WITHIN}"
        return report([Row(f"found: {bug}", f"after {number} schedules" if number else "not found", goal, 0 < number <= WITHIN) for bug, number in found.items()], options.json)
    seeds = range(options.seed, options.seed + options.schedules)
    violated = {}
    for seed, violations in track(results(seeds, options.bug, options.jobs), "schedules", total=len(seeds)):
        if violations:
            violated[seed] = violations
            print(f"seed {seed}: {violations[0]}", file=sys.stderr)
    return report(rows_of(len(seeds), violated), options.json, "Agreement of launchers and server")


if __name__ == "__main__":
    raise SystemExit(main())
