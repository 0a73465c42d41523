"""Brings copies from memory to storage, in the background: what is wanted is compared with what is there, and the next thing that is missing is done.

A thread of the launcher, since a storage may answer after minutes, or never. The format is that of all checkpoints: each rank's shard, then its
part of the manifest; who finds the parts of all ranks makes the manifest of them, last. Any step may be done twice, or by another launcher: what is
whole already is left as it is. What storage refuses is told once, and tried again after 1, 2, 4, … 60 s; training knows nothing of it.
"""

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from eagle_eye.training import object_path
from eagle_eye.training.checkpoint import checkpoint_directory, checkpoint_writer, shard_file
from eagle_eye.training.checkpoint import manifest as manifests
from eagle_eye.training.checkpoint.checkpoint_retention import NEWEST_KEPT, CheckpointRetention
from eagle_eye.training.checkpoint.manifest import UnusableCheckpoint
from eagle_eye.training.checkpoint.memory_segment import SlotHold
from eagle_eye.training.object_path import StoragePath
from eagle_eye.training.save_retry import FIRST_S, LONGEST_S
from eagle_eye.training.storage_failure import UNKNOWN, StorageFailure, storage_failure

from .copy_client import CopyChanged, CopyGone
from .copy_files import CopyFiles, CopyName
from .copy_table import StoredPart, part_of, writers
from .staged_copy import StagedCopy

log = logging.getLogger(__name__)

OTHERS_S = (0.2, 5.0)
"""How often it is looked whether the other ranks' parts are there: at first, and later."""
OTHERS_LATE_S = 120.0
"""Parts of other ranks that are missing for so long are told."""
TAKE_OVER_S = 30.0
"""The manifest is made by the launcher of rank 0; by any other one if that has not done so for so long."""
TAKE_S = 60.0
"""The slots stay as they are for so long at the most."""
SILENT_S = 30.0
"""A storage that takes nothing for so long is told."""


class WantedStep(NamedTuple):
    """A step of which the copies of this node are to be stored."""

    step: int
    epoch: int
    run: str
    copies: tuple[CopyName, ...]
    workers: tuple[str, ...]
    """Their names."""
    begun: float
    """When the copies were whole; monotonic."""

    @property
    def is_first(self) -> bool:
        """Whether rank 0 is here."""
        return any(copy.rank == 0 for copy in self.copies)


class StorageRefusal(NamedTuple):
    """What the job is told of a step that is not in storage."""

    step: int
    worker: str
    failure: StorageFailure
    needed_bytes: int
    attempt: int
    retry_s: float


class StoredStep(NamedTuple):
    """A step that is whole in storage."""

    step: int
    path: StoragePath
    """Of its manifest."""
    seconds: float
    """Since its copies were whole in memory."""
    worker: str
    """That of rank 0; '' if it is on another node, whose launcher tells it."""
    epoch: int
    """In which its copies were made."""


@dataclass
class _Work:
    """A step that was taken out of its slots."""

    wanted: WantedStep
    staged: list[StagedCopy]
    written: dict[StoragePath, StoragePath] = field(default_factory=dict)
    """Part of a rank of ours → its shard."""
    others_since: float | None = None
    """Since when those of other ranks are waited for, monotonic; None: ours are not there yet."""

    def others_s(self, now: float) -> float:
        """For so long; 0: they are not."""
        return 0.0 if self.others_since is None else now - self.others_since

    def close(self) -> None:
        for copy in self.staged:
            copy.close()


