"""Fits baselines on a job's healthy minutes, in a child process; detectors read them as `frame.baselines[name]`.

A learner (`protocols.Learner`) is a dataclass beside its detector: `sample(frame)` returns the values that it wants of a
tick, `fit(history)` the baseline; history is {"job", "time", "names", "matrix" (samples × names, oldest first), "before" (data of the
baseline in force, b"" without one)}. A learner may have `drifted(job)`, asked after each sample: whether the healthy minutes
have left those that the baseline in force was fitted to (features/drift.py); the next fit then comes as early as the first one did. `fit` runs in a child process, because it takes seconds and may fail. `sample` runs in the thread of the partition: one that never returns is noticed as a
detector that hangs is (`hang_watch.py`), one that fails again and again is not asked again. A baseline is stored under its digest and takes effect through
a Baseline record in the stream, so that a replay uses the same one.
"""

import hashlib
import logging
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from eagle_eye import plugins
from eagle_eye.clock import Clock
from eagle_eye.directory_limit import delete_oldest
from eagle_eye.frames import Frame
from eagle_eye.protocols import Learner
from eagle_eye.training import atomic_file
from eagle_eye.types import Baseline, Floats, Notice
from eagle_eye.writable_text import words_of

from .hang_watch import DetectorCall, HangWatch, MutedDetectors

SAMPLES_KEPT = 65_536
VALUES_KEPT = 64 * SAMPLES_KEPT
"""Of a job with many names, fewer samples are kept: 16 MiB."""
FAILURES = 3
"""A learner that cannot take samples of a job so many times in a row is not asked again for it."""
STORED_BYTES = 1 << 30
"""Of baselines on disk; the oldest go. Each job has a new one every few minutes, and the stream holds the newest."""
NICENESS = 10
_log = logging.getLogger(__name__)


@dataclass
class _Samples:
    """The samples that one learner has collected of one job."""

    names: tuple[str, ...] = ()
    rows: deque[Floats] = field(default_factory=deque)
    """samples × names of each healthy tick."""
    count: int = 0
    ticks: int = 0
    """Healthy ticks since the last fit was started."""
    fitted: bool = False
    early: bool = False
    """Its learner sees that the healthy minutes are not those any more that it was fitted to."""
    before: bytes = b""
    """Data of the baseline in force."""

    def add(self, names: tuple[str, ...], matrix: Floats) -> None:
        """Append a tick's samples; when the names change, earlier samples are dropped, as they are not comparable."""
        if names != self.names:
            self.names, self.count, self.ticks = names, 0, 0
            self.rows.clear()
        self.rows.append(matrix)
        self.count += len(matrix)
        self.ticks += 1
        while self.count > _kept(names) and len(self.rows) > 1:
            self.count -= len(self.rows.popleft())


@dataclass
class _Child:
    """A running fit."""

    job: str
    learner: str
    process: SpawnProcess
    connection: Connection
    deadline: float


