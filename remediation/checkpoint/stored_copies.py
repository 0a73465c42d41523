"""Which copies of this node go to storage, and what the job is told of it.

Called by the thread that watches the copies (`look`), under its lock; a thread of its own brings them there (StorageReconciler). A slot is held only
until its copy is taken out of it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from eagle_eye.training.checkpoint.checkpoint_retention import KEPT, NEWEST_KEPT, CheckpointRetention
from eagle_eye.training.checkpoint.roll_backs import RollBacks, abandoned
from eagle_eye.training.object_path import StoragePath
from eagle_eye.training.save_retry import LONGEST_S, room_text
from eagle_eye.training.storage_failure import UNKNOWN, StorageFailure, size_text
from eagle_eye.types import Layout

from .copy_files import CopyFiles, CopyName
from .copy_states import Place, Seen, Stored, StoredMark, newest_stored, with_stored
from .storage_interval import StorageInterval
from .storage_reconciler import StorageReconciler, StorageRefusal, StoredStep, WantedStep

log = logging.getLogger(__name__)

EmitStored = Callable[[str, str, Mapping[str, str]], object]
"""(event, message, attributes): checkpoint.saved or checkpoint.failed."""
GATHER_S = 15.0
"""The copies of all workers of this node are whole within so long of the first one, or the step is left out."""


class _Gathered(NamedTuple):
    """Copies of one step, held, until those of all workers of this node are there."""

    step: int
    since: float
    copies: dict[str, CopyName]
    """By file."""


class StoredSteps:
    """Which steps are known to be in storage, of the history that goes on. Any thread may call it."""

    def __init__(self, layout: Callable[[], Layout | None], keep: CheckpointRetention) -> None:
        """`layout`: that of the job as it is now; `keep`: what stays in storage, of which no more is counted on than of what a script itself stores."""
        self._layout, self._kept = layout, min(KEPT, keep.newest)
        self._known: Stored = ()
        self._turn = threading.Lock()

    def add(self, step: int, epoch: int) -> bool:
        """A checkpoint that was made in that epoch is whole there; whether that is news."""
        with self._turn:
            before = self.newest()
            self._known = with_stored(self._known, StoredMark(step, epoch), self._rolled_back(), self._kept)
            return self.newest() > before

    def newest(self) -> StoredMark:
        """Behind a roll-back at most the step from which the job went on."""
        return newest_stored(self._known, self._rolled_back())

    def _rolled_back(self) -> RollBacks:
        layout = self._layout()
        return layout.rolled_back if layout is not None else ()


class StoredCopies:
    """Of one launcher."""

    def __init__(
        self, home: StoragePath, node: str, run: str, interval: StorageInterval, files: Callable[[], CopyFiles], emit: EmitStored,
        stored: Callable[[int, int], object], broken: Callable[[CopyName, str], None], stop: threading.Event, keep: CheckpointRetention = NEWEST_KEPT,
    ) -> None:  # fmt: skip
        """`emit` is called in any thread; `stored`: with a step that is whole in storage, and its epoch; `broken`: with a copy that does not fit its sums."""
        self._home, self._node, self._run, self._emit, self._stored, self._broken = home, node, run, emit, stored, broken
        self.interval = interval
        self._reconciler = StorageReconciler(home, files, self._was_stored, self._was_refused, self._was_taken, stop, keep=keep)
        self.run, self.interrupt = self._reconciler.run, self._reconciler.interrupt
        self._gathered: _Gathered | None = None
        self._seen: dict[str, int] = {}
        """File → sequence of the newest copy that was seen."""
        self._epoch = 0
        self._holding: dict[str, int] = {}
        """File → slot that is to stay as it is."""
        self._safe_step = -1
        self._rolled_back: RollBacks = ()
        self.failing = ""
        """Why the newest that was due is not stored; '' once one is. Read by other threads."""
        self._stored_now = threading.Condition()

    def is_free(self, place: Place) -> bool:
        """Another slot of its file is not held for storage: held is one of a file."""
        return self._holding.get(place.file, place.slot) == place.slot

    def look(
        self, seen: Iterable[Seen], name_of: Callable[[Place], CopyName | None], hold: Callable[[CopyName], None], layout: Layout, now: float, *, common: int | None = None,
    ) -> None:  # fmt: skip
        """The slots of this node's workers are like this now. `name_of`: the whole copy in a slot; `hold`: it stays as it is for GATHER_S.

        `common`: the step that all nodes have at this moment, where that is known: no other is stored then, since workers may have left different saves out.
        """
        self._reconciler.tell_silence()
        whole = [each for each in seen if each.sequence >= 0]
        if layout.epoch != self._epoch:
            before, self._epoch, self._gathered, self._rolled_back = self._epoch, layout.epoch, None, layout.rolled_back
            self.interval.epoch_began(layout)
            if layout.rolled_back:  # also of an epoch that this node was away in
                self._reconciler.roll_back(*layout.rolled_back[-1])
                if before < layout.rolled_back[-1][0]:
                    self._safe_step = -1  # what was stored may have been put aside: a new state of a lower step is none that is there
            for each in whole:  # of an earlier epoch
                self._seen[each.place.file] = max(each.sequence, self._seen.get(each.place.file, -1))
            return
        for each in sorted(whole, key=lambda each: each.step):
            if each.sequence > self._seen.get(each.place.file, -1) and common in {None, each.step}:
                self._seen[each.place.file] = each.sequence
                self._new(each, name_of, hold, now)
        self._want(layout, now)

    def _new(self, seen: Seen, name_of: Callable[[Place], CopyName | None], hold: Callable[[CopyName], None], now: float) -> None:
        busy = self._reconciler.is_busy
        if self.interval.step_seen(seen.step, now, busy=busy) and not busy:
            self._gathered = _Gathered(seen.step, now, {})
            self._holding.clear()
        if self._gathered is None or self._gathered.step != seen.step:
            return
        name = name_of(seen.place)
        if name is not None and name.sequence == seen.sequence and (name.rank == 0 or not name.replicated):  # of what all ranks have alike one is stored
            hold(name)
            self._gathered.copies[name.file] = name
            self._holding[name.file] = name.slot

    def _want(self, layout: Layout, now: float) -> None:
        gathered = self._gathered
        if gathered is None:
            return
        wanted = self._wanted_of(gathered.copies.values(), layout, now)
        if wanted is not None:
            self._gathered = None
            self._reconciler.want(wanted)
        elif now - gathered.since > GATHER_S:  # it is left out
            self._gathered = None
            self._holding.clear()

    def _wanted_of(self, names: Iterable[CopyName], layout: Layout, now: float) -> WantedStep | None:
        """Of copies of one step; None if those of some workers are missing, or rank 0's, where all have the same, is on another node."""
        here = {place.rank: place.worker for place in layout.placements if place.node == self._node}
        copies = tuple(sorted((name for name in names if name.rank == 0 or not name.replicated), key=lambda each: each.rank))
        expected = {0} if any(copy.replicated for copy in copies) else set(here)
        if not copies or {copy.rank for copy in copies} != expected:
            return None
        return WantedStep(copies[0].step, layout.epoch, self._run, copies, tuple(here.get(copy.rank, "") for copy in copies), now)

    def store_newest(self, seen: Iterable[Seen], name_of: Callable[[Place], CopyName | None], layout: Layout, wait_s: float) -> None:
        """The workers have ended, and the memory goes with the job: bring the newest step that all of them have whole to storage. Waits so long at the most."""
        steps: dict[int, list[CopyName]] = {}
        for each in seen:
            name = name_of(each.place) if each.sequence >= 0 else None
            if name is not None and name.step > self._safe_step:
                steps.setdefault(name.step, []).append(name)
        wanted = (self._wanted_of(names, layout, time.monotonic()) for _, names in sorted(steps.items(), reverse=True))
        newest = next(filter(None, wanted), None)
        if newest is None:
            return
        self._reconciler.want(newest)
        with self._stored_now:
            if not self._stored_now.wait_for(lambda: self._safe_step >= newest.step, wait_s):
                log.warning("the checkpoint of step %d in memory was not stored within %g s, and goes with the job; the newest that is stored is that of step %d", newest.step, wait_s, self._safe_step)

    def cannot_read(self, step: int, worker: str, why: str) -> None:
        """The copy of a worker (step -1: its file) turns out to be none: told until something is stored, where it was to be stored."""
        gathers = self._gathered is not None and self._gathered.step == step
        if self.failing or not (gathers or step < 0):
            return
        self._was_refused(StorageRefusal(step, worker, StorageFailure(os.fspath(self._home), "", why, UNKNOWN), 0, 0, 0.0))

    # --- in the reconciler's thread ----------------------------------------------------------------------------------

    def _was_taken(self, wanted: WantedStep, broken: CopyName | None, why: str) -> None:
        for name in wanted.copies:
            self._holding.pop(name.file, None)
        if broken is not None:
            self._broken(broken, why)

    def _was_stored(self, found: StoredStep) -> None:
        self.failing = ""
        self.interval.stored(found.seconds)
        self._stored(found.step, found.epoch)
        with self._stored_now:
            if not abandoned(self._rolled_back, found.epoch, found.step):  # else it is put aside in a moment
                self._safe_step = max(self._safe_step, found.step)
            self._stored_now.notify_all()
        if not found.worker:
            return
        attributes = {"step": str(found.step), "path": os.fspath(found.path), "finite": "True", "worker": found.worker, "seconds": f"{found.seconds:.4g}"} | self.advice()
        text = f"checkpoint of step {found.step}, from memory, in {found.seconds:.3g} s"
        log.info("%s: %s%s", text, found.path, self.advice_text())
        self._emit("checkpoint.saved", text, attributes)

    def _was_refused(self, refusal: StorageRefusal) -> None:
        self.failing = refusal.failure.reason
        failure, safe = refusal.failure, f"that of step {self._safe_step} is safe there" if self._safe_step >= 0 else "none is there yet"
        log.error(
            "the checkpoint of step %d is not stored in %s: %s; it needs %s, %s; %s, training goes on, and it is tried again",
            refusal.step, failure.path, failure.reason, size_text(refusal.needed_bytes), room_text(failure), safe,
        )  # fmt: skip
        attributes = {
            "step": refusal.step, "path": failure.path, "errno": failure.errno, "reason": failure.reason, "free_bytes": failure.free_bytes, "needed_bytes": refusal.needed_bytes,
            "attempt": refusal.attempt, "retry_s": min(refusal.retry_s, LONGEST_S), "worker": refusal.worker, "safe_step": self._safe_step,
        }  # fmt: skip
        text = f"the checkpoint of step {refusal.step} in memory could not be stored in {failure.path}: {failure.reason}"
        self._emit("checkpoint.failed", text, {name: str(value) for name, value in attributes.items()})

    # --- the interval -------------------------------------------------------------------------------------------------

    def advice(self) -> dict[str, str]:
        """Attributes: the interval in use and the best one, with what is lost at it."""
        cost, advice = self.interval.cost(), self.interval.advice(time.monotonic())
        used = {"interval_s": f"{self.interval.every * self.interval.step_s:.4g}", "interval_steps": str(self.interval.every)}
        if cost is None or advice is None:
            return used
        return used | {"cost_s": f"{cost.cost_s:.4g}", "mtbf_s": f"{advice.mtbf_s:.4g}", "advised_s": f"{advice.interval_s:.4g}", "advised_loss": f"{advice.overhead:.3g}", "observed": advice.observed}

    def advice_text(self) -> str:
        """The same for the log."""
        cost, advice = self.interval.cost(), self.interval.advice(time.monotonic())
        if cost is None or advice is None:
            return ""
        how = f"it held training up by {cost.cost_s:.3g} s" if cost.measured else f"counted as if training stood still for its {cost.cost_s:.3g} s, until enough steps were seen"
        return f"; {how}; best every {advice.interval_s:.3g} s, which costs {advice.overhead:.2%} of the time ({advice.observed})"
