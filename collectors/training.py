"""Training workers on this node, read from their rings and /proc: current metrics, completed steps, stalls.

It only reads what the workers write anyway: it cannot block or slow a trainer. It runs several times a second to look
for stalls, which is cheap; once a second it also returns the current metrics and the steps completed since.
"""

import logging
import math
from collections.abc import Hashable, Iterable, Iterator, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from eagle_eye.activity.hang_verdict import Activity
from eagle_eye.activity.inspector import ActivityInspector
from eagle_eye.clock import Clock, SystemClock
from eagle_eye.config import StallConfig
from eagle_eye.errors import RingError
from eagle_eye.ranges import Seconds
from eagle_eye.step_assembly import LOGGED_NAN
from eagle_eye.training import live_flight_recorder
from eagle_eye.training.ring_buffer import StepRecord
from eagle_eye.types import Event, Kind, Reading, StepReading

from .agent.failure_boundary import FailureBoundary
from .agent.garbage_collector import collect_garbage
from .agent.job_directory import JobDirectory, LocalJob, LocalWorker
from .agent.unsigned_event import unsigned_event
from .worker.stall_limits import STOPPED, StallLimits
from .worker.watched_worker import NAMES, WatchedWorker

log = logging.getLogger(__name__)

CollectedRecord = Reading | StepReading | Event
LEAD_S = 0.1
"""The run that is at most so long before a full second returns the readings of that second's batch."""
GARBAGE_S = 30.0


