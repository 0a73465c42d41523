"""Faults of the user's program or data: is the cause right, and is nothing done that cannot help?

    python -m benchmarks.harm.user_faults [--schedules 66] [--seed 0] [--at-once 2] [--only NUMBER ...] [--no-peer] [--json]

Each schedule is a job of its own: two nodes, four workers of a plain script with marks, of one that makes none, or of an
elastic one. Drawn from the seed, it raises in one step, for one sample (whoever gets it) or on one rank; fails an
assertion, a shape, a key or a path; exits with 3, 1 or 0 while the others wait, on one rank or for one sample; reads where nothing is; uses up the
memory of its cgroup, of the process or of the GPU; or writes to a full disk, a read-only one or beyond the limit of a
file. Each comes back in every life of the job. One schedule in ten is innocent: what is raised is caught, or by a thread that
nobody needs, or all workers end with 0.

Disks are small file systems (tmpfs) and the memory is a cgroup's, both made for the job; without root /dev/full, ulimit
-f and ulimit -v stand in for them, and a row says so. The GPU's out-of-memory error is torch's, raised by hand. The
server is in auto mode with default settings, plain jobs may restart three times an hour for one cause (the default),
elastic ones heal four times. A job that has not ended 90 s after its first fault is ended.

The peer: torchrun --max-restarts 3, with the same exception in the same step.
"""

import argparse
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harm.deployment import SCRIPTS, START_S, Deployment, leftovers, results_of, say
from benchmarks.harm.fault_run import BACKOFF_S, BOUND_S, FaultRun, fault_run
from benchmarks.harm.fault_schedules import CASES, ENDLESS, OLDER, WITHOUT_CGROUPS, WITHOUT_MOUNTS, FaultSchedule, drawn
from benchmarks.harm.limits import can_limit_memory, can_mount
from benchmarks.harm.plan import Plan, PlannedFault, notes
from benchmarks.report import Row, report

RIGHT_SHARE = 57 / 60
PEER_RESTARTS, PEER_TIMEOUT_S = 3, 30
FAILED = re.compile(r"failed \(exitcode: -?\d+\) local_rank")
"""What torchrun logs once for each life of its workers."""
PEER_PLAN = Plan(steps=ENDLESS, faults=(PlannedFault(kind="bad_value", step=OLDER, ranks=(1,)),))
BESIDE_PEER = FaultSchedule(number=10_000, script="unmarked", case=CASES[0], kind="bad_value", plan=PEER_PLAN)
"""The same under our launcher, in the same run; it is none of the schedules."""


def under_torchrun(folder: Path) -> tuple[int, float]:
    """Restarts (some end before they train: the connections of the life before are not all gone), and seconds from the first exception to torchrun's end."""
    PEER_PLAN.write(folder)
    module, *_ = SCRIPTS["unmarked"]
    words = ["--standalone", "--nproc-per-node", "4", "--max-restarts", str(PEER_RESTARTS), "-m", module]
    words += ["--folder", str(folder), "--timeout-s", str(PEER_TIMEOUT_S)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    log = folder / "torchrun.log"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *words], stdout=out, stderr=out, env=environment)
    try:
        process.wait(START_S * (1 + PEER_RESTARTS))
    finally:
        process.terminate()
        process.wait(60)
    return len(FAILED.findall(log.read_text(errors="replace"))) - 1, time.time() - notes(folder)[0].time


# --- the figures -------------------------------------------------------------------------------------------------


