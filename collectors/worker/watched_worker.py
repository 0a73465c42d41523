"""One worker process as the training collector sees it: its ring, its process, its progress."""

import math
import os

from collectors.agent.job_directory import LocalWorker
from eagle_eye.errors import RingError
from eagle_eye.training.messages import PHASES
from eagle_eye.training.ring import Now, RingReader, StepRecord

from .procfs import DEAD, ProcessHandle, ProcessStat
from .stall_limits import ProgressSample, StallLimits, WorkerProgress

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
)
NOTHING = math.nan
PAUSES = ("evaluation_s", "checkpoint_s")
"""Not part of a step's iteration time."""


class WatchedWorker:
    """From the first look at a worker's process to the last words in its ring."""

    def __init__(self, job: str, run: str, worker: LocalWorker, limits: StallLimits) -> None:
        self.job, self.run, self.worker = job, run, worker
        self.progress = WorkerProgress(limits)
        self.process = ProcessHandle.open(worker.pid, worker.start_time)
        self.now: Now | None = None
        self.look: ProcessStat | None = None
        self.reported = -1
        """Number of the last step that was handed on."""
        self._ring: RingReader | None = None
        self._useless_ring = ""
        self._used = (NOTHING, NOTHING, NOTHING)

    # --- the ring

    def open_ring(self) -> str:
        """Open the ring if it is there by now. Returns what is wrong with it, each thing once."""
        path = self.worker.ring
        if self._ring is not None or not path or not os.path.exists(path):  # noqa: PTH110  # asked each second
            return ""
        try:
            ring = RingReader.open(path)
        except RingError as error:
            return self._once(str(error))
        if ring.header.epoch != self.worker.birth:  # left by the epoch before; the new process has not come so far
            ring.close()
            return ""
        self._ring, self._useless_ring = ring, ""
        self._follow(ring)
        return ""

    def _follow(self, ring: RingReader) -> None:
        """Watch the process that writes the ring: the registered one may be a shell around it."""
        header = ring.header
        if header.pid != self.worker.pid:
            writer = ProcessHandle.open(header.pid, header.start_time)
            if writer is not None:
                self.process, former = writer, self.process
                if former is not None:
                    former.close()

    def _once(self, reason: str) -> str:
        known, self._useless_ring = self._useless_ring, reason
        return "" if reason == known else reason

    @property
    def unreadable(self) -> bool:
        """It has a ring that cannot be read."""
        return bool(self._useless_ring)

    # --- looking

    def watch(self, wall: float, monotonic: float) -> bool:
        """One cheap look. True if it had stalled and moves again. Raises RingError if the ring was cut short."""
        self.look = self.process.look() if self.process else None
        if self.look is not None and (self.look.state in DEAD or self.look.exiting):
            self.look = None
        self.now = self._ring.now() if self._ring else None
        if self.look is None:
            return False
        return self.progress.look(monotonic, self._sight(wall, self.look.state))

    def _sight(self, wall: float, state: str) -> ProgressSample:
        now = self.now
        if now is None:
            return ProgressSample(state)
        age = wall - now.last_mark
        return ProgressSample(
            state, now.marks, 0.0 if math.isnan(age) else age, now.phase, now.completed, now.running
        )

    @property
    def alive(self) -> bool:
        """Its process lived at the last look."""
        return self.look is not None

    @property
    def finished(self) -> bool:
        """Its loop was over and its process is gone: it waits for nobody. A death after the loop is told as an exit."""
        return not self.alive and self.now is not None and self.now.step >= 0 and not self.now.running

    def steps(self) -> list[StepRecord]:
        """Steps completed since the last call, each once. Raises RingError if the ring was cut short."""
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
        look, now = self.look, self.now
        cpu_s = look.cpu_s if look else NOTHING
        waited_s = self.process.waited_s() if self.process and look else NOTHING
        (cpu_before, waited_before, at_before), self._used = self._used, (cpu_s, waited_s, monotonic)
        elapsed = monotonic - at_before
        scale = 100.0 / elapsed if elapsed > 0 else NOTHING
        return [
            now.step if now else NOTHING,
            wall - now.step_began if now else NOTHING,
            self.progress.age_s if now else NOTHING,
            now.marks if now else NOTHING,
            PHASES.index(now.phase) if now else NOTHING,
            now.running if now else NOTHING,
            ord(look.state) if look else NOTHING,
            (cpu_s - cpu_before) * scale,
            (waited_s - waited_before) * scale,
            look.rss_bytes if look else NOTHING,
        ]

    def give_up_ring(self, error: RingError) -> str:
        """A ring that was cut short under us is read no further. Returns what to tell, once."""
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
