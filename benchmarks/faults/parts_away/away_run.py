"""One run: a job trains, a part is taken away and comes back, and what the workers, the stream and the ledger say of it."""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from benchmarks.elastic.commits import Commit
from benchmarks.faults.parts_away.outage import NODES, ON_DISK, SLOTS, Outage, TrainingFault
from benchmarks.faults.parts_away.parted_network import PartedNetwork
from benchmarks.faults.parts_away.parts import PARTS, Watchers, small_disk
from benchmarks.faults.parts_away.verdict import AwayRun, Strike, judged, naming, running
from benchmarks.harm.deployment import GRACE_S, START_S, WORKERS, Deployment, HarmJob, Turns, until
from benchmarks.harm.plan import Plan, PlannedFault, order

STEPS = 1_000_000
FIRST_STEPS, FIRST_S = 30, 8.0
"""What all workers have done, and for how long, before anything happens: an unmarked script that ends within 5 s counts as one that never began."""
CALM_S = 15.0
"""So long after the part is back nobody may be accused."""
TOLD_S, GOES_ON_S = 60.0, 60.0
"""After the part is back, or the fault: how long the incident may take, and after it steps of all workers."""
LOOK_S = 0.25
"""Between two looks into the ledger."""
AFTERWARDS_S = 10.0
"""How long it is watched for a second incident."""


def away_run(outage: Outage, folder: Path) -> Turns[AwayRun]:
    """From the start of everything to its end. The folder is left where something is wrong."""
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        if outage.part in ON_DISK:
            stack.enter_context(small_disk(folder / "state"))
        network = PartedNetwork()
        stack.callback(network.close)
        deployment = Deployment(folder, network)
        stack.callback(deployment.close)
        job = HarmJob(deployment, f"away{outage.number}", outage.script, Plan(steps=STEPS, faults=(PlannedFault(kind="bad_value", step=0, ordered=True),)))
        job.start()
        run = yield from _played(Watchers(deployment=deployment, job=job, network=network), outage)
        yield from job.stop()
        yield from _server_ended(deployment)
        if run.kept:
            _remove(folder)
        else:
            with contextlib.suppress(OSError, shutil.Error):
                shutil.copytree(folder / "state", folder / "state-at-the-end")  # it may lie on a disk that is taken away
    return run


def _remove(folder: Path) -> None:
    for each in folder.iterdir():
        if each.name != "state":
            shutil.rmtree(each) if each.is_dir() else each.unlink()


def _server_ended(deployment: Deployment) -> Turns[None]:
    server = deployment.cluster.server
    if server is not None and server.poll() is None:
        server.send_signal(signal.SIGTERM)
        yield from until(lambda: server.poll() is not None, GRACE_S)


def _played(watchers: Watchers, outage: Outage) -> Turns[AwayRun]:
    job, deployment = watchers.job, watchers.deployment
    if not (yield from until(lambda: _trains(watchers), START_S)):
        return AwayRun(outage=outage, trouble=f"the job did not get going: {job.tail()}")
    before = lives(job.commits.look())
    strikes: list[Strike] = []
    began = time.monotonic()
    with PARTS[outage.part](watchers):
        yield from _passed(watchers, outage, began, outage.seconds, strikes)
    back, told_at = time.monotonic(), None
    if outage.fault is None:
        yield from until(lambda: False, CALM_S)
    else:
        yield from _passed(watchers, outage, began, outage.fault.after_s, strikes)
        told_at = yield from _told_at(watchers, strikes[0].worker)
        since = max(back, strikes[0].at)
        yield from until(lambda: _goes_on(job, since), GOES_ON_S)
        yield from until(lambda: False, AFTERWARDS_S)
    ended = {name: process.returncode for name, process in watchers.processes.items() if process.poll() is not None}
    with contextlib.suppress(Exception) if ended else contextlib.nullcontext():
        deployment.look()
    return judged(outage, watchers, before=before, began=began, back=back, strike=strikes[0] if strikes else None, told_at=told_at, parts_ended=ended)


def _trains(watchers: Watchers) -> bool:
    watchers.deployment.look()
    commits = watchers.job.commits.look()
    steps = _newest(commits)
    return len(steps) == WORKERS and min(steps.values()) >= FIRST_STEPS and time.monotonic() - commits[0].at >= FIRST_S and watchers.job.record.full_at >= 0


def _goes_on(job: HarmJob, since: float) -> bool:
    """All workers have done a step since then."""
    return len(_newest(commit for commit in job.commits.look() if commit.at > since)) == WORKERS


def _told_at(watchers: Watchers, worker: str) -> Turns[float | None]:
    """When an incident names the worker; None if none does in time."""
    deadline = time.monotonic() + TOLD_S
    while time.monotonic() < deadline:
        if naming(watchers.deployment.incidents(watchers.job.name), worker):
            return time.monotonic()
        yield from until(lambda: False, LOOK_S)
    return None


def _newest(commits: Iterable[Commit]) -> dict[str, int]:
    """Worker → its highest step."""
    found: dict[str, int] = {}
    for commit in commits:
        found[commit.worker] = max(commit.step, found.get(commit.worker, 0))
    return found


def lives(commits: Iterable[Commit]) -> dict[str, int]:
    """Worker → pid of its newest life."""
    return {commit.worker: commit.pid for commit in commits}


def _passed(watchers: Watchers, outage: Outage, began: float, seconds: float, strikes: list[Strike]) -> Turns[None]:
    """So much time since the beginning; the fault strikes when it is due."""
    fault = outage.fault
    while (passed := time.monotonic() - began) < seconds or (fault is not None and not strikes and passed >= fault.after_s):
        if fault is not None and not strikes and passed >= fault.after_s:
            strikes.append(strike(watchers.job, fault))
        yield


def strike(job: HarmJob, fault: TrainingFault) -> Strike:
    """Do it to the worker."""
    newest = lives(job.commits.look())
    node, slot = job.nodes[fault.node % NODES], fault.slot % SLOTS
    worker = next(name for name in newest if name.endswith(f"/{node}/{slot}"))
    alive = {name: pid for name, pid in newest.items() if running(pid)}
    at = time.monotonic()
    if fault.kind == "kill":
        os.kill(newest[worker], signal.SIGKILL)
    else:
        order(job.folder, 0, worker)
    return Strike(worker=worker, at=at, alive=alive)
