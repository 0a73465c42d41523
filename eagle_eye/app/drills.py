"""Drills: faults injected into a running job from outside, by signals, the probe's socket, or the stream's locks.

Used by `eagle-eye demo` and `eagle-eye drill`, which must run under the uid of the job. The job is not warned.
"""

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collectors.agent.job_directory import JobDirectory
from collectors.worker.procfs import alive
from eagle_eye.clock import Clock
from eagle_eye.errors import EagleEyeError, LaunchError
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training import messages
from eagle_eye.training.fault_drills import PAUSE_S, RUN_S, SLOW_S

ASK_S = 0.2
"""Between two looks for workers that are to be slowed down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillTarget:
    """A running worker that a drill can hit, as the launcher of its node lists it."""

    job: str
    """tenant/name/run"""
    name: str
    node: str
    rank: int
    pid: int
    launcher_pid: int
    """0: the launcher has ended."""
    launcher_socket: Path
    """Unix socket."""


class GroundTruth(msgspec.Struct, frozen=True, kw_only=True):
    """What a drill really did. Only the verdicts at the end of a demo read it: neither detectors nor diagnosis do."""

    kind: str
    time: float
    node: str = ""
    worker: str = ""
    rank: int = -1
    detail: str = ""


@dataclass(slots=True)
class ActiveDrill:
    """A drill that was started. `end` stops what lasts (a slow-down, a held stream) and waits until it has ended."""

    truth: GroundTruth
    _end: Callable[[], None] = field(default=lambda: None)

    def end(self) -> None:
        """Does nothing for a drill that is over at once."""
        self._end()


def running_workers(run_dirs: Sequence[Path]) -> list[DrillTarget]:
    """Running workers of every job, by rank. Raises LaunchError when there are none."""
    found = [worker for folder in dict.fromkeys(run_dirs) for worker in _listed(folder, "")]
    if not found:
        places = ", ".join(str(folder) for folder in run_dirs)
        raise LaunchError(f"no worker of any job runs here (looked in {places}): start the job, or name its --state-dir or its launcher's --run-dir")
    return sorted(found, key=lambda worker: worker.rank)


def select_job(found: Sequence[DrillTarget], job: str) -> list[DrillTarget]:
    """Workers of one job, given as tenant/name/run, tenant/name, name or run; '': of the only job.

    Raises LaunchError when no job or several jobs match.
    """
    mine = [worker for worker in found if not job or job in names_of_job(worker.job)]
    jobs = {worker.job for worker in mine}
    if len(jobs) == 1:
        return mine
    if not jobs:
        raise LaunchError(f"no running worker of {job}; here run {'; '.join(_counted(found))}: name one with --job")
    raise LaunchError(f"{'several jobs run here' if not job else f'several jobs are called {job}'} ({', '.join(sorted(jobs))}): name one with --job")


def names_of_job(job: str) -> set[str]:
    """What a person may call a job, tenant/name/run: that, tenant/name, name or run."""
    parts = job.split("/")
    return {job, "/".join(parts[:2]), *parts[1:]}


def _counted(found: Sequence[DrillTarget]) -> list[str]:
    counts = Counter(worker.job for worker in found)
    return [f"{job}, {count} worker{'s' if count > 1 else ''}" for job, count in sorted(counts.items())]


def _listed(folder: Path, job: str) -> Iterator[DrillTarget]:
    for listed in JobDirectory(folder).read():
        if listed.stopped or (job and listed.job != job):
            continue
        for worker in listed.workers:
            if alive(worker.pid, worker.start_time):
                yield DrillTarget(
                    job=listed.job, name=worker.worker, node=listed.node, rank=worker.rank, pid=worker.pid,
                    launcher_pid=listed.launcher_pid if listed.launched else 0, launcher_socket=folder / f"{listed.run}-launcher.sock",
                )  # fmt: skip


# --- on one worker -----------------------------------------------------------------------------------------------


def kill(worker: DrillTarget, clock: Clock) -> ActiveDrill:
    """kill -9."""
    return _signal("kill", worker, signal.SIGKILL, clock)


def stop(worker: DrillTarget, clock: Clock) -> ActiveDrill:
    """SIGSTOP: the process exists and does nothing."""
    return _signal("stop", worker, signal.SIGSTOP, clock)


def _signal(kind: str, worker: DrillTarget, number: signal.Signals, clock: Clock) -> ActiveDrill:
    truth = _on(kind, worker, clock)
    os.kill(worker.pid, number)
    return ActiveDrill(truth)


def in_trainer(kind: str, worker: DrillTarget, clock: Clock) -> ActiveDrill:
    """A drill that runs in the trainer itself: hang, hang-gil, exception, nan. Gets a one-time token from the launcher."""
    truth = _on(kind, worker, clock)
    _in_trainer(kind, worker)
    return ActiveDrill(truth)


def _in_trainer(kind: str, worker: DrillTarget) -> None:
    granted = messages.answer_of(messages.ask(worker.launcher_socket, messages.encode("token", worker=worker.name)))
    order = messages.encode("drill", token=granted["token"], drill=kind, arguments={})
    messages.answer_of(messages.ask(granted["socket"], order))


def _on(kind: str, worker: DrillTarget, clock: Clock, detail: str = "") -> GroundTruth:
    return GroundTruth(kind=kind, time=clock.now(), node=worker.node, worker=worker.name, rank=worker.rank, detail=detail)


# --- on a node -----------------------------------------------------------------------------------------------------


def kill_node(name: str, pids: Sequence[int], clock: Clock, detail: str = "") -> ActiveDrill:
    """kill -9 of everything on a node, in this order: agent, launcher, workers."""
    truth = GroundTruth(kind="node", time=clock.now(), node=name, detail=detail)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return ActiveDrill(truth)


def slow_node(name: str, run_dir: Path, clock: Clock, *, job: str = "") -> ActiveDrill:
    """Let the main threads of a node's workers sleep most of the time, until `end`. New processes are slowed down too.

    The workers end it themselves when they have not been asked for it for a while, so that it does not outlive its caller.
    """
    over = threading.Event()
    truth = GroundTruth(kind="slow-node", time=clock.now(), node=name, detail=f"runs {RUN_S / (RUN_S + PAUSE_S):.0%} of the time")
    thread = threading.Thread(target=_slow_down, args=(run_dir, job, over), name=f"slow {name}", daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return ActiveDrill(truth, end)


def _slow_down(run_dir: Path, job: str, over: threading.Event) -> None:
    asked: dict[int, float] = {}
    while not over.is_set():
        now = time.monotonic()
        for worker in _listed(run_dir, job):
            if now - asked.get(worker.pid, -SLOW_S) >= SLOW_S / 2:
                with contextlib.suppress(EagleEyeError, OSError):  # it starts, or ends: asked again in a moment
                    _in_trainer("slow", worker)
                    asked[worker.pid] = now
        over.wait(ASK_S)


# --- on the stream -------------------------------------------------------------------------------------------------


def hold_stream(log: EmbeddedStream, clock: Clock) -> ActiveDrill:
    """Hold the stream's write locks until `end`: no process can append."""
    truth = GroundTruth(kind="stream", time=clock.now())
    held = contextlib.ExitStack()
    held.enter_context(log.hold())
    return ActiveDrill(truth, held.close)


