"""A worker process under observation: its ring, its /proc entry and its progress."""

import math
import os

from collectors.agent.job_directory import LocalWorker, may_name, trusted
from eagle_eye.activity.hang_verdict import Activity, ActivityKind
from eagle_eye.errors import RingError
from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring_buffer import LoopState, RingReader, StepRecord

from .memory_limit import UNKNOWN, MemoryLimit, MemoryUse
from .processor_use import CpuQuota, ProcessorUse, QuotaUse
from .procfs import DEAD, ProcessHandle, ProcStat
from .stall_limits import STOPPED, ProgressSample, StallLimits, WorkerProgress

NAMES = (
    "step",
    "step_age_s",
    "progress_age_s",
    "marks",
    "phase",
    "running",
    "state",
    "cpu_percent",
    "runqueue_percent",
    "rss_bytes",
    "step_marks",
    "activity",
    "throttled_percent",
    "cpu_quota",
    "activity_seen_s",
    "memory_limit_bytes",
    "memory_used_percent",
    "oom_kills_per_s",
    "memory_high_events_per_s",
)
ACTIVITIES = tuple(ActivityKind)
"""The metric `activity` is an index into these."""
NOTHING = math.nan
PAUSES = ("evaluation_s", "checkpoint_s")
"""Not part of a step's iteration time."""


