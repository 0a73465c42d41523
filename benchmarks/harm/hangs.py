"""Real hangs: is each found, who is blamed, and after how long?

    python -m benchmarks.harm.hangs [--trials 40] [--seed 0] [--at-once 2] [--only KIND ...] [--no-peer] [--json]

Each trial is a job of its own: two nodes, four workers of a plain script on torch.distributed (gloo), by turns with
eagle_eye's marks and without any. After some steps one rank, drawn by the seed, hangs: deadlock in Python, an event
that nobody sets, C code that holds the interpreter's lock, a sleep of years, an endless loop, SIGSTOP, a wait in the
kernel (state D, by clone(CLONE_VFORK)), or a collective that nobody else enters. The server is in auto mode with
default settings, so what is blamed is acted upon.

The clock starts right before the call that hangs and stops when another process can read the incident that names a
culprit in the ledger (it looks every 30 ms). An endless loop looks like a long computation: by design it is told as a
pause with its line, and accused only after stall.patience_s; so it counts apart.

The peer: the same deadlock under torchrun with a gloo time-out of 30 s; the survivors raise then, and nobody is named.
"""

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harm.deployment import SCRIPTS, START_S, Deployment, HarmJob, Turns, leftovers, results_of, say, until
from benchmarks.harm.hanging import KINDS
from benchmarks.harm.plan import Plan, PlannedAct, notes
from benchmarks.report import Row, report
from eagle_eye.types import Incident

