"""Every part of Eagle Eye away for a while, one after another and all together, while a job of four workers trains.

    python -m benchmarks.faults.parts_away                                  66 runs, an hour and a half
    python -m benchmarks.faults.parts_away --only "server killed" --seconds 10 --at-once 2
    python -m benchmarks.faults.parts_away --seed 0 --number 17             one run again

Real processes: a server, two nodes with an agent and a launcher each, two workers a node, of a plain script or an elastic one. Server and nodes
have network namespaces of their own, with a second network for the workers, so that Eagle Eye's own network can be parted. What is away: the
server, the agents or one launcher (stopped by SIGSTOP, or killed and started again), the network between the launchers or to one node, the stream (its locks
are held), the disk of the state (full), or all of these. Each part is away for 1, 10 and 60 s under each script: 66 runs.

In a half of the runs, drawn from the seed, one worker really fails shortly before the part is back, or after: it is killed, or its script
raises. Exactly one incident is to name it. In the other half nobody may be accused. A step counts as lost if a worker does it again, or if
nobody does it; a plain job, which saves no checkpoints here, may begin anew once after the fault.

Needs root and iproute2, for the network namespaces and the small disk. What went wrong is printed with the command that plays it again, and
its logs are kept.
"""

import argparse
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.faults.parts_away.away_run import away_run
from benchmarks.faults.parts_away.outage import CASES, PARTS, drawn
from benchmarks.faults.parts_away.verdict import AwayRun
from benchmarks.harm.deployment import leftovers, say, side_by_side
from benchmarks.report import Row, report

PAUSE_S = 5.0
"""Longest time without a step while a part is away; more counts as a stop of the training."""


def rows_of(runs: Sequence[AwayRun]) -> list[Row]:
    """Goals beside what came out."""
    struck = [run for run in runs if run.outage.fault is not None and not run.trouble]
    scripts = Counter(run.outage.script for run in runs)
    paused = [run for run in runs if run.gap_s > PAUSE_S]
    told = [run.told_s for run in struck if run.told_s is not None]
    once = sum(run.told == 1 for run in struck)
    return [
        Row("runs; with a training fault", f"{len(runs)} ({', '.join(f'{count} {name}' for name, count in sorted(scripts.items()))}); {len(struck)}"),
        _none("steps lost", [run for run in runs for _ in range(run.steps_lost)]),
        _none("workers ended without a training fault", [run for run in runs for _ in run.workers_ended]),
        _none("restarts without a training fault", [run for run in runs for _ in run.restarts]),
        _none("runs in which the training stood still while a part was away", paused, f"; longest time without a step {max((run.gap_s for run in runs), default=0.0):.1f} s"),
        _none("runs in which it did not go on afterwards", [run for run in runs if run.stuck]),
        Row("faults of that time told afterwards, once", f"{once} of {len(struck)}", "all", once == len(struck)),
        _none("of them not told", [run for run in struck if run.missing]),
        _none("of them told twice", [run for run in struck if run.told > 1]),
        Row("from the part's return, or the fault after it, to the incident", f"median {statistics.median(told):.1f} s, worst {max(told):.1f} s" if told else "none"),
        _none("other incidents that ask for a repair", [run for run in runs for _ in run.beside], _causes([cause for run in runs for cause in run.beside])),
        _none("others accused", [run for run in runs for _ in run.accused], _causes([cause for run in runs for cause in run.accused])),
        Row("named for being slow, on a machine with fewer cores than processes", f"{sum(bool(run.slow) for run in runs)} runs{_causes([cause for run in runs for cause in run.slow])}"),
        _none("actions of the engine, evictions", [run for run in runs for _ in (*run.repairs, *run.evictions)]),
        _none("processes of Eagle Eye that ended by themselves", [run for run in runs for _ in run.parts_ended]),
        _none("runs that could not be played", [run for run in runs if run.trouble]),
    ]  # fmt: skip


def _none(what: str, found: Sequence[AwayRun], more: str = "") -> Row:
    """A row whose goal is 0, with the runs that missed it."""
    numbers = ", ".join(str(number) for number in dict.fromkeys(run.outage.number for run in found))
    return Row(what, f"{len(found)}{f' (runs {numbers})' if found else ''}{more}", "0", not found)


def _causes(told: Sequence[str]) -> str:
    found = Counter(each.partition(":")[0] for each in told)
    return f": {', '.join(f'{count} {cause}' for cause, count in sorted(found.items()))}" if found else ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.parts_away", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=len(CASES), help="the first so many of those that are chosen (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="jobs beside one another, each with a server of its own (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--seconds", nargs="+", type=float, metavar="S", help="only outages of this length: 1, 10, 60")
    parser.add_argument("--number", type=int, nargs="+", help="these runs of the seed, to look at one again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    numbers = options.number or range(max(options.runs, len(CASES)))
    chosen = [outage for outage in (drawn(number, options.seed) for number in numbers) if outage.part in options.only and (not options.seconds or outage.seconds in options.seconds)]
    chosen = chosen[: options.runs]
    folder = Path(tempfile.mkdtemp(prefix="away-"))
    runs = []
    work = (away_run(outage, folder / str(outage.number)) for outage in chosen)
    for run in track(side_by_side(lambda: None, work, options.at_once), "runs", total=len(chosen), console=Console(stderr=True)):
        say(str(run))
        runs.append(run)
    left = leftovers(folder)
    say("\n".join(left))
    rows = [*rows_of(runs), Row("processes left behind", str(len(left)), "0", not left)]
    return report(rows, options.json, f"parts of Eagle Eye away, seed {options.seed}")


if __name__ == "__main__":
    sys.exit(main())