class BaselineLearner:
    """Collects samples from healthy ticks and fits one baseline at a time."""

    def __init__(
        self,
        learners: Mapping[str, Learner],
        *,
        clock: Clock,
        directory: Path | None = None,
        first_ticks: int = 120,
        every_ticks: int = 600,
        limit_s: float = 60.0,
        on_notice: Callable[[Notice], None] | None = None,
        hung: MutedDetectors | None = None,
    ) -> None:
        """directory: where baselines are stored by digest. first_ticks, every_ticks: healthy ones before the first (and before one that a learner asks for early) and
        between two fits. limit_s: a child process that takes longer is killed. hung: those that have not returned.
        """
        self.watch = HangWatch()
        """Of the thread that calls `tick`."""
        self._learners = learners
        self._clock = clock
        self._hung = hung or MutedDetectors()
        self._failures: dict[tuple[str, str], int] = {}
        """(job, learner) → how often in a row it could take no samples."""
        self._directory = directory
        self._first = first_ticks
        self._every = every_ticks
        self._limit_s = limit_s
        self._on_notice = on_notice
        self._samples: dict[tuple[str, str], _Samples] = {}
        self._child: _Child | None = None

    def tick(self, frames: Iterable[tuple[Frame, bool]]) -> list[Baseline]:
        """Take the tick frames of all jobs, each with whether it is healthy; returns the baselines that were finished."""
        jobs = set()
        for frame, healthy in frames:
            jobs.add(frame.job)
            if healthy:
                self._take_samples(frame)
        self._samples = {key: samples for key, samples in self._samples.items() if key[0] in jobs}
        self._failures = {key: count for key, count in self._failures.items() if key[0] in jobs}
        finished = self._collect_result()
        if self._child is None:
            self._start_due_fit()
        return finished

    def close(self) -> None:
        """End a running fit."""
        if self._child is not None:
            self._end(self._child)

    # --- samples -------------------------------------------------------------------------------------------------

    def _take_samples(self, frame: Frame) -> None:
        for name, learner in self._learners.items():
            call, key = DetectorCall(frame.job, name, learner=True), (frame.job, name)
            if call in self._hung or self._failures.get(key, 0) >= FAILURES:
                continue
            try:
                with self.watch.within(call):
                    names, matrix = _checked(learner.sample(frame))
                    drifted = getattr(learner, "drifted", None)
                    early = bool(drifted is not None and drifted(frame.job))
            except KeyboardInterrupt:  # of who runs a replay
                raise
            except BaseException as error:  # noqa: BLE001 -- a learner is foreign code, and may raise SystemExit: detection goes on without it
                count = self._failures[key] = self._failures.get(key, 0) + 1
                again = "" if count < FAILURES else f"; after {FAILURES} times in a row it is not asked again until the server restarts"
                self._notify(f"{name} on {frame.job} cannot take samples: {words_of(error)}{again}")
                continue
            self._failures.pop(key, None)
            if names and len(matrix):
                samples = self._samples.setdefault(key, _Samples())
                samples.add(names, matrix)
                samples.early = early
                samples.before = present.data if (present := frame.baselines.get(name)) is not None else b""

    # --- the child -----------------------------------------------------------------------------------------------

    def _start_due_fit(self) -> None:
        """Start the fit that has been due for longest, if any."""
        due = [
            (samples.ticks, key)
            for key, samples in self._samples.items()
            if samples.ticks >= (self._every if samples.fitted and not samples.early else self._first) and DetectorCall(*key, learner=True) not in self._hung
        ]
        if not due:
            return
        _, (job, name) = max(due)
        self._samples[job, name].ticks, self._samples[job, name].fitted = 0, True
        try:
            with self.watch.within(DetectorCall(job, name, learner=True)):
                self._start_fit(job, name, self._samples[job, name])
        except Exception as error:  # noqa: BLE001 -- no process, descriptor or memory is left, or the learner cannot be sent to a process: it is tried again when the next one is due
            self._notify(f"{name} on {job} cannot be fitted: {words_of(error)}")

    def _start_fit(self, job: str, name: str, samples: _Samples) -> None:
        history = {
            "job": job,
            "time": self._clock.now(),
            "names": samples.names,
            "matrix": np.concatenate(samples.rows),
            "before": samples.before,
        }
        context = multiprocessing.get_context("spawn")  # the server has threads: it must not be forked
        mine, its = context.Pipe(duplex=False)
        process = context.Process(target=_fit, args=(self._learners[name], history, its), name="learner", daemon=True)
        try:
            process.start()
        except BaseException:
            mine.close()
            raise
        finally:
            its.close()
        self._child = _Child(job, name, process, mine, self._clock.monotonic() + self._limit_s)

    def _collect_result(self) -> list[Baseline]:
        child = self._child
        if child is None:
            return []
        with self.watch.within(DetectorCall(child.job, child.learner, learner=True)):
            return self._result_of(child)

    def _result_of(self, child: _Child) -> list[Baseline]:
        if child.connection.poll():
            result = self._result(child)
        elif self._clock.monotonic() > child.deadline:
            self._notify(f"{child.learner} on {child.job} took longer than {self._limit_s:g} s to fit and was ended")
            result = []
        else:
            return []
        self._end(child)
        return result

    def _result(self, child: _Child) -> list[Baseline]:
        try:
            status, _, data = child.connection.recv_bytes().partition(b"\n")
        except (EOFError, OSError):
            self._notify(f"{child.learner} on {child.job}: the child ended without a result")
            return []
        if status != b"fitted":
            self._notify(f"{child.learner} on {child.job}: {data.decode(errors='replace')}")
            return []
        try:
            baseline = msgspec.msgpack.decode(data, type=Baseline)
        except msgspec.MsgspecError as error:
            self._notify(f"{child.learner} on {child.job} has fitted something that is no baseline: {words_of(error)}")
            return []
        digest = hashlib.blake2b(baseline.data, digest_size=8).hexdigest()
        baseline = msgspec.structs.replace(baseline, job=child.job, fitted=self._clock.now(), digest=digest)
        self._store(baseline)
        return [baseline]

    def _end(self, child: _Child) -> None:
        self._child = None
        child.connection.close()
        child.process.join(0.2)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()

    def _store(self, baseline: Baseline) -> None:
        """Store under its digest, atomically. On a full disk only the file is missing: the stream has the baseline."""
        if self._directory is None:
            return
        path = self._directory / f"{baseline.digest}.msgpack"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(path, msgspec.msgpack.encode(baseline), durable=False)
            delete_oldest(self._directory, "*.msgpack", STORED_BYTES)
        except OSError as error:
            self._notify(f"baseline {baseline.digest} of {baseline.job} is not stored: {error}")

    def _notify(self, message: str) -> None:
        _log.warning("baseline learner: %s", message)
        if self._on_notice is not None:
            self._on_notice(Notice(name="learning.failed", time=self._clock.now(), message=message))


