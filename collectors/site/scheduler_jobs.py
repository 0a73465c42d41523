"""Which job of a scheduler a process belongs to: Slurm by its cgroup, else its environment; Kubernetes by the pod's uid in its cgroup, else the pod's own variables."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from eagle_eye.cgroups import PROC, membership_of

LARGEST_ENVIRONMENT = 1 << 20
"""Bytes that are read of a process's environment."""
_STEP = re.compile(r"slurm\S*/job_([0-9]{1,10})(?:/step_(\w{1,20}))?")
"""cgroup v1: /slurm/uid_1000/job_7/step_0/task_0; v2: /system.slice/slurmstepd.scope/job_7/step_0/user/task_0."""
_POD = re.compile(r"pod([0-9a-f]{8})[-_]([0-9a-f]{4})[-_]([0-9a-f]{4})[-_]([0-9a-f]{4})[-_]([0-9a-f]{12})")
"""kubepods/burstable/pod<uid>, or kubepods-burstable-pod<uid with _ for ->.slice below systemd."""
_ID = re.compile(r"[0-9]{1,10}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""Of a pod or a namespace: a DNS name (RFC 1123)."""


class SlurmTask(NamedTuple):
    """The part of a job of Slurm that a process is in."""

    job: str
    step: str = ""
    """A number, batch or interactive; '' is not known."""
    node_index: int = -1
    """Of this node in the job, from 0; -1: not known."""
    end: float = math.nan
    """Seconds since 1970 at which the job ended at the latest when it was started; NaN: not known."""


class Pod(NamedTuple):
    """The pod that a process is in; at least one of uid and name is known."""

    uid: str = ""
    name: str = ""
    namespace: str = ""


class SchedulerJob(NamedTuple):
    """What a process belongs to; both where Slurm itself runs in pods."""

    slurm: SlurmTask | None = None
    pod: Pod | None = None


def scheduler_job_of(pid: int, proc: Path = PROC) -> SchedulerJob:
    """Of one process; without anything once it is gone, or where this user may not know."""
    cgroups, environment = membership_of(pid, proc), environment_of(pid, proc)
    return SchedulerJob(slurm_task(cgroups, environment), pod_of(cgroups, environment))


def environment_of(pid: int, proc: Path = PROC) -> dict[str, str]:
    """With which it was started, as far as LARGEST_ENVIRONMENT; {} where this user may not read it."""
    try:
        with (proc / str(pid) / "environ").open("rb") as file:
            content = file.read(LARGEST_ENVIRONMENT)
    except OSError:
        return {}
    pairs = (item.decode(errors="replace").partition("=") for item in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def slurm_task(cgroups: str, environment: Mapping[str, str]) -> SlurmTask | None:
    """What the user sets counts only for what the cgroup does not say.

    >>> slurm_task("0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", {"SLURM_JOB_ID": "8", "SLURM_NODEID": "1"})
    SlurmTask(job='7', step='0', node_index=1, end=nan)
    """
    found = _STEP.search(cgroups)
    job, step = (found[1], found[2] or "") if found else (environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", ""))
    if not _ID.fullmatch(job):
        return None
    index, end = environment.get("SLURM_NODEID", ""), environment.get("SLURM_JOB_END_TIME", "")
    return SlurmTask(
        job, step if found or _ID.fullmatch(step) else "", int(index) if _ID.fullmatch(index) else -1, float(end) if _ID.fullmatch(end) else math.nan
    )


def pod_of(cgroups: str, environment: Mapping[str, str]) -> Pod | None:
    """A process that shares the agent's pod sees no uid in its cgroup, but its host's name is the pod's.

    >>> pod_of("0::/kubepods.slice/kubepods-pod0a1b2c3d_0000_1111_2222_0123456789ab.slice/cri-containerd-ff.scope", {}).uid
    '0a1b2c3d-0000-1111-2222-0123456789ab'
    """
    found = _POD.search(cgroups)
    uid = "-".join(found.groups()) if found else ""
    inside = "KUBERNETES_SERVICE_HOST" in environment
    name = _checked(environment.get("POD_NAME", "") or (environment.get("HOSTNAME", "") if inside else ""))
    return Pod(uid, name, _checked(environment.get("POD_NAMESPACE", ""))) if uid or (inside and name) else None


def _checked(name: str) -> str:
    return name if _NAME.fullmatch(name) else ""


class SchedulerJobs:
    """Looks at each process once: what it belongs to does not change."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._known: dict[tuple[int, int], SchedulerJob] = {}

    def of(self, processes: Mapping[str, tuple[int, int]]) -> dict[str, SchedulerJob]:
        """Job of ours → what its process, a pid and a start time, belongs to."""
        self._known = {process: self._known.get(process) or scheduler_job_of(process[0], self._proc) for process in processes.values() if process[0] > 0}
        return {job: self._known[process] for job, process in processes.items() if process in self._known}