SCRIPTS_TRIED = ("marked", "unmarked")
NO_PROOF = frozenset({"loop"})
"""What proves nothing: told as a pause."""
HANG_AT = (40, 60)
"""Steps, one of which is drawn."""
FOUND_S, TOLD_S, HEALED_S = 60.0, 20.0, 20.0
MEDIAN_GOAL_S, WORST_GOAL_S = 3.0, 10.0
PEER_TIMEOUT_S = 30.0
RAISED = re.compile(r"^([\d.]+) rank (\d+) raised", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of one hang."""

    kind: str
    script: str
    rank: int
    seconds: float | None = None
    """From the hang to the incident that names somebody; None: it never came."""
    right: bool = False
    """Whoever was named, then or later, is the worker or its node."""
    accused: tuple[str, ...] = ()
    told_s: float | None = None
    """To the pause that tells of it, without a culprit."""
    line: bool = False
    """The line of the script is in the evidence."""
    restarted: bool = False
    trouble: str = ""

    def __str__(self) -> str:
        found = f"{self.seconds:.2f} s" if self.seconds is not None else "not accused"
        told = f", pause told after {self.told_s:.2f} s" if self.told_s is not None else ""
        where = ", with its line" if self.line else ""
        what = f"{found}{told}{where}, accused {', '.join(self.accused) or 'nobody'}{', restarted' if self.restarted else ''}"
        return f"{self.kind}, {self.script}, rank {self.rank}: {self.trouble or what}"


def trial(deployment: Deployment, number: int, kind: str, script: str, chance: random.Random) -> Turns[Trial]:
    """One job, from its start to its end."""
    rank, step = chance.randrange(4), chance.randint(*HANG_AT)
    job = HarmJob(deployment, f"hang{number}", script, Plan(steps=100_000, acts=(PlannedAct(kind=kind, step=step, ranks=(rank,)),)))
    job.start()
    try:
        if not (yield from until(lambda: bool(job.notes), START_S)):
            return Trial(kind=kind, script=script, rank=rank, trouble=f"did not get going: {job.tail()}")
        return (yield from _watched(job, kind, rank))
    finally:
        yield from job.stop()


def _watched(job: HarmJob, kind: str, rank: int) -> Turns[Trial]:
    began, node = job.notes[0].time, job.node_of(rank)
    clock: dict[str, float] = {}

    def look() -> bool:
        revisions = job.deployment.incidents(job.name)
        if any(each.cause == "pause" for each in revisions):
            clock.setdefault("told", time.time() - began)
        if any(each.culprits for each in revisions):
            clock.setdefault("found", time.time() - began)
        return "found" in clock

    yield from until(look, TOLD_S if kind in NO_PROOF else FOUND_S)
    if "found" in clock:
        yield from until(lambda: bool(job.record.later_epochs), HEALED_S)
        yield from until(lambda: False, 3.0)
    revisions = job.deployment.incidents(job.name)
    accused = [culprit.entity.name for each in revisions for culprit in each.culprits]
    right = bool(accused) and all(name == node or job.rank_of(name) == rank for name in accused)
    return Trial(
        kind=kind, script=job.script, rank=rank, seconds=clock.get("found"), right=right, told_s=clock.get("told"),
        accused=tuple(f"{each.entity.name} ({incident.cause})" for incident in _accusing(revisions) for each in incident.culprits),
        line=any("hanging.py:" in evidence.text for each in revisions for evidence in each.evidence), restarted=bool(job.record.later_epochs),
    )  # fmt: skip


def _accusing(revisions: Sequence[Incident]) -> list[Incident]:
    """The last revision with a culprit of each incident."""
    return list({each.id: each for each in revisions if each.culprits}.values())


# --- the peer ----------------------------------------------------------------------------------------------------


def under_torchrun(folder: Path) -> float:
    """Seconds from the same deadlock to the first rank that raises."""
    Plan(steps=100_000, acts=(PlannedAct(kind="deadlock", step=HANG_AT[0], ranks=(1,)),)).write(folder)
    module, *_ = SCRIPTS["unmarked"]
    words = ["--standalone", "--nproc-per-node", "4", "-m", module, "--folder", str(folder), "--timeout-s", str(PEER_TIMEOUT_S)]
    log = folder / "torchrun.log"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words], stdout=out, stderr=out, env=environment)
    try:
        deadline = time.monotonic() + START_S + PEER_TIMEOUT_S
        while not (raised := RAISED.search(log.read_text(errors="replace"))):
            if time.monotonic() > deadline:
                raise SystemExit(f"no rank raised; {log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.05)
        return float(raised[1]) - notes(folder)[0].time
    finally:
        process.terminate()
        process.wait(60)


# --- the figures -------------------------------------------------------------------------------------------------


def rows_of(trials: Sequence[Trial], peer_s: float | None) -> list[Row]:
    """Goals beside what came out."""
    proved = [each for each in trials if each.kind not in NO_PROOF]
    found = [each.seconds for each in proved if each.seconds is not None]
    right = sum(each.right for each in proved)
    rows = [
        Row("hangs found and blamed right (worker, or its node)", f"{right} of {len(proved)}", f"{len(proved)} of {len(proved)}", right == len(proved)),
        Row("hangs after which somebody else was accused, too", str(sum(not each.right and bool(each.accused) for each in proved)), "0", all(each.right or not each.accused for each in proved)),
        Row("named with the line of the script", f"{sum(each.line for each in proved)} of {len(proved)}"),
    ]  # fmt: skip
    if found:
        missed = len(found) < len(proved)
        median, worst = statistics.median(found), max(found)
        rows += [
            Row("from the hang to the incident, median", f"{median:.2f} s", f"≤ {MEDIAN_GOAL_S:.0f} s", median <= MEDIAN_GOAL_S),
            Row("the same, worst", "missed" if missed else f"{worst:.2f} s", f"≤ {WORST_GOAL_S:.0f} s", not missed and worst <= WORST_GOAL_S),
        ]
    rows += [_kind_row(kind, [each for each in trials if each.kind == kind], peer_s) for kind in KINDS if any(each.kind == kind for each in trials)]
    return rows


def _kind_row(kind: str, trials: Sequence[Trial], peer_s: float | None) -> Row:
    """One kind, marked and unmarked beside one another."""
    if kind in NO_PROOF:
        told = [each for each in trials if each.told_s is not None and each.line]
        accused = sum(bool(each.accused) for each in trials)
        worst = f", at most {max(each.told_s or 0.0 for each in told):.2f} s after it" if told else ""
        figure = f"{len(told)} of {len(trials)} told as a pause with its line{worst}; accused {accused}"
        return Row(kind, figure, "accused only after stall.patience_s", accused == 0)
    parts = []
    for script in SCRIPTS_TRIED:
        here = [each for each in trials if each.script == script]
        times = ", ".join(f"{each.seconds:.2f}" if each.seconds is not None else "missed" for each in here)
        if here:
            parts.append(f"{script} {sum(each.right for each in here)} of {len(here)} ({times} s)")
    ours = [each.seconds for each in trials if each.seconds is not None]
    if kind != "deadlock" or peer_s is None or not ours:
        return Row(kind, "; ".join(parts))
    peer = f"torchrun, gloo time-out {PEER_TIMEOUT_S:.0f} s: a survivor raises after {peer_s:.1f} s, nobody named"
    return Row(kind, "; ".join(parts), peer=peer, ratio=f"{peer_s / statistics.median(ours):.1f}×")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=16, help="the kinds by turns, marked and unmarked (default 16: each once)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="jobs beside one another")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    pairs = [(kind, script) for kind in options.only for script in SCRIPTS_TRIED]
    with tempfile.TemporaryDirectory(prefix="harm") as name:
        folder = Path(name)
        peer_s = None if options.no_peer else under_torchrun(_made(folder / "peer"))
        deployment = Deployment(folder)
        try:
            chosen = ((number, *pairs[number % len(pairs)]) for number in range(options.trials))
            work = (trial(deployment, number, kind, script, random.Random(f"{options.seed}/{number}")) for number, kind, script in chosen)
            trials = results_of(deployment, work, options.at_once)
        finally:
            deployment.close()
        left = leftovers(folder)
    rows = [*rows_of(trials, peer_s), Row("processes left behind", str(len(left)), "0", not left)]
    say("\n".join(left))
    return report(rows, options.json, f"real hangs, seed {options.seed}")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
