"""Throughput that is lost for real: is it told, with which cause, for as long as it lasts, and is nobody harmed for it?

    python -m benchmarks.harm.lost_throughput [--only KIND ...] [--at-once 1] [--json]

Each run is a job of its own: two nodes, in network namespaces of their own, and four workers of a plain script on
torch.distributed (gloo), with eagle_eye's marks or with none (`--steps-from optimizer`). After a minute one node's link carries
50 Mbit/s, or its launcher and workers may use 0.15 of a processor (a quota of their cgroup), for a minute; then it is as
before, for a minute and a half. The innocent twins have a link of 10 Gbit/s and a quota of two processors. The server is
in auto mode with default settings.

Needs root, iproute2 and the cpu controller of cgroups. There is no peer: torchrun tells nothing of a job that is slow.
"""

import argparse
import contextlib
import itertools
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.parts_away.parted_network import PartedNetwork
from benchmarks.harm.deployment import START_S, Deployment, HarmJob, Turns, leftovers, results_of, say, until
from benchmarks.harm.limits import limited_processor
from benchmarks.harm.plan import Plan
from benchmarks.report import Row, report
from eagle_eye.types import Incident

STEADY_S, LOST_S, AFTERWARDS_S = 60.0, 60.0, 90.0
NODE = 1
"""The one that gets slow."""
SLOW_LINK_MBIT, TWIN_LINK_MBIT = 50.0, 10_000.0
SMALL_QUOTA, TWIN_QUOTA = 0.15, 2.0
"""Processors; two workers of the script use 0.8 at most."""
GENERAL = frozenset({"job slow", "throughput lost"})
"""That it is slow, before or beside why: never wrong."""
SLOW = frozenset({"slow node", "slow worker"})
"""Also right where the workers of one node compute longer than the others."""
UNMARKED = ("--steps-from", "optimizer")
"""Options of the launcher for a script that marks nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What is done to one node, and what may be told of it."""

    kind: str
    script: str
    limit: float
    causes: frozenset[str]
    """Right ones; none for an innocent twin, of which nothing is told."""
    culprit: bool = False
    """The node or its workers may be named."""

    @property
    def marked(self) -> bool:
        return not self.script.startswith("unmarked")

    def __str__(self) -> str:
        return f"{self.kind} of {self.limit:g} {'Mbit/s' if 'link' in self.kind else 'processors'}, {self.script}"


LOSSES = tuple(
    loss
    for marks in ("marked", "unmarked")
    for loss in (
        Loss(kind="link", script=f"{marks}, exchanges", limit=SLOW_LINK_MBIT, causes=frozenset({"slow communication"})),
        Loss(kind="quota", script=f"{marks}, computes", limit=SMALL_QUOTA, causes=SLOW | {"cpu quota"}, culprit=True),
        Loss(kind="twin link", script=f"{marks}, exchanges", limit=TWIN_LINK_MBIT, causes=frozenset()),
        Loss(kind="twin quota", script=f"{marks}, computes", limit=TWIN_QUOTA, causes=frozenset()),
    )
)
KINDS = tuple(dict.fromkeys(loss.kind for loss in LOSSES))


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRun:
    """What came of it."""

    loss: Loss
    slower: float = 0.0
    """A step, as a multiple of what it took before."""
    told_s: float | None = None
    """From the beginning to the first incident with a right cause."""
    told_to_the_end: bool = False
    """Such an incident was open for as long as it lasted, once it was told."""
    closed: bool = False
    """None was, in the end."""
    causes: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    """Causes that are not right."""
    accused: tuple[str, ...] = ()
    """Others than the node that got slow."""
    restarts: int = 0
    repairs: tuple[str, ...] = ()
    trouble: str = ""

    def __str__(self) -> str:
        told = f"told after {self.told_s:.1f} s" if self.told_s is not None else "not told"
        lasting = "" if not self.loss.causes else f", {'open' if self.told_to_the_end else 'NOT OPEN'} to the end, {'closed' if self.closed else 'NOT CLOSED'} afterwards"
        harm = f", WRONG {self.wrong}" * bool(self.wrong) + f", ACCUSED {self.accused}" * bool(self.accused) + f", RESTARTS {self.restarts}" * bool(self.restarts)
        what = f"{self.slower:.1f} times slower, {told} ({', '.join(self.causes)}){lasting}{harm}"
        return f"{self.loss}: {self.trouble or what}"


