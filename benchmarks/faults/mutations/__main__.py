"""Feeds mutated records to everything that reads what somebody else has written, and checks that no process ends, hangs or grows.

    python -m benchmarks.faults.mutations                                   a quick look: 2,000 records for each target
    python -m benchmarks.faults.mutations --records 100000 --jobs 2         the full goal
    python -m benchmarks.faults.mutations --only runner leader --seed 7
    python -m benchmarks.faults.mutations --only runner --replay 7:4711     one record again; alone first, then behind those before it

Records are made from valid ones by their structure, not only by flipped bytes: numbers beyond 64 bits, NaN and infinity, huge lengths, other
types, missing and further fields, deep nesting, texts that are no UTF-8, parts that are cut, spliced, repeated or of another kind or version.
They go through the product's own code: the runner with all detectors, the leader's intake and engine, the history, the dashboard's
pages, the HTTP port and the control channel over sockets, spools, rings, baselines, configuration. What is refused must be counted, and
kept aside where there is something to keep. The same seed makes the same records.
"""

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import Progress

from benchmarks.report import Row, report

from . import (
    baselines,
    configuration,
    control_channel,
    dashboard_side,
    detection,
    files,
    history_files,
    http_requests,
    kept_records,
    leadership,
)
from .target import Target
from .trial import HANG_S, Trial, failures_of, numbers_of, replay, trial

TARGETS: tuple[Target, ...] = (
    detection.TARGET, leadership.TARGET, history_files.TARGET, dashboard_side.TARGET, *kept_records.TARGETS, *files.TARGETS, baselines.TARGET, configuration.TARGET,
    http_requests.TARGET, control_channel.TARGET,
)  # fmt: skip
"""A further part is a module with a `TARGET`."""
GROWTH_MIB = 64.0
"""Memory that a part may gain from the end of the third tenth of the records to the end of the last: until then what is bounded fills up."""
JUDGED = 80_000
"""Records from which on growth is judged: with fewer, what is bounded still fills up behind the third tenth."""


def row_of(target: Target, found: Trial) -> Row:
    """One part and what became of its records."""
    tally = found.tally
    kept = f", {tally.kept:,} kept aside" if tally.kept is not None else ""
    figure = (
        f"{found.records:,} records: {found.failed} failed, longest {found.longest_ms:.0f} ms, {found.grown_mib:+.1f} MiB; "
        f"{tally.refused:,} refused, {tally.counted:,} told{kept}"
    )
    judged = found.records >= JUDGED
    goal = f"0 failed, below {HANG_S:g} s each{f', below {GROWTH_MIB:+.0f} MiB' if judged else ''}; each refusal told"
    flat = found.grown_mib < GROWTH_MIB or not judged
    met = not found.failed and found.longest_ms < 1000 * HANG_S and flat and tally.whole
    return Row(f"{target.name}: {target.about}", figure, goal, met)


def fed(targets: Sequence[Target], seed: int, records: int, jobs: int) -> list[Trial]:
    """All of them, several at a time, with a bar for each."""
    with Progress(console=Console(stderr=True)) as progress, ThreadPoolExecutor(jobs) as threads:
        bars = {target.name: progress.add_task(target.name, total=records) for target in targets}

        def one(target: Target) -> Trial:
            return trial(target, seed, records, lambda done: progress.update(bars[target.name], completed=done))

        return list(threads.map(one, targets))


def again(target: Target, seed: int, number: int) -> int:
    """One record, alone and then with its past."""
    for first in dict.fromkeys((number, 0)):
        found = replay(target, seed, number, first)
        if found:
            print(f"{target.name} {seed}:{number}, {'alone' if first == number else 'behind all before it'}: {found}")
            return 1
    print(f"{target.name} {seed}:{number}: nothing goes wrong")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Feed, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.mutations", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2000, help="for each target; the full goal is 100000 (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of all of them (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[target.name for target in TARGETS], help="these targets alone; default: all", metavar="TARGET")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time (default: %(default)s)")
    parser.add_argument("--replay", type=numbers_of, metavar="SEED:NUMBER", help="one record again; needs one --only TARGET")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    chosen = [target for target in TARGETS if not options.only or target.name in options.only]
    if options.replay is not None:
        if len(chosen) != 1:
            parser.error("--replay needs --only with the one target that the record was for")
        return again(chosen[0], *options.replay)
    found = fed(chosen, options.seed, options.records, options.jobs)
    for target, each in zip(chosen, found, strict=True):
        for failure in failures_of(each, target.name, options.seed):
            print(failure, file=sys.stderr)
    return report([row_of(target, each) for target, each in zip(chosen, found, strict=True)], options.json, "Mutated records")


if __name__ == "__main__":
    raise SystemExit(main())