@dataclass
class TrainingCollector:
    """Progress, phases and steps of each worker; `stall` and `resumed` events."""

    run_dir: Path = Path("/run/eagle-eye")
    """Run directory with the launchers' job files; set by the agent."""
    node: str = ""
    reading_s: Seconds = 1.0
    """Seconds between two readings; runs in between return events only."""
    stall: StallConfig = field(default_factory=StallConfig)
    """Section [stall]; set by the agent."""
    gap_s: Seconds = StallLimits.gap_s
    """The time between two runs counts for at most so many seconds: time that the agent did not observe is no stall."""
    clock: Clock = field(default_factory=SystemClock)
    inspector: ActivityInspector | None = None
    """Looks into workers that are suspected; its own if none is handed in."""

    interval_s: ClassVar[float] = 0.2
    timeout_s: ClassVar[float] = 5.0
    urgent: ClassVar[bool] = True
    """Never slowed for the agent's budget: hangs and deaths are found by it."""

    def __post_init__(self) -> None:
        self._jobs = JobDirectory(Path(self.run_dir))
        self._workers: dict[tuple[str, int, int, int], WatchedWorker] = {}
        self._removed: set[tuple[str, int, int, int]] = set()
        self._names: dict[str, list[str]] = {}
        self._left_out: dict[str, str] = {}
        """Worker or job, in words, that it was told of that it cannot be read → its job."""
        self._last_second = -1
        self._collected = -math.inf
        self._boundary = FailureBoundary("training")
        self._limits = StallLimits(stall=self.stall, gap_s=self.gap_s)
        self._inspector = self.inspector or ActivityInspector(self.stall.patience_s, self.clock)

    def collect(self) -> list[CollectedRecord]:
        wall, monotonic = self.clock.now(), self.clock.monotonic()
        jobs = self._jobs.read()
        listed = {worker.life: (job, worker) for job in jobs if not job.stopped for worker in job.workers}
        for life, (job, worker) in listed.items():
            if life not in self._workers and life not in self._removed:
                self._begin(job, worker)
            elif life in self._workers:
                self._workers[life].worker = worker  # an elastic worker continues in another epoch
        second = math.floor((wall + LEAD_S) / self.reading_s)
        due, self._last_second = second != self._last_second, second
        found: list[CollectedRecord] = [*self._refused(wall), *self._sample(wall, monotonic, rings=due), *self._look_closer(wall, monotonic)]
        # a finished worker keeps its row while its launcher lists it: a stall of its peers is not its fault
        stay = {life for life, watched in self._workers.items() if life in listed and (watched.alive or watched.finished)}
        gone = [watched for life, watched in self._workers.items() if life not in stay]
        if due or gone:
            found += self._steps(wall)
        if due:
            found += self._readings(wall, monotonic)
            self._collect_garbage(jobs, monotonic)
        self._remove(gone, listed.keys())
        jobs_of = {words: job.job for job, worker in listed.values() for words in (_job_words(job.job), _worker_words(worker, job.job))}
        self._boundary.keep(jobs_of.keys())
        reasons, news = self._boundary.reasons, set(self._boundary.news())
        found += [self._failing_event(thing, jobs_of[thing], reason, wall) for thing, reason in reasons.items() if reason in news]
        return found + list(self._recovered(reasons.keys(), wall))

    def _begin(self, job: LocalJob, worker: LocalWorker) -> None:
        """One that cannot even be watched is not tried again."""
        self._removed.add(worker.life)
        with self._boundary.around(_worker_words(worker, job.job)):
            self._workers[worker.life] = WatchedWorker(job.job, job.run, worker, self._limits, job.user)
            self._removed.discard(worker.life)

    def _refused(self, wall: float) -> Iterator[Event]:
        """What another user claims of a run here: told to every job of the node, once."""
        for each in self._jobs.refusals():
            message = f"the job file {each.file} of the user {each.user} is not believed: {each.reason}"
            log.warning(message)
            yield unsigned_event("claim.refused", Kind.NODE, self.node, wall, message, user=each.user, claimed=each.job)

    # --- stalls

    def _sample(self, wall: float, monotonic: float, *, rings: bool) -> Iterator[Event]:
        for watched in self._workers.values():
            with self._alone(watched):
                yield from self._sample_one(watched, wall, monotonic, rings=rings)
        for workers in self._by_job():
            with self._boundary.around(_job_words(workers[0].job)):
                yield from self._stalls([each for each in workers if each.alive], wall)

    def _sample_one(self, watched: WatchedWorker, wall: float, monotonic: float, *, rings: bool) -> Iterator[Event]:
        if rings or watched.stat is None:
            yield from self._failing(watched, watched.open_ring(), wall)
        try:
            resumed = watched.sample(wall, monotonic)
        except RingError as error:
            yield from self._failing(watched, watched.give_up_ring(error), wall)
            return
        if resumed:
            yield self._event("resumed", watched, wall, "moves again")
        if not watched.alive:  # it may have made its ring and died since the last run
            yield from self._failing(watched, watched.open_ring(), wall)
        if watched.ended_stopped:
            yield self._stopped_to_its_end(watched, wall)

    def _alone(self, watched: WatchedWorker) -> AbstractContextManager[None]:
        """What goes wrong with one worker costs that worker alone."""
        return self._boundary.around(_worker_words(watched.worker, watched.job))

    def _stalls(self, workers: list[WatchedWorker], wall: float) -> Iterator[Event]:
        """One `stall` event for each stalled worker; once one is stalled, the limit of the others is stricter.

        So the detector gets the positions of all workers that wait for one another in the same round, and of those that
        have left their loop: the others may wait for what these do behind it.
        """
        if not any(each.progress.exceeds_limit() or (each.progress.stalled and not each.progress.left_loop) for each in workers):
            yield from self._waited_for_no_longer(workers, wall)
            return
        for each in workers:
            if not each.progress.stalled and each.progress.exceeds_limit(beside_a_stall=True):
                each.progress.stalled = True
                yield self._stall(each, wall)

    def _waited_for_no_longer(self, workers: list[WatchedWorker], wall: float) -> Iterator[Event]:
        """Who has left its loop makes no marks that would show it."""
        for each in workers:
            if each.progress.stalled and each.progress.left_loop:
                each.progress.stalled = False
                yield self._event("resumed", each, wall, "is not waited for any more: the others move, or have left their loop, too")

    def _look_closer(self, wall: float, monotonic: float) -> Iterator[Event]:
        """Whoever is suspected is looked into; each new verdict is a `stall` event of its own.

        A worker without a ring shows nothing of its steps: it is looked into all the time, seldom while it works.
        """
        watched = {each.worker.life: each for each in self._workers.values() if each.alive and (each.progress.stalled or each.unmarked)}
        recorders: dict[Hashable, str] = {}
        for life, each in watched.items():
            with self._alone(each):
                if each.socket:
                    recorders[life] = live_flight_recorder.path_beside(each.socket)
        self._inspector.watch(((life, each.process.pid) for life, each in watched.items() if each.process is not None), recorders)
        for each in watched.values():
            with self._alone(each):
                yield from self._verdict(each, wall, monotonic)
        for workers in self._by_job():
            with self._boundary.around(_job_words(workers[0].job)):
                yield from self._unmarked([each for each in workers if each.alive and each.unmarked], wall)

    def _verdict(self, watched: WatchedWorker, wall: float, monotonic: float) -> Iterator[Event]:
        life = watched.worker.life
        if watched.fell_silent:
            self._inspector.hurry(life)
        fresh = watched.take(self._inspector.activity(life), monotonic)
        if watched.progress.stalled and fresh and not (watched.unmarked and watched.works):
            yield self._stall(watched, wall)

    def _unmarked(self, workers: list[WatchedWorker], wall: float) -> Iterator[Event]:
        """Workers without a ring are stalled once none of them here works; they are over it once one does."""
        standing = bool(workers) and all(each.stands for each in workers)
        for each in workers:
            if standing and not each.progress.stalled:
                each.progress.stalled = True
                yield self._stall(each, wall)
            elif each.progress.stalled and not standing and each.works:
                each.progress.stalled = False
                yield self._event("resumed", each, wall, "moves again")

    def _stall(self, watched: WatchedWorker, wall: float) -> Event:
        now, stat, activity = watched.now, watched.stat, watched.activity
        state = stat.state if stat else ""
        phase = now.phase if now else ""
        where = f"in {phase} of step {now.step}" if now else "at an unknown position (it makes no marks)"
        return self._event(
            "stall",
            watched,
            wall,
            f"made no progress {where} for {watched.age_s:.1f} s, process state {state}" + (f": it {activity.doing}" if activity else ""),
            marks=now.marks if now else "",
            step_marks=now.step_marks if now else "",
            phase=phase,
            age_s=f"{watched.age_s:.3f}",
            state=state,
            activity=activity.kind.value if activity else "",
            doing=activity.doing if activity else "",
            place=activity.place if activity else "",
            gpu="1" if activity and activity.uses_gpu else "",
            **_collective(activity),
        )

    def _stopped_to_its_end(self, watched: WatchedWorker, wall: float) -> Event:
        """Its job was restarted for another fault before the stop was a proof."""
        stopped, now = watched.progress.stopped_s, watched.now
        message = f"was stopped by a signal for {stopped:.1f} s when it was ended"
        marks = now.marks if now else ""  # where it stood: an agent that was started again has seen a part of the time
        return self._event("stall", watched, wall, message, marks=marks, state=STOPPED, age_s=f"{stopped:.3f}", activity="stopped", ended="1")

    def _event(self, name: str, watched: WatchedWorker, wall: float, message: str, **attributes: object) -> Event:
        worker, now = watched.worker, watched.now
        return unsigned_event(
            name,
            Kind.WORKER,
            worker.worker,
            wall,
            f"rank {worker.rank} {message}",
            watched.job,
            step=now.step if now else "",
            epoch=worker.epoch,
            rank=worker.rank,
            pid=worker.pid,
            **attributes,
        )

    def _failing(self, watched: WatchedWorker, reason: str, wall: float) -> Iterator[Event]:
        if reason:
            log.warning("%s", reason)
            yield self._failing_event(_worker_words(watched.worker, watched.job), watched.job, reason, wall)

    def _failing_event(self, thing: str, job: str, reason: str, wall: float) -> Event:
        """Told to the job that it concerns: what another user's worker cannot be read for puts no doubt on what is known of this one's."""
        self._left_out[thing] = job
        return unsigned_event("collector.failing", Kind.NODE, self.node, wall, reason, job, collector="training", about=thing, reason=reason)

    def _recovered(self, failing: Set[str], wall: float) -> Iterator[Event]:
        """An event for each that can be read again, or is gone. `failing`: what fails otherwise than by its ring."""
        unreadable = {_worker_words(each.worker, each.job) for each in self._workers.values() if each.unreadable}
        for thing in sorted(self._left_out.keys() - failing - unreadable):
            message = f"{thing} is read again, or gone"
            yield unsigned_event("collector.recovered", Kind.NODE, self.node, wall, message, self._left_out.pop(thing), collector="training", about=thing, reason=message)

    # --- readings

    def _readings(self, wall: float, monotonic: float) -> Iterator[Reading]:
        for workers in self._by_job():
            rows: list[list[float]] = []
            names: list[str] = []
            for each in workers:
                with self._alone(each):
                    rows.append(each.row(wall, monotonic))
                    names.append(each.worker.worker)
            if rows:
                with np.errstate(over="ignore"):  # what a ring claims may be more than a float has room for
                    matrix = np.array(rows, np.float32)
                yield Reading(source="training", kind=Kind.WORKER, entities=tuple(names), names=NAMES, matrix=matrix, time=wall)

    def _steps(self, wall: float) -> Iterator[StepReading | Event]:
        """The steps completed since the last call, one block for each job and epoch."""
        for workers in self._by_job():
            with self._boundary.around(_job_words(workers[0].job)):
                yield from self._steps_of(workers, wall)

    def _steps_of(self, workers: list[WatchedWorker], wall: float) -> Iterator[StepReading | Event]:
        done: dict[int, dict[str, list[StepRecord]]] = {}
        for each in workers:
            with self._alone(each):
                try:
                    for step in each.steps():
                        done.setdefault(step.epoch, {}).setdefault(each.worker.worker, []).append(step)
                except RingError as error:
                    yield from self._failing(each, each.give_up_ring(error), wall)
        names = self._names_of(workers[0].job, done.values())
        yield from (_aligned(epoch, steps_of, names) for epoch, steps_of in sorted(done.items()))

    def _names_of(self, job: str, done: Iterable[dict[str, list[StepRecord]]]) -> tuple[str, ...]:
        """Every name that a job's workers have logged so far, in the order of appearance: schemas change seldom."""
        names = self._names.setdefault(job, [])
        known = set(names)
        for steps_of in done:
            for steps in steps_of.values():
                for step in steps:
                    logged = _logged_values(step)
                    if not logged.keys() <= known:
                        names += [name for name in logged if name not in known]
                        known.update(logged)
        return tuple(names)

    def _by_job(self) -> list[list[WatchedWorker]]:
        jobs: dict[str, list[WatchedWorker]] = {}
        for watched in self._workers.values():
            jobs.setdefault(watched.job, []).append(watched)
        return list(jobs.values())

    # --- the end

    def _remove(self, gone: list[WatchedWorker], listed: Iterable[tuple[str, int, int, int]]) -> None:
        """Drop workers that are dead or no longer listed, after their last steps were read."""
        for watched in gone:
            watched.close()
            del self._workers[watched.worker.life]
            self._removed.add(watched.worker.life)
        self._removed &= set(listed)
        jobs = {watched.job for watched in self._workers.values()}
        self._names = {job: names for job, names in self._names.items() if job in jobs}

    def _collect_garbage(self, jobs: Iterable[LocalJob], monotonic: float) -> None:
        if monotonic - self._collected >= GARBAGE_S:
            self._collected = monotonic
            collect_garbage(Path(self.run_dir), tuple(jobs), self.clock.now(), self.node)


