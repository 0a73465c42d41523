"""One schedule of a user's fault, from the start of its job to its end, and what the stream and the ledger say came of it."""

import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.harm.deployment import START_S, Deployment, HarmJob, JobRecord, Turns, until
from benchmarks.harm.fault_schedules import FaultSchedule
from benchmarks.harm.limits import limited_memory, mounted
from benchmarks.harm.plan import STRUCK
from eagle_eye.types import Event, Incident, Kind, Severity

BUDGETS = {"marked": 3, "unmarked": 3, "elastic": 4}
"""Restarts, or transitions in place, for one cause within an hour: the default, and what the elastic jobs are started with."""
NO_RESTART = frozenset({"start", "join", "rebalance"})
"""Reasons of epochs in which every worker lives on, or the first ones begin."""
BOUND_S = 90.0
"""From the first fault on: a job that has not ended by then is ended."""
SETTLE_S, AFTERWARDS_S = 12.0, 3.0
"""After the end of the job: how long the incident may take, and how long it is watched for what follows."""
BACKOFF_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
SPEED = frozenset({"slow worker", "slow node"})
"""Causes that no fault here has: other jobs on a busy machine. They have a row of their own."""
MEASURING_S = 0.05
"""The stream tells of a death a little later than it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRun:
    """What came of one schedule."""

    schedule: FaultSchedule
    asking: tuple[Incident, ...] = ()
    """The last revision of the incidents that ask for a repair."""
    slow: tuple[str, ...] = ()
    """Incidents that name somebody for being slow."""
    informing: tuple[str, ...] = ()
    """Causes of the others."""
    accused_nodes: tuple[str, ...] = ()
    accused_wrongly: tuple[str, ...] = ()
    """Workers that the fault never struck."""
    evictions: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()
    """Actions of the engine that change something."""
    epochs: tuple[str, ...] = ()
    """After the first one of all workers, with what failed before; those in which workers only joined are left out."""
    gaps: tuple[tuple[float, ...], ...] = ()
    """From a failure to the start after it, for each cause (of elastic jobs: for each worker) in their order."""
    traceback: bool = False
    struck: int = 0
    """Times that the fault struck a worker."""
    ended_s: float | None = None
    """From the first fault to the end of the job; None: it did not end."""
    trouble: str = ""

    @property
    def causes(self) -> tuple[str, ...]:
        """Of the incidents that ask for a repair."""
        return tuple(incident.cause for incident in self.asking)

    @property
    def right(self) -> bool:
        """There is an incident, and each is what the truth says; of an innocent there is none."""
        if self.schedule.innocent:
            return not self.causes
        return bool(self.causes) and self.schedule.truth.issuperset(self.causes)

    @property
    def budget_kept(self) -> bool:
        return max((self.epochs.count(epoch) for epoch in self.epochs), default=0) <= BUDGETS[self.schedule.script]

    @property
    def backoff_kept(self) -> bool:
        return all(gap >= wanted - MEASURING_S for gaps in self.gaps for gap, wanted in zip(gaps, BACKOFF_S, strict=False))

    @property
    def untouched(self) -> bool:
        """Of an innocent: nothing was done to it."""
        return not (self.slow or self.epochs or self.evictions or self.repairs or self.trouble or self.accused_nodes or self.accused_wrongly or self.causes)

    @property
    def kept(self) -> bool:
        """All that is asked of this schedule."""
        if self.schedule.innocent:
            return self.untouched
        harmless = not (self.evictions or self.accused_nodes or self.accused_wrongly or self.trouble)
        return self.right and harmless and self.budget_kept and self.backoff_kept and (self.traceback or not self.schedule.raises)

    def story(self) -> str:
        """For a person who watches."""
        gaps = "; ".join(", ".join(f"{gap:.1f}" for gap in each) for each in self.gaps)
        what = [
            f"{'right' if self.right else 'WRONG'}: {', '.join(self.causes) or 'no incident'}",
            f"struck {self.struck} times, {len(self.epochs)} restarts ({gaps or 'none'} s after the fault)",
            f"ended after {self.ended_s:.1f} s" if self.ended_s is not None else "did not end",
        ]
        told = {"EVICTED": self.evictions, "ACCUSED NODES": self.accused_nodes, "ACCUSED WRONGLY": self.accused_wrongly,
                "actions": self.repairs, "epochs": self.epochs, "slow": self.slow, "also": self.informing}  # fmt: skip
        what += [f"{word}: {', '.join(names)}" for word, names in told.items() if names]
        what += ["NO TRACEBACK"] if self.schedule.raises and not self.traceback else []
        what += [] if self.budget_kept else ["BUDGET BURNT"]
        what += [] if self.backoff_kept else ["NO BACK-OFF"]
        if not self.right or "NO TRACEBACK" in what:
            what += [f"{incident.cause}: {line.text}" for incident in self.asking for line in incident.evidence]
        return "\n  ".join([f"{'kept' if self.kept else 'MISSED'} {self.schedule}", *what, *([self.trouble] if self.trouble else [])])


def fault_run(deployment: Deployment, schedule: FaultSchedule) -> Turns[FaultRun]:
    """One job, from its start to its end."""
    heal = f"in-place:{BUDGETS['elastic']}" if schedule.script == "elastic" else ""
    job = HarmJob(deployment, f"fault{schedule.number}", schedule.script, schedule.plan, heal)
    with contextlib.ExitStack() as stack:
        if schedule.on_disk:
            stack.enter_context(mounted(job.folder))
        job.start()
        try:
            if schedule.in_memory_cgroup:
                limit = stack.enter_context(limited_memory(f"harm-{schedule.number}", job.pids))
                yield from until(lambda: bool(job.notes) or job.over, START_S)
                limit.lower(job.folder)
            yield from until(lambda: bool(job.notes) or job.over, START_S)
            ended = yield from until(lambda: job.over, BOUND_S)
            seconds = time.time() - job.notes[0].time if ended and job.notes else None
            yield from until(lambda: schedule.innocent or bool(_asking(job)), SETTLE_S)
            yield from until(lambda: False, AFTERWARDS_S)
        finally:
            yield from job.stop()
    return _judged(job, schedule, seconds)


def _judged(job: HarmJob, schedule: FaultSchedule, seconds: float | None) -> FaultRun:
    revisions = job.deployment.incidents(job.name)
    asking, slow = _asking(job), [each for each in _last(revisions) if each.cause in SPEED]
    culprits = [culprit.entity for each in revisions if each.cause not in SPEED for culprit in each.culprits]
    struck = [note for note in job.notes if note.what == STRUCK]
    guilty = {note.rank for note in struck}
    workers = [entity.name for entity in culprits if entity.kind is Kind.WORKER]
    return FaultRun(
        schedule=schedule, asking=tuple(asking), informing=tuple(each.cause for each in _last(revisions) if each not in asking + slow),
        slow=tuple(f"{each.cause} {', '.join(culprit.entity.name for culprit in each.culprits)}" for each in slow),
        accused_nodes=_once(entity.name for entity in culprits if entity.kind not in {Kind.WORKER, Kind.JOB}),
        accused_wrongly=_once(name for name in workers if job.rank_of(name) not in guilty),
        evictions=_once(node for layout in job.record.layouts for node in layout.excluded),
        repairs=tuple(f"{outcome.action} {outcome.state}" for outcome in job.deployment.repairs(job.name)),
        epochs=tuple(failure for _, failure in _restarts(job.record)), gaps=_gaps(job.record, schedule.script),
        traceback=any("faults.py" in line.text for each in revisions for line in each.evidence),
        struck=len(struck), ended_s=seconds, trouble=_trouble(job, schedule, seconds),
    )  # fmt: skip


def _trouble(job: HarmJob, schedule: FaultSchedule, seconds: float | None) -> str:
    if not job.notes and schedule.plan.faults:
        return f"the fault never struck: {job.tail()}"
    if schedule.innocent and not job.succeeded:
        return f"the innocent job did not come to its end: {job.tail()}"
    return "" if seconds is not None or schedule.innocent else f"it had not ended {BOUND_S:.0f} s after the first fault: {job.tail()}"


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _last(revisions: Sequence[Incident]) -> list[Incident]:
    """The last revision of each incident that stands for itself."""
    last = {each.id: each for each in revisions}
    return [each for each in last.values() if not each.part_of]


def _asking(job: HarmJob) -> list[Incident]:
    return [each for each in _last(job.deployment.incidents(job.name)) if each.severity is not Severity.INFO and each.cause not in SPEED]


# --- restarts and the times before them ---------------------------------------------------------------------------


def _started(record: JobRecord) -> list[Event]:
    """Beginnings of epochs, each once."""
    return list({event.attributes["epoch"]: event for event in record.events if event.name == "epoch.started"}.values())


def _restarts(record: JobRecord) -> list[tuple[Event, str]]:
    """Beginnings after a failure, and what failed."""
    found = [event for event in _started(record) if event.attributes["reason"] not in NO_RESTART]
    return [(event, event.attributes.get("kind") or event.attributes["reason"]) for event in found]


def _gaps(record: JobRecord, script: str) -> tuple[tuple[float, ...], ...]:
    found: dict[str, list[float]] = {}
    if script == "elastic":
        _after_each_death(record, found)
    else:
        failures = {event.id: event for event in record.events}
        for event, failure in _restarts(record):
            if (cause := failures.get(event.attributes["cause"])) is not None:
                found.setdefault(failure, []).append(event.time - cause.time)
    return tuple(tuple(gaps) for gaps in found.values())


def _after_each_death(record: JobRecord, found: dict[str, list[float]]) -> None:
    """Elastic: from a worker's end to the epoch that its replacement takes part in."""
    workers = {str(layout.epoch): layout.workers for layout in record.layouts}
    for death in (event for event in record.events if event.name == "exit" and event.entity.kind is Kind.WORKER):
        again = (each.time for each in _started(record) if each.time > death.time and death.entity.name in workers.get(each.attributes["epoch"], ()))
        if (back := next(again, None)) is not None:
            found.setdefault(death.entity.name, []).append(back - death.time)
