"""Fits baselines on a job's healthy minutes, in a child process; detectors read them as `frame.baselines[name]`.

A learner is a dataclass beside its detector with `remember(frame)`, the numbers that it wants of a tick, and
`fit(history)`, history being {"job", "time", "names", "matrix" (samples × names, oldest first)}. It runs in a process of
its own, because growing a model takes seconds and may fail in ways of its own. What it fitted is stored under its digest
and takes effect through a Baseline record in the stream: a replay finds the same one there.
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
from eagle_eye.frames import Frame
from eagle_eye.protocols import Learner
from eagle_eye.training import atomic_file
from eagle_eye.types import Baseline, Floats, Notice

SAMPLES_KEPT = 65_536
NICENESS = 10
_log = logging.getLogger(__name__)


@dataclass
class _Lesson:
    """One learner's view of one job."""

    names: tuple[str, ...] = ()
    rows: deque[Floats] = field(default_factory=deque)
    """samples × names of each healthy tick."""
    count: int = 0
    ticks: int = 0
    """Healthy ticks since the last fit was begun."""
    fitted: bool = False

    def add(self, names: tuple[str, ...], matrix: Floats) -> None:
        """Other names than before begin a new memory: they are not comparable."""
        if names != self.names:
            self.names, self.count = names, 0
            self.rows.clear()
        self.rows.append(matrix)
        self.count += len(matrix)
        self.ticks += 1
        while self.count > SAMPLES_KEPT and len(self.rows) > 1:
            self.count -= len(self.rows.popleft())


@dataclass
class _Child:
    """A fit under way."""

    job: str
    learner: str
    process: SpawnProcess
    answer: Connection
    deadline: float


class BaselineLearner:
    """Collects samples from healthy ticks, fits one baseline at a time, hands finished ones out."""

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
    ) -> None:
        """directory: where baselines are stored by digest. first_ticks, every_ticks: healthy ones before the first and
        between two fits. limit_s: a child that takes longer is ended.
        """
        self._learners = learners
        self._clock = clock
        self._directory = directory
        self._first = first_ticks
        self._every = every_ticks
        self._limit_s = limit_s
        self._on_notice = on_notice
        self._lessons: dict[tuple[str, str], _Lesson] = {}
        self._child: _Child | None = None

    def tick(self, frames: Iterable[tuple[Frame, bool]]) -> list[Baseline]:
        """Look at the tick frames of all jobs, each with whether it is healthy; returns what has been fitted."""
        jobs = set()
        for frame, healthy in frames:
            jobs.add(frame.job)
            if healthy:
                self._look(frame)
        self._lessons = {key: lesson for key, lesson in self._lessons.items() if key[0] in jobs}
        finished = self._collect()
        if self._child is None:
            self._begin()
        return finished

    def close(self) -> None:
        """End a fit that is under way."""
        if self._child is not None:
            self._end(self._child)

    # --- samples -------------------------------------------------------------------------------------------------

    def _look(self, frame: Frame) -> None:
        for name, learner in self._learners.items():
            try:
                names, matrix = learner.remember(frame)
            except Exception as error:  # noqa: BLE001 -- a learner is foreign code: watching goes on without it
                self._tell(f"{name} on {frame.job} cannot take samples: {type(error).__name__}: {error}")
                continue
            if names and len(matrix):
                self._lessons.setdefault((frame.job, name), _Lesson()).add(names, matrix)

    # --- the child -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start the fit that has been due for longest, if any."""
        due = [
            (lesson.ticks, key)
            for key, lesson in self._lessons.items()
            if lesson.ticks >= (self._every if lesson.fitted else self._first)
        ]
        if not due:
            return
        _, (job, name) = max(due)
        lesson = self._lessons[job, name]
        lesson.ticks, lesson.fitted = 0, True
        history = {
            "job": job,
            "time": self._clock.now(),
            "names": lesson.names,
            "matrix": np.concatenate(lesson.rows),
        }
        context = multiprocessing.get_context("spawn")  # the server has threads: it must not be forked
        mine, its = context.Pipe(duplex=False)
        process = context.Process(target=_fit, args=(self._learners[name], history, its), name="learner", daemon=True)
        process.start()
        its.close()
        self._child = _Child(job, name, process, mine, self._clock.monotonic() + self._limit_s)

    def _collect(self) -> list[Baseline]:
        child = self._child
        if child is None:
            return []
        if child.answer.poll():
            result = self._answer(child)
        elif self._clock.monotonic() > child.deadline:
            self._tell(f"{child.learner} on {child.job} took longer than {self._limit_s:g} s to fit and was ended")
            result = []
        else:
            return []
        self._end(child)
        return result

    def _answer(self, child: _Child) -> list[Baseline]:
        try:
            status, _, data = child.answer.recv_bytes().partition(b"\n")
        except (EOFError, OSError):
            self._tell(f"{child.learner} on {child.job}: the child ended without an answer")
            return []
        if status != b"fitted":
            self._tell(f"{child.learner} on {child.job}: {data.decode(errors='replace')}")
            return []
        baseline = msgspec.msgpack.decode(data, type=Baseline)
        digest = hashlib.blake2b(baseline.data, digest_size=8).hexdigest()
        baseline = msgspec.structs.replace(baseline, job=child.job, fitted=self._clock.now(), digest=digest)
        self._store(baseline)
        return [baseline]

    def _end(self, child: _Child) -> None:
        self._child = None
        child.answer.close()
        child.process.join(0.2)
        if child.process.is_alive():
            child.process.kill()
            child.process.join()

    def _store(self, baseline: Baseline) -> None:
        """Under its digest, whole or not at all. A full disk costs the file, not the baseline: the stream has it."""
        if self._directory is None:
            return
        path = self._directory / f"{baseline.digest}.msgpack"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            atomic_file.replace(path, msgspec.msgpack.encode(baseline), lasting=False)
        except OSError as error:
            self._tell(f"baseline {baseline.digest} of {baseline.job} is not stored: {error}")

    def _tell(self, message: str) -> None:
        _log.warning("learning: %s", message)
        if self._on_notice is not None:
            self._on_notice(Notice(name="learning.failed", time=self._clock.now(), message=message))


def learners(detectors: Iterable[tuple[str, type]], options: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Learner]:
    """The learners that stand beside these detectors (name, class), by the detectors' names; a stranger's may have one too."""
    found: dict[str, Learner] = {}
    for name, detector in detectors:
        cls = plugins.beside(detector, "fit")
        if cls is not None:
            found[name] = plugins.build(cls, (options or {}).get(name, {}), {})
    return found


def _fit(learner: Learner, history: Mapping[str, Any], answer: Connection) -> None:
    """In the child: fit, and answer with `fitted` and the baseline, or `failed` and why."""
    os.nice(NICENESS)  # the machine's work is training
    try:
        answer.send_bytes(b"fitted\n" + msgspec.msgpack.encode(learner.fit(history)))
    except Exception as error:  # noqa: BLE001 -- whatever it was, the parent tells it and goes on
        answer.send_bytes(f"failed\n{type(error).__name__}: {error}".encode())
