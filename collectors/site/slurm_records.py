"""What `scontrol show job` and `scontrol show node` print. The text has been the same since Slurm 17; JSON is missing before 23.02 and differs between releases.

Times are those of TZ=UTC. A job's name and comment are its user's: the first line, which holds the name, is left out, and of a key that comes again the first counts.
"""

import calendar
import math
import time
from typing import NamedTuple

from .scheduler_facts import NodeState, PreemptionNotice, bounded

SLURM = "slurm"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%S"
"""ISO 8601, unless SLURM_TIME_FORMAT says otherwise."""
ENDED_FOR = {"PREEMPTED": "preempted", "CANCELLED": "cancelled", "TIMEOUT": "time_limit", "DEADLINE": "deadline"}
"""JobState of a job that Slurm ends → the reason. FAILED and NODE_FAIL are none: something broke."""
NOT_RESPONDING = "not_responding"
SUFFIXES = "*~#!%$@^-+"
"""What a state ends with: `*` is a node that does not respond, the others tell of power saving and plans (sinfo(1), node state codes)."""
TOLD_STATES = frozenset(
    ("down", "drain", "drained", "draining", "error", "fail", "failing", "future", "invalid_reg", "maint", "maintenance", NOT_RESPONDING, "power_down",
     "powered_down", "powering_down", "poweroff", "reboot", "reboot_issued", "reboot_requested", "unknown")
)  # fmt: skip
"""Those in which a node takes no new work, or soon ends what it has."""


class SlurmJob(NamedTuple):
    """A job as slurmctld knows it. Times in seconds since 1970, NaN: none."""

    job: str
    state: str
    end: float
    """When it ended, or will at the latest."""
    preempted: float
    """When its preemption began; from then on `end` is the end of the grace time."""


def job_in(text: str, job: str) -> SlurmJob:
    """The record of one job; of an array several may be printed. Raises ValueError."""
    records = [record for record in text.split("\n\n") if record.lstrip().startswith(f"JobId={job} ")]
    fields = _fields(records[0].strip().splitlines()[1:]) if records else {}
    if "JobState" not in fields:
        raise ValueError(f"it prints no record of job {job}")
    return SlurmJob(job, fields["JobState"].upper(), seconds_of_time(fields.get("EndTime", "")), seconds_of_time(fields.get("PreemptTime", "")))


def notice_of(job: SlurmJob, now: float, notice_s: float) -> PreemptionNotice | None:
    """Why the job ends soon; None if it goes on. `notice_s`: the time limit is told so long before it."""
    subject = f"Slurm job {job.job}"
    if math.isfinite(job.preempted):
        return PreemptionNotice(SLURM, subject, "preempted", job.preempted, job.end, "PreemptTime is set")
    if job.state in ENDED_FOR:
        return PreemptionNotice(SLURM, subject, ENDED_FOR[job.state], job.end, job.end, f"JobState={job.state}")
    if job.state == "RUNNING" and job.end - now <= notice_s:  # not for NaN
        return PreemptionNotice(SLURM, subject, "time_limit", job.end, job.end, "EndTime is near")
    return None


def node_state_in(text: str) -> NodeState:
    """Of the one node that was asked for. Raises ValueError."""
    lines = text.strip().splitlines()
    fields = _fields(lines)
    if not fields.get("NodeName") or "State" not in fields:
        raise ValueError("it prints no record of a node")
    words = [word for word in fields["State"].lower().replace("*", f"*+{NOT_RESPONDING}+").split("+") if word]
    states = dict.fromkeys(word.rstrip(SUFFIXES) for word in words)
    reason = next((line.partition("=")[2] for line in map(str.strip, lines) if line.startswith("Reason=")), "")
    return NodeState(SLURM, tuple(state for state in states if state in TOLD_STATES), bounded(reason))


def _fields(lines: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, equals, value in (word.partition("=") for line in lines for word in line.split()):
        if equals:
            found.setdefault(key, value)
    return found


def seconds_of_time(text: str) -> float:
    """Seconds since 1970; NaN for `None`, `Unknown` and whatever is no time.

    >>> seconds_of_time("2026-11-25T07:04:35"), seconds_of_time("Unknown")
    (1795590275.0, nan)
    """
    try:
        return float(calendar.timegm(time.strptime(text, TIME_FORMAT)))
    except ValueError:
        return math.nan
