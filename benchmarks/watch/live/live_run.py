"""One job from its start to its end, the fault that is made in it, and when it was told."""

import contextlib
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.faults.parts_away.parted_network import PartedNetwork
from benchmarks.harm.deployment import START_S, Deployment, HarmJob, Turns, until
from benchmarks.harm.host_network import NetworkPart
from benchmarks.harm.limits import limited_memory, mounted
from benchmarks.harm.plan import Plan
from benchmarks.watch.live.fault_table import LiveFault
from benchmarks.watch.live.orders import EVERYBODY
from benchmarks.watch.live.strikes import Target
from benchmarks.watch.live.verdict import Verdict, is_right, notice_is_right, verdict

NODES = 2
AFTERWARDS_S = 8.0
"""Once it was told rightly: what is told, or done, beyond it."""
LEAST_STEPS = 40
"""Undisturbed steps that there have to be, on a machine however busy."""
LOOK_S = 0.2
"""Between two looks into the ledger: more of them would disturb what is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What came of it."""

    fault: LiveFault
    verdict: Verdict | None = None
    """None: it could not be made."""
    told_s: float | None = None
    """From the fault to the first revision, readable by others, that is right."""
    step_s: tuple[float, float] = (0.0, 0.0)
    """Median seconds of a step before the fault, and while it lasted."""
    trouble: str = ""

    @property
    def right(self) -> bool:
        return self.verdict is not None and self.verdict.right

    @property
    def harm(self) -> tuple[str, ...]:
        """Healthy elements that were accused, or evicted."""
        return () if self.verdict is None else (*self.verdict.accused, *(f"{node} evicted" for node in self.verdict.evicted))

    def story(self) -> str:
        """For a person who watches."""
        told = f"told after {self.told_s:.1f} s" if self.told_s is not None else "nobody accused" if self.right else "not told rightly"
        if self.verdict is None:
            return f"NOT MADE {self.fault.name}: {self.trouble}"
        head = f"{'right' if self.right else 'MISSED'} {self.fault.name}, {self.fault.whose}, {told}; a step {self.step_s[0] * 1e3:.0f} → {self.step_s[1] * 1e3:.0f} ms"
        lines = [*self.verdict.told, *(f"HARM: {each}" for each in self.harm), *(f"restart: {each}" for each in self.verdict.restarts), *filter(None, [self.trouble])]
        return "\n    ".join([head, *lines])


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's nodes are while it runs."""

    network: PartedNetwork | None
    first: int


def live_run(deployment: Deployment, place: Place, name: str, fault: LiveFault) -> Turns[LiveRun]:
    """One job. Raises nothing for a fault that this machine cannot make: it is told."""
    part = NetworkPart(place.network, place.first) if place.network is not None else None
    job = HarmJob(deployment, name, f"{fault.script}, ordered", Plan(steps=fault.steps), options=fault.options, network=part)
    with contextlib.ExitStack() as stack:
        try:
            if fault.on_small_disk:
                stack.enter_context(mounted(job.folder))
            job.start(jumping=fault.clocks)
            memory = stack.enter_context(limited_memory(f"live-{name}", job.pids)) if fault.in_memory_cgroup else None
            target = Target(job=job, rank=fault.rank, node=fault.node, network=place.network, first=place.first, memory=memory)
            going = yield from until(lambda: _steps(job) > LEAST_STEPS // 4 and job.record.full_at >= 0, START_S)
            if not going:
                return LiveRun(fault=fault, trouble=f"did not get going: {job.tail()}")
            yield from until(lambda: False, fault.steady_s)
            yield from until(lambda: _steps(job) > LEAST_STEPS, START_S)
            return (yield from _struck(target, fault))
        except (PermissionError, LookupError) as error:
            return LiveRun(fault=fault, trouble=f"{error}")
        finally:
            yield from job.stop()


def _struck(target: Target, fault: LiveFault) -> Turns[LiveRun]:
    job = target.job
    before = _step_s(job, time.monotonic() - fault.steady_s)
    began, began_monotonic = time.time(), time.monotonic()
    told: list[float] = []
    looked = 0.0

    def is_told() -> bool:
        nonlocal looked
        if time.monotonic() - looked < LOOK_S:
            return bool(told)
        looked = time.monotonic()
        if not told and (any(is_right(fault, job, each) for each in job.deployment.incidents(job.name)) or any(notice_is_right(fault, job, each) for each in job.deployment.notices(began))):
            told.append(time.time() - began)
        return bool(told)

    with fault.strike(target):
        yield from until(lambda: job.over if fault.innocent else is_told(), fault.watched_s)
        meanwhile = _step_s(job, began_monotonic)
        yield from until(lambda: False, AFTERWARDS_S)
    return LiveRun(
        fault=fault, verdict=verdict(fault, job, job.deployment.notices(began)), told_s=told[0] if told else None, step_s=(before, meanwhile), trouble=_trouble(job, fault)
    )


def _trouble(job: HarmJob, fault: LiveFault) -> str:
    struck = {note.rank for note in job.notes}
    if struck and fault.rank != EVERYBODY and struck != {fault.rank}:
        return f"struck {sorted(struck)} and not {fault.rank}"
    return f"it did not end well: {job.tail()}" if fault.innocent and job.over and not job.succeeded else ""


def _steps(job: HarmJob) -> int:
    return max((each.step for each in job.commits.look()), default=0)


def _step_s(job: HarmJob, since: float) -> float:
    """Median seconds of a step of one worker."""
    commits = [each for each in job.commits.look() if each.at >= since]
    times: dict[int, list[float]] = {}
    for each in commits:
        times.setdefault(each.pid, []).append(each.at)
    longest = max(times.values(), key=len, default=[])
    return _median([later - earlier for earlier, later in itertools.pairwise(longest)])


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
