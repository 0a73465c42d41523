"""kill -9 of the server, an agent or a launcher at random moments of incidents and heals, and whether the books are right afterwards.

    python -m benchmarks.faults.kills
    python -m benchmarks.faults.kills --moments 10
    python -m benchmarks.faults.kills --seed 17 --moments 1 --story

Each moment has a deployment of its own: server, two agents, two launchers and a job of four workers, all real processes. A worker is killed, raises or is
stopped; up to 3 s later a part is killed, and started again within 2 s. When all is calm the fault must be one incident that is over, nothing may have
been done twice, no outcome may be open, and after the orderly end no process, ring, socket, file or lock may be left. A seed draws the same moment
again; what the machine makes of it may differ by some milliseconds.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from statistics import median

from rich.progress import track

from benchmarks.report import Row, report

from .moment import PARTS, drawn
from .trial import Result, tried

KINDS = {
    "action twice": ("times for incident", "was done", "epochs for one", "epochs begun"),
    "outcome left open": ("outcome left open",),
    "incident lost, doubled or not over": ("incident", "told beside"),
    "leaked": ("process left", "ring left", "left in", "launcher's entry", "lock held"),
}
"""Of violations, by the words that they begin with or hold; the first that fits."""
OTHER = "not calm, or the trial broke"


def results(seeds: Sequence[int], at_once: int, keep: str) -> Iterator[Result]:
    """As they come, each in a process of its own: what a trial starts ends with it."""
    with ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        for done in as_completed([pool.submit(tried, drawn(seed), keep) for seed in seeds]):
            yield done.result()


def kind_of(violation: str) -> str:
    """The row of a violation."""
    if violation.startswith(("not calm", "the trial broke")):
        return OTHER
    return next((kind for kind, words in KINDS.items() if any(word in violation for word in words)), OTHER)


def rows_of(found: Sequence[Result]) -> list[Row]:
    """A row for each kind of violation, and how long it took until all was calm."""
    rows = []
    for kind in (*KINDS, OTHER):
        seeds = sorted(each.moment.seed for each in found if any(kind_of(violation) == kind for violation in each.violations))
        which = f" (seeds {', '.join(map(str, seeds[:20]))})" if seeds else ""
        rows.append(Row(f"{len(found)} moments: {kind}", f"{len(seeds)}{which}", "0", not seeds))
    killed = [each for each in found if each.moment.part == "launcher"]
    if killed:
        rows.append(Row("launcher killed: an incident names its node", f"{sum(each.told for each in killed)} of {len(killed)}"))
    for part in PARTS:
        calm = [each.calm_s for each in found if each.moment.part == part and not each.violations]
        if calm:
            rows.append(Row(f"{part} killed: from the fault until all is calm", f"median {median(calm):.0f} s, at most {max(calm):.0f} s of {len(calm)}"))
    return rows


def tell(result: Result, story: bool) -> None:
    """What is wrong with it, or with `story` all of it, to a person who watches."""
    if result.violations or story:
        replay = f"python -m benchmarks.faults.kills --seed {result.moment.seed} --moments 1 --story"
        print(f"{'VIOLATED' if result.violations else 'kept'}: {result.moment}\n  {replay}", file=sys.stderr)
        for line in (*(f"! {each}" for each in result.violations), *result.story):
            print(f"  {line}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=200, help="how many (default: %(default)s; 10 for a quick look)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=1, help="deployments beside one another (default: %(default)s); each has nine processes")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="logs, stream and ledger of the moments in which something is wrong stay there")
    parser.add_argument("--story", action="store_true", help="print what each ledger holds, also where nothing is wrong")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.moments < 1 or options.at_once < 1:
        parser.error("--moments and --at-once are at least 1")
    found = list[Result]()
    seeds = range(options.seed, options.seed + options.moments)
    for result in track(results(seeds, options.at_once, options.keep), "moments", total=len(seeds), console=None, disable=not sys.stderr.isatty()):
        found.append(result)
        tell(result, options.story)
    return report(rows_of(found), options.json, "kill -9 of server, agent and launcher in the middle of incidents and heals")


if __name__ == "__main__":
    raise SystemExit(main())