ON_WORKER: dict[str, Callable[[DrillTarget, Clock], ActiveDrill]] = {
    "kill": kill,
    "stop": stop,
    "hang": lambda worker, clock: in_trainer("hang", worker, clock),
    "hang-gil": lambda worker, clock: in_trainer("hang-gil", worker, clock),
    "exception": lambda worker, clock: in_trainer("exception", worker, clock),
    "nan": lambda worker, clock: in_trainer("nan", worker, clock),
}
"""Drills on one worker, by the name that `eagle-eye drill` takes."""

ON_NODE = ("slow-node", "node")
ON_STREAM = ("stream",)
KINDS = (*ON_WORKER, *ON_NODE, *ON_STREAM)

DESCRIPTIONS = {
    "kill": "kill -9 one worker",
    "stop": "stop one worker with SIGSTOP",
    "hang": "let one worker's main thread sleep forever",
    "hang-gil": "let one worker hang in a C call that holds the GIL",
    "exception": "raise a CUDA-like error in one worker",
    "nan": "write a NaN into a live parameter of one worker",
    "slow-node": "let the main threads of all workers of one node sleep seven eighths of the time",
    "node": "kill -9 agent, launcher and workers of one node",
    "stream": "hold the stream's write locks so that nobody can append",
}
"""Drill → one line on what it does, for the confirmation."""