def rows_of(runs: Sequence[FaultRun], replaced: Sequence[str]) -> list[Row]:
    """Goals beside what came out."""
    guilty, innocent = [each for each in runs if not each.schedule.innocent], [each for each in runs if each.schedule.innocent]
    scripts = Counter(each.schedule.script for each in runs)
    right, wanted = sum(each.right for each in runs), int(RIGHT_SHARE * len(runs))
    evictions, nodes = sum(len(each.evictions) for each in runs), sum(len(each.accused_nodes) for each in runs)
    wrongly, slow = sum(len(each.accused_wrongly) for each in runs), sum(len(each.slow) for each in runs)
    burnt, hasty = [each for each in runs if not each.budget_kept], [each for each in runs if not each.backoff_kept]
    raising = [each for each in guilty if each.schedule.raises]
    traced, untouched = sum(each.traceback for each in raising), sum(each.untouched for each in innocent)
    ended = [each for each in guilty if each.ended_s is not None]
    most = max((each.epochs.count(epoch) for each in runs for epoch in each.epochs), default=0)
    return [
        Row("schedules, of them innocent", f"{len(runs)} ({', '.join(f'{count} {name}' for name, count in sorted(scripts.items()))}), {len(innocent)}"),
        Row("evictions", str(evictions), "0", evictions == 0),
        Row("cause right (every incident of the job; none of an innocent)", f"{right} of {len(runs)}{_missed(runs)}", f"≥ {wanted}", right >= wanted),
        Row("nodes accused", str(nodes), "0", nodes == 0),
        Row("workers accused that the fault never struck", str(wrongly), "0", wrongly == 0),
        Row("incidents that name somebody for being slow, which no fault here is", str(slow), "0", slow == 0),
        Row("jobs that restarted more often than their budget (3; elastic 4) for one cause", f"{len(burnt)}; at most {most} restarts for one cause", "0", not burnt),
        Row("jobs that did not keep the back-off of 0, 1, 2, 4 … s", f"{len(hasty)}{_delays(runs)}", "0", not hasty),
        Row("exceptions with the line of the script in the evidence", f"{traced} of {len(raising)}", f"{len(raising)} of {len(raising)}", traced == len(raising)),
        Row("innocents untouched", f"{untouched} of {len(innocent)}", f"{len(innocent)} of {len(innocent)}", untouched == len(innocent)),
        Row(f"faulty jobs that were over by themselves within {BOUND_S:.0f} s", f"{len(ended)} of {len(guilty)}{_seconds(ended)}"),
        Row("the fault struck, and the job was restarted, per faulty job", f"{_mean([each.struck for each in guilty])} and {_mean([len(each.epochs) for each in guilty])} times on average"),
        Row("faults for which something else stood in", ", ".join(replaced) or "none"),
    ]  # fmt: skip


def _missed(runs: Sequence[FaultRun]) -> str:
    missed = [f"{each.schedule.case.name} ({each.schedule.script}): {', '.join(sorted(set(each.causes))) or 'no incident'}" for each in runs if not each.right]
    return f"; not: {'; '.join(missed)}" if missed else ""


def _delays(runs: Sequence[FaultRun]) -> str:
    """What was measured before the first, second, ... start."""
    told = []
    for place, wanted in enumerate(BACKOFF_S):
        found = [gaps[place] for each in runs for gaps in each.gaps if len(gaps) > place]
        if found:
            told.append(f"{wanted:.0f} s: {min(found):.2f} to {max(found):.2f} s ({len(found)})")
    return f"; from the fault to the next start, wanted ≥ {'; '.join(told)}" if told else ""


def _seconds(ended: Sequence[FaultRun]) -> str:
    times = [each.ended_s for each in ended if each.ended_s is not None]
    return f", {statistics.median(times):.1f} s after the first fault (median), at most {max(times):.1f} s" if times else ""


def _mean(counts: Sequence[int]) -> str:
    return f"{statistics.mean(counts):.1f}" if counts else "0"


def peer_rows(ours: FaultRun, restarts: int, seconds: float) -> list[Row]:
    """The same exception in the same step."""
    mine = len(ours.epochs)
    rows = [
        Row(
            "ValueError in one step, unmarked script: restarts until the job is given up", str(mine), "1", mine == 1,
            peer=f"torchrun --max-restarts {PEER_RESTARTS}: {restarts}", ratio=f"{restarts / mine:.1f}×" if mine else "",
        )
    ]  # fmt: skip
    if ours.ended_s is not None:
        peer = f"torchrun, without back-off: {seconds:.1f} s"
        rows.append(Row("the same: from the first exception to the end of the job", f"{ours.ended_s:.1f} s", peer=peer, ratio=f"{seconds / ours.ended_s:.1f}×"))
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=3 * len(CASES), help=f"default {3 * len(CASES)}: each of {len(CASES)} cases with each kind of script")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=2, help="jobs beside one another")
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these schedules of the seed, to look at one again")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended then, too
    replaced = ({} if can_mount() else WITHOUT_MOUNTS) | ({} if can_limit_memory() else WITHOUT_CGROUPS)
    schedules = [drawn(number, options.seed, replaced) for number in options.only or range(options.schedules)]
    beside = list[Row]()
    with tempfile.TemporaryDirectory(prefix="harm") as name:
        folder = Path(name)
        peer = None if options.no_peer else under_torchrun(_made(folder / "peer"))
        deployment = Deployment(folder)
        try:
            runs = results_of(deployment, (fault_run(deployment, schedule) for schedule in schedules), options.at_once, FaultRun.story)
            if peer is not None:
                [ours] = results_of(deployment, [fault_run(deployment, BESIDE_PEER)], 1, FaultRun.story)
                beside = peer_rows(ours, *peer)
        finally:
            deployment.close()
        left = leftovers(folder)
    say("\n".join(left))
    stand_ins = [f"{instead} for {kind}" for kind, instead in replaced.items()]
    rows = [*rows_of(runs, stand_ins), *beside, Row("processes left behind", str(len(left)), "0", not left)]
    return report(rows, options.json, f"user faults, seed {options.seed}")


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
