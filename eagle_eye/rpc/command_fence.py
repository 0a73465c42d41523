"""What a launcher remembers on disk of its commanders, so that an old one cannot command it.

The highest leader term, the highest epoch of each job, and the answers of the steps already done: a command that
comes twice (its ack was lost, its commander was replaced) gets the first answer and is not done again.
"""

import contextlib
import logging
import threading
import zlib
from pathlib import Path

import msgspec

from eagle_eye.errors import UNREADABLE, ControlError, Stale
from eagle_eye.training import atomic_file

from .control_messages import HIGHEST_FIRST_TERM, TERM_JUMP, Body, Command

log = logging.getLogger(__name__)

FILE = "fence.json"
CHECKSUM = b"\ncrc32 "
ANSWERS = 256
"""Answers kept per job; the oldest go first."""
ANSWER_BYTES = 64 * 1024
"""A longer answer (a dump) is kept as the fact alone that the step was done."""


class _Job(msgspec.Struct, kw_only=True):
    epoch: int = 0
    answers: dict[str, Body] = {}
    """Step of a plan → its answer, oldest first."""


class _Memory(msgspec.Struct, kw_only=True):
    version: int = 1
    term: int = 0
    jobs: dict[str, _Job] = {}


class CommandFence:
    """One launcher's memory of terms, epochs and answers; one process per directory. Thread-safe.

    Without a directory it lasts as long as the process (for an agent, which is never commanded to act).
    """

    def __init__(self, directory: Path | None = None, *, term: int = 0) -> None:
        self._lock = threading.Lock()
        self._directory = directory
        self._memory = _Memory() if directory is None else _read(directory / FILE)
        self._unwritten = term > self._memory.term
        self._memory.term = max(self._memory.term, term)

    @property
    def term(self) -> int:
        """The highest leader term seen; 0 if none."""
        return self._memory.term

    def epoch(self, job: str) -> int:
        """The highest epoch of a job seen; 0 if none."""
        known = self._memory.jobs.get(job)
        return known.epoch if known else 0

    def admit_term(self, term: int) -> None:
        """Remember a leader's term, on disk before this returns; Stale if a higher one was seen, ControlError for one that no leader can have. 0 is no leader."""
        with self._lock:
            self._check_term(term)
            if term:
                self._keep()

    def admit(self, command: Command) -> Body | None:
        """The recorded answer if this step is already done, else None: do it now. Stale from an old commander."""
        with self._lock:
            self._check_term(command.leader_term)
            answer = self._answer(command)
            if answer is None:
                self._check_epoch(command.job, command.epoch)
            if command.leader_term:
                self._keep()
            else:
                self._keep_if_possible()
            return answer

    def record(self, command: Command, answer: Body) -> None:
        """The step is done: remember its answer, on disk before this returns. Without a plan nothing is kept."""
        if not command.plan:
            return
        short = answer if len(msgspec.json.encode(answer)) <= ANSWER_BYTES else {"done": True, "shortened": True}
        with self._lock:
            answers = self._job(command.job).answers
            answers[_step(command)] = short
            for oldest in list(answers)[:-ANSWERS]:
                del answers[oldest]
            self._unwritten = True
            self._keep()

    def forget(self, job: str) -> None:
        """The job's run is over."""
        with self._lock:
            self._unwritten = self._memory.jobs.pop(job, None) is not None or self._unwritten
            self._keep()

    def remove(self) -> None:
        """The run is over, nobody commands it again: take the file away, and its directory once that is empty."""
        if self._directory is None:
            return
        with self._lock, contextlib.suppress(OSError):  # what stays costs some space and nothing else
            (self._directory / FILE).unlink(missing_ok=True)
            self._directory.rmdir()

    def _check_term(self, term: int) -> None:
        known = self._memory.term
        if term and term < known:
            raise Stale(
                f"leader term {term} is older than term {known}, which was seen before: another leader was elected "
                "since; the old one must stop"
            )
        if term > (known + TERM_JUMP if known else HIGHEST_FIRST_TERM):
            raise ControlError(f"leader term {term} is too far above term {known}, the highest seen before: no leader has it; it is not believed")
        if term > known:
            self._memory.term = term
            self._unwritten = True

    def _check_epoch(self, job: str, epoch: int) -> None:
        known = self.epoch(job)
        if epoch and epoch < known:
            raise Stale(f"epoch {epoch} of {job} is over: epoch {known} has begun; plan anew")
        if epoch > known:
            self._job(job).epoch = epoch
            self._unwritten = True

    def _answer(self, command: Command) -> Body | None:
        known = self._memory.jobs.get(command.job)
        return known.answers.get(_step(command)) if known and command.plan else None

    def _job(self, job: str) -> _Job:
        return self._memory.jobs.setdefault(job, _Job())

    def _keep_if_possible(self) -> None:
        """A coordinator's orders, which name no leader's term, do not wait for a disk: what they may begin is decided by votes, which do."""
        try:
            self._keep()
        except ControlError as error:
            log.warning("%s", error)

    def _keep(self) -> None:
        """Write what is new; after a failure it stays new, so that nothing is admitted that is not on disk."""
        if self._unwritten and self._directory is not None:
            write_whole(self._directory / FILE, msgspec.json.encode(self._memory))
        self._unwritten = False


def _step(command: Command) -> str:
    return msgspec.json.encode((command.plan, command.step)).decode()


def _read(path: Path) -> _Memory:
    """What is on disk. A file that cannot be read is moved aside: the term starts from the leader's welcome."""
    try:
        return msgspec.json.decode(read_whole(path), type=_Memory)
    except FileNotFoundError:
        return _Memory()
    except OSError as error:
        raise ControlError(f"cannot read {path}: {error.strerror}; make it readable, or choose another --state-dir") from error
    except UNREADABLE as error:
        aside = path.with_name(path.name + ".torn")
        with contextlib.suppress(OSError):  # where nothing can be written no command is obeyed
            path.replace(aside)
        log.warning("%s cannot be read (%s): moved to %s; the next leader's term counts as the highest", path, error, aside)
        return _Memory()


def read_whole(path: Path) -> bytes:
    """What `write_whole` has written. Raises OSError; ValueError where it was changed since: a digit that the disk lost would be believed."""
    data, mark, checksum = path.read_bytes().partition(CHECKSUM)
    if mark and checksum != b"%08x" % zlib.crc32(data):
        raise ValueError("changed since it was written (CRC-32)")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by one line of JSON, so that a reader, or a machine that lost its power, sees the old one or the new one. A line with its checksum follows."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_file.replace(path, data + CHECKSUM + b"%08x" % zlib.crc32(data))
    except OSError as error:
        raise ControlError(
            f"cannot write {path}: {error.strerror}; free space or make it writable: without it an old leader "
            "could not be told from the new one"
        ) from error