def loss_run(deployment: Deployment, network: PartedNetwork, number: int, loss: Loss) -> Turns[LossRun]:
    """One job, from its start to its end."""
    job = HarmJob(deployment, f"loss{number}", loss.script, Plan(steps=1_000_000), heal="restart:3", options=() if loss.marked else UNMARKED)
    job.start()
    with contextlib.ExitStack() as stack:
        try:
            quota = stack.enter_context(limited_processor(f"harm-{number}", job.pids[NODE:]))
            if not (yield from until(lambda: bool(job.commits.look()), START_S)):
                return LossRun(loss=loss, trouble=f"did not get going: {job.tail()}")
            yield from until(lambda: False, STEADY_S)
            return (yield from _watched(job, loss, network.slowed(NODE, loss.limit) if "link" in loss.kind else quota.limited(loss.limit)))
        finally:
            yield from job.stop()


def _watched(job: HarmJob, loss: Loss, lost: AbstractContextManager[None]) -> Turns[LossRun]:
    began, before = time.time(), _step_s(job, STEADY_S / 2)
    told: float | None = None
    gaps = 0
    with lost:
        end = time.monotonic() + LOST_S
        while time.monotonic() < end:
            right = any(each.cause in loss.causes and each.active for each in _newest(job))
            told = time.time() - began if right and told is None else told
            gaps += told is not None and not right
            yield
        slower = _step_s(job, LOST_S / 2) / before
    yield from until(lambda: all(not each.active for each in _newest(job)) if loss.causes else False, AFTERWARDS_S)
    newest = [each for each in _newest(job) if each.time >= began]
    allowed = {job.nodes[NODE]} if loss.culprit else set()
    accused = {culprit.entity.name for each in newest for culprit in each.culprits}
    return LossRun(
        loss=loss, slower=slower, told_s=told, told_to_the_end=told is not None and not gaps, closed=all(not each.active for each in newest),
        causes=tuple(each.cause for each in newest), wrong=tuple(each.cause for each in newest if each.cause not in loss.causes | (GENERAL if loss.causes else set())),
        accused=tuple(sorted(name for name in accused if not any(node in name.split("/") for node in allowed))),
        restarts=len(job.record.later_epochs), repairs=tuple(outcome.action for outcome in job.deployment.repairs(job.name)),
    )  # fmt: skip


def _newest(job: HarmJob) -> list[Incident]:
    """The last revision of each incident."""
    return list({each.id: each for each in job.deployment.incidents(job.name)}.values())


def _step_s(job: HarmJob, seconds: float) -> float:
    """Median seconds of a step of the first worker, over the last so many seconds."""
    commits = job.commits.look()
    mine = [each.at for each in commits if each.worker == commits[0].worker and each.at >= time.monotonic() - seconds]
    return statistics.median(later - earlier for earlier, later in itertools.pairwise(mine)) if len(mine) > 1 else float("inf")


def rows_of(runs: Sequence[LossRun]) -> list[Row]:
    """Goals beside what came out."""
    real, twins = [run for run in runs if run.loss.causes], [run for run in runs if not run.loss.causes]
    rows = [_row(run) for run in real]
    harmed = [run for run in runs if run.restarts or run.repairs or run.accused]
    disturbed = [run for run in twins if run.causes]
    return [
        *rows,
        Row("told with a wrong cause, beside a right one or in its place", str(sum(bool(run.wrong) for run in real)), "0", not any(run.wrong for run in real)),
        Row("innocent twins of which anything was told", f"{len(disturbed)} of {len(twins)}", "0", not disturbed),
        Row("runs with a restart, an action or somebody else accused", f"{len(harmed)} of {len(runs)}", "0", not harmed),
        Row("runs that could not be played", str(sum(bool(run.trouble) for run in runs)), "0", not any(run.trouble for run in runs)),
    ]  # fmt: skip


def _row(run: LossRun) -> Row:
    told = f"told after {run.told_s:.1f} s as {', '.join(dict.fromkeys(run.causes))}" if run.told_s is not None else "not told"
    lasting = f"{'open as long as it lasted' if run.told_to_the_end else 'closed while it went on'}, {'over' if run.closed else 'still open'} {AFTERWARDS_S:.0f} s after it"
    met = run.told_s is not None and run.told_to_the_end and run.closed
    return Row(str(run.loss), f"{run.slower:.1f} times slower; {told}, {lasting}", "told, while it lasts", met)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--at-once", type=int, default=1, help="jobs beside one another")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    with tempfile.TemporaryDirectory(prefix="harm") as name, contextlib.closing(PartedNetwork()) as network:
        folder = Path(name)
        deployment = Deployment(folder, network)
        try:
            chosen = [loss for loss in LOSSES if loss.kind in options.only]
            work = (loss_run(deployment, network, number, loss) for number, loss in enumerate(chosen))
            runs = results_of(deployment, work, options.at_once)
        finally:
            deployment.close()
        left = leftovers(folder)
    say("\n".join(left))
    return report([*rows_of(runs), Row("processes left behind", str(len(left)), "0", not left)], options.json, "throughput lost for real")


if __name__ == "__main__":
    sys.exit(main())
