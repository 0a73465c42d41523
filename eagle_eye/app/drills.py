"""Faults brought on from outside: signals, the probe's socket, the stream's locks. The job is not told.

Used by `eagle-eye demo` and `eagle-eye drill`; a drill needs the uid of the job that it hits.
"""

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from collectors.agent.job_directory import JobDirectory
from collectors.worker.procfs import alive
from eagle_eye.clock import Clock
from eagle_eye.errors import LaunchError
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.training import messages


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A worker as the launcher of its node lists it."""

    job: str
    """tenant/name/run"""
    name: str
    node: str
    rank: int
    pid: int
    launcher_pid: int
    """0: it is gone."""
    inbox: Path
    """Unix socket of its launcher."""


class Truth(msgspec.Struct, frozen=True, kw_only=True):
    """What really happened; only the final table of a demo may read it."""

    kind: str
    time: float
    node: str = ""
    worker: str = ""
    rank: int = -1
    detail: str = ""


@dataclass(slots=True)
class Struck:
    """A fault under way. `end` stops what lasts (a slow-down, a held stream) and waits for it."""

    truth: Truth
    _end: Callable[[], None] = field(default=lambda: None)

    def end(self) -> None:
        """Nothing happens where nothing lasts."""
        self._end()


def workers(run_dirs: Sequence[Path]) -> list[Worker]:
    """Living workers of every job by rank. Raises LaunchError when there are none."""
    found = [worker for folder in dict.fromkeys(run_dirs) for worker in _listed(folder, "")]
    if not found:
        places = ", ".join(str(folder) for folder in run_dirs)
        raise LaunchError(f"no worker of any job runs here (looked in {places}). Is the job up, and is --state-dir the job's, or --run-dir the launcher's?")
    return sorted(found, key=lambda worker: worker.rank)


def of_job(found: Sequence[Worker], job: str) -> list[Worker]:
    """Those of one job: tenant/name/run, or tenant/name, name or run; '': of the only one that there is.

    Raises LaunchError where that is nobody, or several.
    """
    mine = [worker for worker in found if not job or job in _names_of(worker.job)]
    jobs = {worker.job for worker in mine}
    if len(jobs) == 1:
        return mine
    if not jobs:
        raise LaunchError(f"no running worker of {job}; here run {'; '.join(_counted(found))}: name one with --job")
    raise LaunchError(f"{'several jobs run here' if not job else f'several jobs are called {job}'} ({', '.join(sorted(jobs))}): name one with --job")


def _names_of(job: str) -> set[str]:
    parts = job.split("/")
    return {job, "/".join(parts[:2]), *parts[1:]}


def _counted(found: Sequence[Worker]) -> list[str]:
    counts = Counter(worker.job for worker in found)
    return [f"{job}, {count} worker{'s' if count > 1 else ''}" for job, count in sorted(counts.items())]


def _listed(folder: Path, job: str) -> Iterator[Worker]:
    for listed in JobDirectory(folder).look():
        if listed.stopped or (job and listed.job != job):
            continue
        for worker in listed.workers:
            if alive(worker.pid, worker.start_time):
                yield Worker(
                    job=listed.job, name=worker.worker, node=listed.node, rank=worker.rank, pid=worker.pid,
                    launcher_pid=listed.launcher_pid if listed.launched else 0, inbox=folder / f"{listed.run}-launcher.sock",
                )  # fmt: skip


# --- on one worker -----------------------------------------------------------------------------------------------


def kill(worker: Worker, clock: Clock) -> Struck:
    """kill -9."""
    return _signal("kill", worker, signal.SIGKILL, clock)


def stop(worker: Worker, clock: Clock) -> Struck:
    """SIGSTOP: the process is there and does nothing."""
    return _signal("stop", worker, signal.SIGSTOP, clock)


def _signal(kind: str, worker: Worker, number: signal.Signals, clock: Clock) -> Struck:
    truth = _on(kind, worker, clock)
    os.kill(worker.pid, number)
    return Struck(truth)


def inside(kind: str, worker: Worker, clock: Clock) -> Struck:
    """What must happen in the trainer itself: hang, hang-gil, exception, nan. Asks the launcher for a one-time token."""
    granted = messages.answer_of(messages.ask(worker.inbox, messages.encode("token", worker=worker.name)))
    truth = _on(kind, worker, clock)
    order = messages.encode("drill", token=granted["token"], drill=kind, arguments={})
    messages.answer_of(messages.ask(granted["socket"], order))
    return Struck(truth)


def _on(kind: str, worker: Worker, clock: Clock, detail: str = "") -> Truth:
    return Truth(kind=kind, time=clock.now(), node=worker.node, worker=worker.name, rank=worker.rank, detail=detail)


# --- on a node -----------------------------------------------------------------------------------------------------


def node(name: str, pids: Sequence[int], clock: Clock, detail: str = "") -> Struck:
    """kill -9 of everything on a node, in this order: agent, launcher, workers."""
    truth = Truth(kind="node", time=clock.now(), node=name, detail=detail)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return Struck(truth)


def slow(name: str, run_dir: Path, clock: Clock, *, running: float = 0.12, period: float = 0.1, job: str = "") -> Struck:
    """Let the workers of a node run for a share of each period only, whatever their processes are, until `end`."""
    over = threading.Event()
    truth = Truth(kind="slow-node", time=clock.now(), node=name, detail=f"runs {running:.0%} of the time")
    thread = threading.Thread(target=_brake, args=(run_dir, job, running, period, over), name=f"slow {name}", daemon=True)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return Struck(truth, end)


def _brake(run_dir: Path, job: str, running: float, period: float, over: threading.Event) -> None:
    while not over.is_set():
        pids = [worker.pid for worker in _listed(run_dir, job)]
        _each(pids, signal.SIGSTOP)
        over.wait(period * (1 - running))
        _each(pids, signal.SIGCONT)
        over.wait(period * running)


def _each(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


# --- on the stream -------------------------------------------------------------------------------------------------


def stream(log: EmbeddedStream, clock: Clock) -> Struck:
    """Nobody can write to the stream until `end`; it answers no request."""
    truth = Truth(kind="stream", time=clock.now())
    held = contextlib.ExitStack()
    held.enter_context(log.hold())
    return Struck(truth, held.close)


ON_WORKER: dict[str, Callable[[Worker, Clock], Struck]] = {
    "kill": kill,
    "stop": stop,
    "hang": lambda worker, clock: inside("hang", worker, clock),
    "hang-gil": lambda worker, clock: inside("hang-gil", worker, clock),
    "exception": lambda worker, clock: inside("exception", worker, clock),
    "nan": lambda worker, clock: inside("nan", worker, clock),
}
"""Drills on one worker, by the name that `eagle-eye drill` takes."""

ON_NODE = ("slow-node", "node")
ON_STREAM = ("stream",)
KINDS = (*ON_WORKER, *ON_NODE, *ON_STREAM)

WHAT_IT_DOES = {
    "kill": "kill -9 one worker",
    "stop": "stop one worker with SIGSTOP",
    "hang": "let one worker's main thread sleep forever",
    "hang-gil": "let one worker hang in a C call that holds the GIL",
    "exception": "raise a CUDA-like error in one worker",
    "nan": "write a NaN into a live parameter of one worker",
    "slow-node": "stop and continue all workers of one node 10 times a second, so that it runs an eighth of the time",
    "node": "kill -9 agent, launcher and workers of one node",
    "stream": "hold the stream's write locks so that nobody can append",
}
"""Drill → one line on what it does, for a question before it is done."""