class StorageReconciler:
    """Runs in its own thread until `stop` is set."""

    def __init__(
        self, home: StoragePath, files: Callable[[], CopyFiles], stored: Callable[[StoredStep], None], refused: Callable[[StorageRefusal], None],
        taken: Callable[[WantedStep, CopyName | None, str], None], stop: threading.Event, clock: Callable[[], float] = time.monotonic, keep: CheckpointRetention = NEWEST_KEPT,
    ) -> None:  # fmt: skip
        """`taken`: the slots are free again; with the copy that is broken, if one is, and why. All are called in this thread. `keep`: what of older steps stays in storage."""
        self._home, self._files, self._stored, self._refused, self._taken, self._stop, self._clock = home, files, stored, refused, taken, stop, clock
        self._keep = keep
        self._turn = threading.Condition()
        """Guards what follows."""
        self._wanted: WantedStep | None = None
        self._rolled_back: tuple[int, int] = (0, -1)
        """The epoch that began by a roll-back, and the step from which it did."""
        self._work: _Work | None = None
        self._left: list[_Work] = []
        """Given up since something was stored."""
        self._last: tuple[StoragePath, int, int] | None = None
        """Manifest, epoch and step of what was stored last."""
        self._failures = 0
        self._told: tuple[str, str] | None = None
        self._moved_at = float("inf")
        """When the storage has taken something last; infinite while nothing is asked of it."""

    # --- for the thread that watches the copies ------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """A step is being taken or written; one that storage refuses gives way to a newer one."""
        with self._turn:
            return self._wanted is not None or (self._work is not None and not self._failures and self._work.others_since is None)

    def want(self, wanted: WantedStep) -> None:
        """Its slots are held."""
        with self._turn:
            self._wanted = wanted
            self._turn.notify_all()

    def roll_back(self, epoch: int, step: int) -> None:
        """The job has begun `epoch` anew from `step` at the latest: what an earlier epoch had after it is not stored, and not kept."""
        with self._turn:
            self._rolled_back = epoch, step
            self._turn.notify_all()

    def tell_silence(self) -> None:
        """Where the storage does not answer: this thread cannot say so itself. Asks the storage nothing."""
        work, silent_s = self._work, self._clock() - self._moved_at
        if silent_s > SILENT_S and work is not None and self._told is None:
            self._told = os.fspath(self._home), ""
            reason = f"it does not answer: nothing was taken there for {silent_s:.0f} s"
            self._tell(work, StorageFailure(os.fspath(self._home), "", reason, UNKNOWN), 0.0)

    # --- the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until it is stopped."""
        wait_s = 0.0
        while not self._stop.is_set():
            with self._turn:
                self._turn.wait_for(lambda: self._wanted is not None or self._stop.is_set() or self._was_overtaken(), wait_s if self._work is not None else None)
            if not self._stop.is_set():
                wait_s = self._reconciled()
        if self._work is not None:
            self._work.close()

    def interrupt(self) -> None:
        """From another thread, once `stop` is set."""
        with self._turn:
            self._turn.notify_all()

    def _reconciled(self) -> float:
        """Do what is missing; seconds until it is looked at again."""
        try:
            self._take_back()
            self._take()
            return self._advanced(self._work) if self._work is not None else 0.0
        except Exception:  # boundary: training and launcher go on without it
            log.exception("storing checkpoints from memory failed; it begins again")
            self._give_up()
            return LONGEST_S
        finally:
            self._moved_at = float("inf")

    def _was_overtaken(self) -> bool:
        """By a roll-back, what was stored last: it may have become a checkpoint after the coordinator put aside what was there."""
        epoch, step = self._rolled_back
        return self._last is not None and self._last[1] < epoch and self._last[2] > step

    def _take_back(self) -> None:
        """What a roll-back has overtaken."""
        with self._turn:
            (epoch, step), wanted = self._rolled_back, self._wanted
            overtaken = wanted is not None and wanted.epoch < epoch and wanted.step > step
            if overtaken:
                self._wanted = None
        if wanted is not None and overtaken:
            self._taken(wanted, None, "")
        if self._work is not None and self._work.wanted.epoch < epoch and self._work.wanted.step > step:
            self._give_up()
        if self._last is not None and self._was_overtaken():
            path, self._last = self._last[0], None
            with contextlib.suppress(OSError):
                checkpoint_directory.discard(path)

    def _take(self) -> None:
        """Out of the slots. The step before, if storage has refused it, is kept until the newer one is here whole."""
        with self._turn:
            wanted = self._wanted
        if wanted is None:
            return
        staged: list[StagedCopy] = []
        broken: CopyName | None = None
        why = ""
        try:
            self._stage(wanted, staged)
        except CopyGone as error:
            log.info("the checkpoint of step %d is not stored: %s; a later one is", wanted.step, error)
        except CopyChanged as error:
            broken, why = wanted.copies[len(staged)], str(error)
        except OSError as error:  # no memory for it: the next one that is due is taken
            self._tell_once(_Work(wanted, []), storage_failure(error, self._home), 0.0)
        with self._turn:
            if self._wanted is wanted:
                self._wanted = None
        self._taken(wanted, broken, why)
        if len(staged) == len(wanted.copies):
            self._give_up()
            self._work = _Work(wanted, staged)
        else:
            _Work(wanted, staged).close()

    def _stage(self, wanted: WantedStep, staged: list[StagedCopy]) -> None:
        files = self._files()
        try:
            for name in wanted.copies:
                if (segment := files.segment(name.file)) is not None:
                    segment.hold(name.slot, name.sequence, TAKE_S, SlotHold.STORED)
            staged.extend(StagedCopy(files, name) for name in wanted.copies)  # those before one that fails stay
        finally:
            files.close()

    def _advanced(self, work: _Work) -> float:
        self._moved()
        try:
            path = self._brought(work)
        except OSError as error:
            self._failures += 1
            return self._refuse(work, error)
        except (TypeError, ValueError, UnusableCheckpoint) as error:
            self._failures += 1
            self._tell_once(work, StorageFailure(os.fspath(self._home), "", f"its shards make no checkpoint: {error}", UNKNOWN), 0.0)
            self._give_up()
            return 0.0
        if path is None:
            return self._await_others(work)
        if self._failures:
            log.warning("the checkpoint of step %d is stored in %s, after %d attempt(s) that failed", work.wanted.step, path, self._failures)
        self._failures, self._told, self._last = 0, None, (path, work.wanted.epoch, work.wanted.step)
        self._give_up()
        self._clear(work.wanted.step)
        first = next((worker for copy, worker in zip(work.wanted.copies, work.wanted.workers, strict=True) if copy.rank == 0), "")
        self._stored(StoredStep(work.wanted.step, path, self._clock() - work.wanted.begun, first, work.wanted.epoch))
        return 0.0

    def _brought(self, work: _Work) -> StoragePath | None:
        """The manifest, once the checkpoint is whole; None: parts of other ranks are missing. Raises OSError; TypeError, ValueError for what can never be stored."""
        wanted, home = work.wanted, self._home
        home.mkdir(mode=0o700, parents=True, exist_ok=True)  # of memory that nobody else could read
        path = home / checkpoint_directory.manifest_name(wanted.step)
        if work.others_since is not None and self._is_published(path, work):
            return path
        for copy in work.staged:
            self._write(copy, work)
        ranks = writers(work.staged[0].table)
        parts = [home / checkpoint_directory.part_name(wanted.step, _run_id(wanted), rank, len(ranks)) for rank in ranks]
        there = {each.name for each in home.glob(f"step-{wanted.step:012d}.{_run_id(wanted)}.*{checkpoint_directory.PART}")}
        if work.others_since is None:
            work.others_since = self._clock()
        if not all(part.name in there for part in parts):
            return path if self._is_published(path, work) else None
        if not wanted.is_first and work.others_s(self._clock()) < TAKE_OVER_S:
            return None
        return checkpoint_writer.publish(home, parts, self._keep) or (path if self._is_published(path, work) else None)

    def _is_published(self, path: StoragePath, work: _Work) -> bool:
        """Whether the manifest names our shards."""
        try:
            named = {shard.name for shard in manifests.read(path).shards}
        except (FileNotFoundError, UnusableCheckpoint):
            return False
        return bool(work.written) and all(shard.name in named for shard in work.written.values())

    def _write(self, copy: StagedCopy, work: _Work) -> None:
        """The shard and the part of a rank, unless they are there."""
        wanted, home = work.wanted, self._home
        part = home / checkpoint_directory.part_name(wanted.step, _run_id(wanted), copy.name.rank, len(writers(copy.table)))
        if part in work.written or copy.name.rank not in writers(copy.table):
            return
        found = _part_there(part)
        if found is None:
            content = part_of(copy.table, wanted.epoch)
            found = home / checkpoint_directory.new_shard_name(wanted.step, wanted.epoch, copy.name.rank)
            self._write_part(copy, content, found, part)
        work.written[part] = found

    def _write_part(self, copy: StagedCopy, content: StoredPart, shard: StoragePath, part: StoragePath) -> None:
        written = shard_file.write_tensors(shard, [copy.content_of(placed, self._moved) for placed in content.tensors], copy.name.rank, sum_each=content.manifest.world_size > 1)
        try:
            object_path.put(part, manifests.encode(replace(content.manifest, shards=(written,)), part=True))
        except OSError:
            if manifests.is_without(part, [shard.name], part=True):  # else it is there, and the error came behind that
                with contextlib.suppress(OSError):
                    shard.unlink(missing_ok=True)
            raise

    def _await_others(self, work: _Work) -> float:
        waited_s = work.others_s(self._clock())
        if waited_s > OTHERS_LATE_S:
            reason = f"the parts of other ranks are not there after {waited_s:.0f} s: is it a directory that all nodes share?"
            self._tell_once(work, StorageFailure(os.fspath(self._home), "", reason, UNKNOWN), OTHERS_S[1])
        return min(OTHERS_S[1], max(OTHERS_S[0], waited_s / 10))

    def _give_up(self) -> None:
        """Its parts stay, for another launcher may be about to make the manifest of them, until a newer step is in storage."""
        if self._work is not None:
            self._left.append(self._work)
            self._work.close()
            self._work = None

    def _clear(self, stored: int) -> None:
        """Parts of ours that never became a checkpoint, and are older than one that is whole."""
        for work in self._left:
            for part, shard in work.written.items():
                with contextlib.suppress(OSError):
                    if work.wanted.step < stored and part.exists():  # with the manifest its parts are gone
                        part.unlink()
                        shard.unlink()
        self._left.clear()

    # --- what storage refuses --------------------------------------------------------------------------------------

    def _moved(self) -> None:
        self._moved_at = self._clock()
        if self._stop.is_set():
            raise InterruptedError("the launcher ends")

    def _refuse(self, work: _Work, error: OSError) -> float:
        """Tell it, if it is news; seconds until the next attempt."""
        delay = min(LONGEST_S, FIRST_S * 2.0 ** min(max(0, self._failures - 1), 16))
        if not self._stop.is_set():
            self._tell_once(work, storage_failure(error, self._home), delay)
        return delay

    def _tell_once(self, work: _Work, failure: StorageFailure, retry_s: float) -> None:
        if self._told != (failure.path, failure.errno):
            self._told = failure.path, failure.errno
            self._tell(work, failure, retry_s)

    def _tell(self, work: _Work, failure: StorageFailure, retry_s: float) -> None:
        wanted = work.wanted
        self._refused(StorageRefusal(wanted.step, next(iter(wanted.workers), ""), failure, sum(copy.payload for copy in wanted.copies), self._failures, retry_s))


def _run_id(wanted: WantedStep) -> str:
    """What the parts of one start of the job have in common; those that a script saves itself have another."""
    return hashlib.blake2b(f"{wanted.run} {wanted.epoch} memory".encode(), digest_size=8).hexdigest()


def _part_there(part: StoragePath) -> StoragePath | None:
    """The shard of a part that is there, whole as far as its size tells: a launcher that was killed may have written it."""
    try:
        [shard] = manifests.read(part, part=True).shards
        path = part.parent / shard.name
        return path if path.stat().st_size == shard.bytes else None
    except (FileNotFoundError, UnusableCheckpoint, ValueError):
        return None
