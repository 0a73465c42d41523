"""Which processes `eagle-eye stacks` looks at: the workers of a job on this node, or those that are named by number."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from collectors.agent.job_directory import JobDirectory, LocalJob
from eagle_eye.app.drills import names_of_job
from eagle_eye.errors import LaunchError
from eagle_eye.training.ring_buffer import start_time_of


class StackTargets(NamedTuple):
    """Processes to look at."""

    title: str
    word: str
    """What each is called: rank, worker or process."""
    pids: dict[str, int]
    """Name → pid, in the order in which they are shown."""
    gone: tuple[str, ...] = ()
    """Names of those whose process is gone."""


def of_pids(pids: Sequence[int]) -> StackTargets:
    """Raises LaunchError when none of them is there."""
    there = {str(pid): pid for pid in dict.fromkeys(pids) if start_time_of(pid)}
    gone = tuple(str(pid) for pid in dict.fromkeys(pids) if str(pid) not in there)
    if not there:
        raise LaunchError(f"there is no process {', '.join(gone)} on this machine (in a container: the number that it has in there)")
    return StackTargets("", "process", there, gone)


def of_job(run_dirs: Sequence[Path], name: str) -> StackTargets:
    """Workers of one job, given as tenant/name/run, tenant/name, name or run; '': of the only one. Raises LaunchError when none or several match."""
    jobs = {job.job: job for job in _registered(run_dirs)}
    mine = [job for job in jobs.values() if not name or name in names_of_job(job.job)]
    if not jobs:
        raise LaunchError(
            f"no job runs on this node (looked in {', '.join(map(str, run_dirs))}): name its launcher's --run-dir or --state-dir, or processes with --pid"
        )
    if not mine:
        raise LaunchError(f"no job {name} runs on this node; here run {_counted(jobs.values())}")
    if len(mine) > 1:
        raise LaunchError(f"{f'several jobs are called {name}' if name else 'several jobs run here'}: name one of {_counted(mine)}")
    return _of(mine[0])


def job_is_registered(run_dirs: Sequence[Path], name: str) -> bool:
    """Whether a job of that name runs here."""
    return any(name in names_of_job(job.job) for job in _registered(run_dirs))


def _registered(run_dirs: Sequence[Path]) -> Iterator[LocalJob]:
    """Jobs with a worker whose process is there, also as a zombie."""
    for folder in dict.fromkeys(run_dirs):
        yield from (job for job in JobDirectory(folder).read() if not job.stopped and _of(job).pids)


def _of(job: LocalJob) -> StackTargets:
    workers = sorted(job.workers, key=lambda worker: worker.rank)
    by_rank = len({worker.rank for worker in workers}) == len(workers)
    named = {str(worker.rank) if by_rank else worker.worker: worker for worker in workers}
    there = {name: worker.pid for name, worker in named.items() if (started := start_time_of(worker.pid)) and worker.start_time in (0, started)}
    where = f" on {job.node}" if job.node else ""
    return StackTargets(f"{job.job}{where}", "rank" if by_rank else "worker", there, tuple(name for name in named if name not in there))


def _counted(jobs: Iterable[LocalJob]) -> str:
    return ", ".join(f"{job.job} ({len(job.workers)} worker{'s' * (len(job.workers) != 1)})" for job in sorted(jobs, key=lambda job: job.job))