def _job_words(job: str) -> str:
    return f"job {job}"


def _worker_words(worker: LocalWorker, job: str) -> str:
    return f"worker {worker.worker} of {job}"


def _logged_values(step: StepRecord) -> dict[str, float]:
    """Values that a worker logged for a step; a logged NaN gets a flag beside it, as NaN in a block means "not logged"."""
    if not math.isnan(sum(step.values.values())):
        return step.values
    bad = {f"{name}{LOGGED_NAN}": 1.0 for name, value in step.values.items() if math.isnan(value)}
    return step.values | bad if bad else step.values


def _aligned(epoch: int, steps_of: dict[str, list[StepRecord]], names: tuple[str, ...]) -> StepReading:
    """The steps of several workers side by side, a row for each step number."""
    workers = tuple(steps_of)
    numbers = sorted({step.number for steps in steps_of.values() for step in steps})
    row_of = {number: row for row, number in enumerate(numbers)}
    ends = np.full((len(numbers), len(workers)), np.nan)
    values = np.full((len(numbers), len(workers), len(names)), np.nan)
    for index, worker in enumerate(workers):
        for step in steps_of[worker]:
            row = row_of[step.number]
            ends[row, index] = step.end
            logged = _logged_values(step)
            values[row, index] = [logged.get(name, math.nan) for name in names]
    return StepReading(
        source="training",
        workers=workers,
        names=names,
        numbers=np.array(numbers, np.int64),
        epochs=np.full(len(numbers), epoch, np.int64),
        ends=ends,
        values=values,
    )


def _collective(activity: Activity | None) -> dict[str, object]:
    last = activity.collective if activity is not None else None
    if last is None:
        return {}
    return {
        "collective": last.operation, "collective_group": last.group, "collective_number": last.number, "collective_pending": int(last.pending),
        "collective_calls": last.calls, "collective_size": last.size or "",
    }  # fmt: skip
