"""40 faults of all kinds that one machine can make, in real jobs: is the cause right, is the culprit, and is anybody else accused or evicted?

    python -m benchmarks.watch.live [--only WORDS ...] [--seed 0] [--at-once 1] [--no-twins] [--list] [--json]
    python -m benchmarks.watch.live --only slow "one-way"       the faults with one of these words in their names

Each fault has a job of its own: two nodes in network namespaces, with an agent and a launcher each, and four workers of a data-parallel script on
torch.distributed (gloo), with eagle_eye's marks or with none. The server is in auto mode with the settings that it is shipped with. When the job has trained undisturbed
(10 s, or 30 s for what is judged beside a level of earlier), the fault is made: by signals, a cgroup, tc, a small file system, other processes, a clock that jumps,
or by the script itself at the order of a file. Two of each of twenty kinds (four hangs, in Python, in C and in the kernel), on varied ranks; `--seed` shifts them.

What is true of each stands in one table (fault_table.py): the causes that are right, and what is at fault. It is compared with the incidents in the ledger. An incident that accuses
nobody by design (INFO) is right if the finding that leads it is about what is at fault; notices count for clocks alone. A healthy element that is
accused in any revision, or evicted, or an incident that asks for a repair and is wrong, makes the row a missed one. Of a slow link two nodes cannot tell whose end it is: right is
to say that communication is slow and to accuse no node. What this machine cannot make counts as missed. Further faults are made beside the 40, and counted for themselves. Twins are innocent: nobody may be accused, nothing be done.

Needs root, iproute2 and cgroups for all of it, and an otherwise idle machine for slowness of 10 %.
"""

import argparse
import contextlib
import dataclasses
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.faults.parts_away.parted_network import PartedNetwork
from benchmarks.harm.deployment import Deployment, Turns, leftovers, side_by_side
from benchmarks.harm.host_network import LOOPBACK
from benchmarks.machine import neighbours
from benchmarks.report import Row, report
from benchmarks.watch.live.fault_table import FAULTS, FURTHER, TWINS, LiveFault, Truth
from benchmarks.watch.live.live_run import NODES, LiveRun, Place, live_run
from benchmarks.watch.live.orders import EVERYBODY

GOAL = 38
RANKS = 4


def shifted(fault: LiveFault, seed: int) -> LiveFault:
    """The same fault of another rank and node."""
    rank = fault.rank if fault.rank == EVERYBODY else (fault.rank + seed) % RANKS
    node = fault.node if fault.truth is Truth.NODE else (fault.node + seed) % NODES
    return dataclasses.replace(fault, rank=rank, node=node)


class _Places:
    """Nodes for so many jobs beside one another."""

    def __init__(self, network: PartedNetwork | None, at_once: int) -> None:
        self._free = [Place(network, NODES * number) for number in range(at_once)]

    def run(self, deployment: Deployment, name: str, fault: LiveFault) -> Turns[LiveRun]:
        """In a free one."""
        place = self._free.pop()
        try:
            return (yield from live_run(deployment, place, name, fault))
        finally:
            self._free.append(place)


def runs_of(folder: Path, faults: Sequence[LiveFault], at_once: int) -> Iterator[LiveRun]:
    """Each as it comes; those that disturb others one by one, at the end. Whatever happens, nothing is left running."""
    network = _network(NODES * at_once)
    with contextlib.ExitStack() as stack:
        if network is not None:
            stack.callback(network.close)
        deployment = Deployment(folder, network or LOOPBACK)
        stack.callback(deployment.close)
        places = _Places(network, at_once)
        work = [(fault, places.run(deployment, f"live{number}", fault)) for number, fault in enumerate(faults)]
        for _, each in work:
            stack.callback(each.close)
        stack.callback(deployment.cluster.stop)  # first: who is asked to end then has nothing to wait for
        for alone in (False, True):
            yield from side_by_side(deployment.look, [each for fault, each in work if fault.alone is alone], 1 if alone else at_once)


def _network(nodes: int) -> PartedNetwork | None:
    try:
        return PartedNetwork(nodes)
    except RuntimeError as error:
        print(f"no faults of the network can be made: {error}", file=sys.stderr)
        return None


# --- the figures -------------------------------------------------------------------------------------------------