class WatchedWorker:
    """Reads one worker process, from the first sample until its ring has been read to the end."""

    def __init__(self, job: str, run: str, worker: LocalWorker, limits: StallLimits, user: int = 0) -> None:
        """`user`: who has registered it."""
        self.job, self.run, self.worker = job, run, worker
        self.progress = WorkerProgress(limits)
        self._user = user
        self._process_user = None if trusted(user) else user
        self.process = ProcessHandle.open(worker.pid, worker.start_time, self._process_user)
        self.now: LoopState | None = None
        self.stat: ProcStat | None = None
        self.reported = -1
        """Number of the last step that was returned."""
        self._ring: RingReader | None = None
        self._ring_error = ""
        self._used = (NOTHING, NOTHING, NOTHING)
        self.activity: Activity | None = None
        """What it does, while it is suspected; None if nobody has looked yet."""
        self.fell_silent = False
        """It uses far less of the processor than a moment ago."""
        self._stands_since = NOTHING
        self._observed = NOTHING
        self._use = ProcessorUse()
        self._quota: CpuQuota | None = None
        self._memory: MemoryLimit | None = None
        self._stopped_at: int | None = None
        """In state T: how often it had got a processor."""
        self.ended_stopped = False
        """It was stopped by a signal, and not continued, until it ended."""
        self._stopped_twice = False

    # --- the ring

    def open_ring(self) -> str:
        """Open the ring if it exists by now. Returns an error text, each error once; '' if there is none."""
        path = self.worker.ring
        if self._ring is not None or not path or not os.path.exists(path):  # noqa: PTH110  # asked each second
            return ""
        if not may_name(self._user, path):
            return self._once(f"ring {path}: it is not of the user {self._user}, who has registered {self.worker.worker}")
        try:
            ring = RingReader.open(path)
        except RingError as error:
            return self._once(str(error))
        if ring.header.epoch != self.worker.birth:  # left by the epoch before; the new process has not come so far
            ring.close()
            return ""
        self._ring, self._ring_error = ring, ""
        self._follow(ring)
        return ""

    def _follow(self, ring: RingReader) -> None:
        """Observe the process that writes the ring: the registered one may be a shell around it."""
        header = ring.header
        if header.pid != self.worker.pid:
            writer = ProcessHandle.open(header.pid, header.start_time, self._process_user)
            if writer is not None:
                self.process, former = writer, self.process
                self._used, self._use = (NOTHING, NOTHING, NOTHING), ProcessorUse()  # the processor time of one is none of the other
                if former is not None:
                    former.close()

    def _once(self, reason: str) -> str:
        known, self._ring_error = self._ring_error, reason
        return "" if reason == known else reason

    @property
    def socket(self) -> str:
        """Its own, where its collectives can be asked for; '' if it has none."""
        return self.worker.socket if may_name(self._user, self.worker.socket) else ""

    @property
    def unreadable(self) -> bool:
        """It has a ring that cannot be read."""
        return bool(self._ring_error)

    # --- samples

    def sample(self, wall: float, monotonic: float) -> bool:
        """Read ring and process. True if it was stalled and moves again. Raises RingError if the ring was truncated."""
        self.stat = self.process.read() if self.process else None
        if self.stat is not None and (self.stat.state in DEAD or self.stat.exiting):
            self.stat = None
        if self._ring:
            self._ring.offset = wall - monotonic  # the clock may have been set since the worker began
        now = self._ring.now() if self._ring else None
        self.now = now if now is not None and now.marks else None  # every worker may have a ring; not every script marks anything in it
        if self.stat is None:
            self.ended_stopped, self._stopped_twice = self._stopped_twice and not self.progress.stalled, False
            return False
        self._observed = monotonic
        self._look_for_a_stop(self.stat.state)
        self.fell_silent = self._use.falls(self.stat.cpu_s, monotonic)
        resumed = self.progress.observe(monotonic, self._sample(wall, self.stat.state))
        if not (self.progress.stalled or self.unmarked):
            self.activity, self._stands_since = None, NOTHING
        return resumed

    def _look_for_a_stop(self, state: str) -> None:
        """Seen stopped in two looks without a turn in between, it is no process that is stopped and continued many times a second."""
        turns = self.process.turns() if state == STOPPED and self.process else None
        self._stopped_twice = turns is not None and turns == self._stopped_at
        self._stopped_at = turns

    # --- what it does

    @property
    def unmarked(self) -> bool:
        """It has no ring, or has set no mark in it: only its process tells what it does."""
        return self.now is None and not self.unreadable

    @property
    def works(self) -> bool:
        return self.activity is not None and self.activity.kind is ActivityKind.WORKING

    @property
    def stands(self) -> bool:
        """Somebody has looked, and it does not work."""
        return self.activity is not None and self.activity.kind not in (ActivityKind.WORKING, ActivityKind.UNKNOWN)

    @property
    def age_s(self) -> float:
        """Seconds without progress: since its newest mark, else since it stands; 0 for one without a ring that works."""
        if not self.unmarked:
            return self.progress.age_s
        return self.progress.stopped_s if math.isnan(self._stands_since) else self._observed - self._stands_since

    def take(self, activity: Activity | None, monotonic: float) -> bool:
        """A verdict; True if it differs from the one before in more than its figures."""
        if activity is not None and activity.kind is ActivityKind.STOPPED and (self.stat is None or self.stat.state != STOPPED):
            activity = None  # it was continued since
        before, self.activity = self.activity, activity
        if activity is None:
            return False
        fresh = before is None or (before.kind, before.place, before.collective) != (activity.kind, activity.place, activity.collective)
        if not self.stands:
            self._stands_since = NOTHING
        elif fresh or math.isnan(self._stands_since):
            self._stands_since = monotonic
        return fresh

    def _sample(self, wall: float, state: str) -> ProgressSample:
        now = self.now
        if now is None:
            return ProgressSample(state)
        age = wall - now.last_mark
        return ProgressSample(
            state, now.marks, 0.0 if math.isnan(age) else age, now.phase, now.completed, now.running
        )

    @property
    def alive(self) -> bool:
        """Its process was alive at the last sample."""
        return self.stat is not None

    @property
    def finished(self) -> bool:
        """Its training loop is over and its process is gone. A crash after the loop is reported as an exit."""
        return not self.alive and self.now is not None and self.now.step >= 0 and not self.now.running

    def steps(self) -> list[StepRecord]:
        """Steps completed since the last call, each once. Raises RingError if the ring was truncated."""
        if self._ring is None:
            return []
        steps = self._ring.steps(self.reported)
        if steps:
            self.reported = steps[-1].number
        for step in steps:
            pauses = sum(step.values.get(name, 0.0) for name in PAUSES)
            self.progress.completed(step.values.get("step_s", NOTHING) - pauses)
        return steps

    def row(self, wall: float, monotonic: float) -> list[float]:
        """Its now-metrics, as NAMES; processor figures are shares of the time since the row before."""
        stat, now = self.stat, self.now
        cpu_s = stat.cpu_s if stat else NOTHING
        waited_s = self.process.runqueue_s() if self.process and stat else NOTHING
        (cpu_before, waited_before, at_before), self._used = self._used, (cpu_s, waited_s, monotonic)
        elapsed = monotonic - at_before
        scale = 100.0 / elapsed if elapsed > 0 else NOTHING
        quota = self._quota_use()
        return [
            now.step if now else NOTHING,
            wall - now.step_began if now else NOTHING,
            self.progress.age_s if now else self.age_s if self.activity else NOTHING,
            now.marks if now else NOTHING,
            PHASES.index(now.phase) if now else NOTHING,
            now.running if now else NOTHING,
            ord(stat.state) if stat else NOTHING,
            (cpu_s - cpu_before) * scale,
            (waited_s - waited_before) * scale,
            stat.rss_bytes if stat else NOTHING,
            now.step_marks if now else NOTHING,
            ACTIVITIES.index(self.activity.kind) if self.activity else NOTHING,
            quota.throttled_percent,
            quota.processors,
            monotonic - self.activity.began if self.activity else NOTHING,
            *self._memory_use(monotonic),
        ]

    def _quota_use(self) -> QuotaUse:
        if self.process is None or self.stat is None:
            return QuotaUse(NOTHING, NOTHING)
        if self._quota is None or self._quota.pid != self.process.pid:
            self._quota = CpuQuota(self.process.pid)
        return self._quota.look()

    def _memory_use(self, monotonic: float) -> MemoryUse:
        if self.process is None or self.stat is None:
            return UNKNOWN
        if self._memory is None or self._memory.pid != self.process.pid:
            self._memory = MemoryLimit(self.process.pid)
        return self._memory.look(monotonic)

    def give_up_ring(self, error: RingError) -> str:
        """Close a truncated ring for good. Returns the error text, once."""
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        self.now = None
        return self._once(str(error))

    def close(self) -> None:
        if self._ring is not None:
            self._ring.close()
            self._ring = None
        if self.process is not None:
            self.process.close()
            self.process = None