def learners(detectors: Iterable[tuple[str, type]], options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Learner]:
    """Detector name → its learner, for those detectors (name, class) whose module has one; also for third-party detectors."""
    found: dict[str, Learner] = {}
    for name, detector in detectors:
        cls = plugins.beside(detector, "fit")
        if cls is not None:
            try:
                found[name] = plugins.build(cls, (options or {}).get(name, {}), {})
            except Exception as error:  # noqa: BLE001 -- foreign code: detection goes on without what it would have learned
                _log.warning("the learner of %s cannot be made, nothing is learned for it: %s", name, words_of(error))
    return found


def _checked(sampled: Any) -> tuple[tuple[str, ...], Floats]:
    """What a learner has sampled, no more than are kept. Raises TypeError, ValueError: what does not fit together would be noticed only at the fit."""
    names, matrix = sampled
    if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
        raise TypeError("the names of its samples are no tuple of strings")
    if not names:
        return (), np.empty((0, 0), dtype=np.float32)
    if not isinstance(matrix, np.ndarray) or matrix.dtype.kind not in "fiub" or matrix.ndim != 2 or matrix.shape[1] != len(names):
        raise ValueError(f"its samples are no matrix of numbers with {len(names)} columns")
    return names, matrix[-_kept(names) :]


def _kept(names: tuple[str, ...]) -> int:
    """Samples at most, of so many values each."""
    return max(1, min(SAMPLES_KEPT, VALUES_KEPT // max(len(names), 1)))


def _fit(learner: Learner, history: Mapping[str, Any], connection: Connection) -> None:
    """In the child process: fit, and send `fitted` and the baseline, or `failed` and the reason."""
    os.nice(NICENESS)  # the machine's work is training
    try:
        connection.send_bytes(b"fitted\n" + msgspec.msgpack.encode(learner.fit(history)))
    except Exception as error:  # noqa: BLE001 -- the parent reports it and goes on
        connection.send_bytes(f"failed\n{words_of(error)}".encode())