def rows_of(runs: Sequence[LiveRun]) -> list[Row]:
    """A row for each fault, and the sums."""
    faults, twins = [each for each in runs if not (each.fault.innocent or each.fault.further)], [each for each in runs if each.fault.innocent]
    further = [each for each in runs if each.fault.further]
    right, harmed = sum(each.right for each in faults), [each for each in runs if each.harm]
    causes = sum(each.verdict is not None and each.verdict.cause_right for each in faults)
    times = [each.told_s for each in faults if each.told_s is not None]
    goal = GOAL if len(faults) == len(FAULTS) else len(faults)
    rows = [_row(each) for each in runs]
    if faults:
        rows += [
            Row("cause and culprit right", f"{right} of {len(faults)}", f"≥ {goal} of {len(faults)}", right >= goal),
            Row("cause right, whoever is named", f"{causes} of {len(faults)}"),
            Row("faults that could not be made here", str(sum(each.verdict is None for each in faults)), "0", all(each.verdict is not None for each in faults)),
        ]
    if times:
        rows.append(Row("from the fault to what is right, median and longest", f"{statistics.median(times):.1f} s, {max(times):.1f} s"))
    if further:
        found = sum(each.right for each in further)
        rows.append(Row("further faults: cause and culprit right", f"{found} of {len(further)}", f"{len(further)} of {len(further)}", found == len(further)))
    if twins:
        calm = sum(each.right for each in twins)
        rows.append(Row("innocent twins: nobody accused, nothing done", f"{calm} of {len(twins)}", f"{len(twins)} of {len(twins)}", calm == len(twins)))
    return [*rows, Row("runs in which a healthy element was accused or evicted", f"{len(harmed)} of {len(runs)}", "0", not harmed)]


def _row(run: LiveRun) -> Row:
    fault = run.fault
    wanted = f"{' or '.join(sorted(fault.causes))}: {fault.truth.value}" if fault.causes else "nobody accused, nothing done"
    if run.verdict is None:
        return Row(f"{fault.name}, {fault.whose}: {fault.made}", f"not made: {run.trouble}", wanted, False)
    after = f"after {run.told_s:.1f} s: " if run.told_s is not None else ""
    harm = f"HEALTHY: {', '.join(run.harm)}; " if run.harm else ""
    done = f"{len(run.verdict.restarts)} restarts; " if run.verdict.restarts and fault.innocent else ""
    said = "; ".join(dict.fromkeys(run.verdict.told)) or "nothing told"
    return Row(f"{fault.name}, {fault.whose}: {fault.made}", f"{harm}{done}{after}{said}", wanted, run.right)


def main() -> int:
    """Make the faults, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[""], metavar="WORDS", help="faults and twins with one of these in their names")
    parser.add_argument("--seed", type=int, default=0, help="shifts the ranks and nodes (default: %(default)s)")
    parser.add_argument("--at-once", type=int, default=1, help="jobs beside one another (default: %(default)s)")
    parser.add_argument("--no-twins", action="store_true")
    parser.add_argument("--list", action="store_true", help="print the table and make nothing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    table = [shifted(each, options.seed) for each in (*FAULTS, *FURTHER, *(() if options.no_twins else TWINS)) if any(word in each.name for word in options.only)]
    if options.list:
        print("\n".join(f"{each.name}, {each.whose}: {each.made} → {', '.join(sorted(each.causes)) or 'nothing'}: {each.truth.value}" for each in table))
        return 0
    if not table:
        parser.error(f"no fault has {' or '.join(options.only)} in its name: --list shows them")
    taken, began = neighbours(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="live", ignore_cleanup_errors=True) as name:
        runs = _shown(runs_of(Path(name), table, options.at_once), len(table))
        left = leftovers(Path(name))
    print("\n".join(left), file=sys.stderr)
    rows = [*rows_of(runs), Row("processes left behind", str(len(left)), "0", not left), taken(), Row("all of it", f"{(time.monotonic() - began) / 60:.0f} min, {options.at_once} at once")]
    return report(rows, options.json, f"faults made in real jobs, seed {options.seed}")


def _shown(runs: Iterator[LiveRun], count: int) -> list[LiveRun]:
    """All, each told to the person who watches; of those that were made before Ctrl-C, these."""
    seen: list[LiveRun] = []
    console = Console(stderr=True)
    with Progress(TextColumn("faults"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("faults", total=count)
        try:
            for run in runs:
                seen.append(run)
                console.print(run.story(), markup=False, highlight=False, soft_wrap=True)
                progress.advance(task)
        except KeyboardInterrupt:
            console.print("ended by Ctrl-C: what follows is about the faults made so far")
            runs.close()  # type: ignore[attr-defined]
    return seen


if __name__ == "__main__":
    sys.exit(main())
