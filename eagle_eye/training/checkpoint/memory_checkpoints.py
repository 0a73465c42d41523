"""Checkpoints in the memory of the node: copied beside the next step, found by the worker's successor.

    memory = MemoryCheckpoints([optimizer])
    found = memory.load(state())
    start = found.step if found else 0
    for step in range(start, steps):
        ...                               # forward, backward
        optimizer.step()                  # waits for what is not copied yet
        memory.save(state(), step + 1)    # returns at once

Between two steps of the optimizer its parameters do not change: they are copied meanwhile, and `optimizer.step()` waits for the rest. What no
given optimizer guards (buffers, random generators) is copied by `save` itself. A step that is part of a CUDA graph does not say when it begins: where none
was seen since the save before, the GPU does not go on before the copy is done. Nothing of it reaches the training as an error: where the node
has no memory for it, a save is left out and the launcher is told. One client of a process has the file, until it is closed. Without a launcher that gives a place there are no such checkpoints.
"""

import atexit
import contextlib
import errno
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from . import cuda_copy, roll_backs, save_attempts, storage_restore
from .checkpoint_directory import step_number
from .cuda_sums import RowKernel, row_kernel
from .device_part import DeviceCopy, StateChanged
from .fetched_copies import FetchedCopies
from .memory_layout import Guards, Shard, StateLayout, StepLimits, StoredTable, is_wrapper, local_of
from .memory_report import FailureReport
from .memory_restore import ANY_COPY, CopyTerms, LoadedState, other_model, restore
from .memory_segment import (
    SLOTS,
    VARIABLE,
    MemorySegment,
    SlotStamp,
    TornCopy,
    slot_bytes,
    slot_to_write,
)
from .state_copy import StateCopy

COPIES_VARIABLE = "EAGLE_EYE_CHECKPOINT_COPIES"
"""How many states the memory is to hold: one more where they are copied to another node. From the launcher."""
WAIT_S = 5.0
"""A step of the optimizer waits so long for a piece that somebody is copying (1 MiB), then the copy is given up."""
END_S = 5.0
"""A process that ends waits so long for the copy that is under way, and one that loads so long for another one to give its file back."""
_LEFT = 1 << 62
"""Stands for the step of a copy that is not to be gone on from: newer than any that is saved."""
_log = logging.getLogger("eagle_eye.checkpoint")
_NO_ROOM = frozenset({errno.ENOMEM, errno.ENOSPC})
_clients: "weakref.WeakSet[MemoryCheckpoints]" = weakref.WeakSet()
_owners: "dict[str, MemoryCheckpoints]" = {}
"""Who of this process has which file: the lock of a file excludes other processes only, and ends when this one closes any descriptor of it."""


class MemoryCheckpoints:
    """Of one worker. `optimizers`: those that write to the state, and nothing else does but between `wait` and `save`.

    `replicated`: all ranks hold the same state (plain data parallelism), so that a copy of another rank, or of a world of another size, will do.
    """

    def __init__(self, optimizers: Iterable[Any] = (), path: str | os.PathLike[str] | None = None, *, replicated: bool = False) -> None:
        given = os.fspath(path) if path is not None else os.environ.get(VARIABLE, "")
        self._path = Path(given).absolute() if given else None
        self._place = os.path.realpath(given)
        """Of the file, whatever links lead there."""
        self._optimizers: list[Any] = []
        self._replicated = replicated
        self.shard = Shard.here()
        """Whose state it is; an elastic job says it anew for each of its epochs, ..."""
        self.epoch = roll_backs.own_epoch()
        """... as it does this."""
        self._rolled_back = roll_backs.given()
        self._report = FailureReport(given)
        self._segment: MemorySegment | None = None
        self._pinned = False
        self._ready: MemorySegment | None = None
        """The segment that is ready for copies from GPUs, ..."""
        self._kernels: dict[torch.device, RowKernel] = {}
        """... which make the sums themselves."""
        self._copy: StateCopy | None = None
        self._thread: threading.Thread | None = None
        self._wanted_slots = self._slots = int(os.environ.get(COPIES_VARIABLE) or SLOTS)
        """As many as the launcher asks for; and as many as there was memory for."""
        self._sequence = 0
        self._whole: dict[int, SlotStamp] = {}
        """What is in the slots, by their number; without those that are being written, or hold nothing whole."""
        self.safe_step = -1
        """The newest step that is whole in memory, and finite; -1: none. A kill at any moment leaves it, or a newer one."""
        self.left_out = 0
        """Saves that were not begun: another one was under way, or there was no memory."""
        self.waited_s = 0.0
        """Seconds that steps of the optimizers have waited for copies."""
        self._foreign = False
        """Under our name are copies of another model: they stay until there are two of this one."""
        self._hooks: list[Any] = []
        self._stepped: set[int] = set()
        """Optimizers, by number, that were seen to begin a step since the last save."""
        self.guard(optimizers)
        atexit.register(self._end)
        _clients.add(self)

    @property
    def has_place(self) -> bool:
        """Whether there is memory to save to: not without a launcher, and not after `close`."""
        return self._path is not None

    def guard(self, optimizers: Iterable[Any]) -> None:
        """These optimizers write to the state, in place of those given before: for who has them later than the state that is to be loaded."""
        self.wait()
        for hook in self._hooks:
            hook.remove()
        self._optimizers, self._stepped = list(optimizers), set()
        self._hooks = [optimizer.register_step_pre_hook(self._before_step) for optimizer in self._optimizers]

    # --- save --------------------------------------------------------------------------------------------------

    def save(self, state: dict[str, Any], step: int, *, caller_waits: bool = False, data_position: Any = None) -> bool:
        """Begin to copy the state as the checkpoint of `step`, the first one still to do. False if it is left out.

        That happens while the save before is not done, while memory is being reserved (the first save, and when the state has grown), while
        all but the newest copy are needed (one is on its way to another node, one is what all nodes have there), and after a failure, for 1, 2, 4, … 60 s. `caller_waits`: the caller calls `wait` before anything changes the state: all of it is copied
        beside the training then. `data_position`: where the training reads on in its data, anything that JSON holds. Raises TypeError for what a checkpoint cannot hold, TypeError and ValueError for what is no step.
        """
        if self._path is None:
            return False
        step = step_number(step)
        layout = StateLayout(state, self._guards(caller_waits), data_position)
        try:
            begun = self._begin(layout, step)
        except Exception as error:  # noqa: BLE001 - training goes on without it
            self._failed(error, step, self._slots * layout.payload_bytes)
            begun = False
        self.left_out += not begun
        return begun

    def prepare(self, state: dict[str, Any]) -> bool:
        """Reserve the memory for such a state now, before the training begins: 0.6 s a GiB of memory. False if there is none."""
        if self._path is None:
            return False
        layout = StateLayout(state)
        self._join(None)
        if not self._is_ready(layout):
            self._reserve(layout)
        return self._is_ready(layout)

    def wait(self) -> None:
        """Until the whole state is copied (not: until it is checked), and may be changed."""
        self._wait(None)

    def finish(self) -> None:
        """Until the save under way is done."""
        self._join(None)

    def close(self) -> None:
        """Wait for the save under way and let go of the memory; what is there stays for a successor."""
        self._join(None)
        self.guard([])
        atexit.unregister(self._end)
        self._release()
        self._give_up_path()
        self._path = None

    def _begin(self, layout: StateLayout, step: int) -> bool:
        if self._is_busy() or self._report.is_delayed():
            return False
        if not self._is_ready(layout):
            self._start(lambda: self._reserve(layout, step), on_gpu=layout.on_gpu)
            return False
        assert self._segment is not None
        segment, slot = self._segment, slot_to_write(self._whole, self._segment.slots, step, self._segment.is_held)
        if slot is None:
            return False
        self._whole.pop(slot, None)
        segment.clear(slot)
        offset = segment.payload_at(slot, layout.payload_bytes)
        copy = StateCopy(layout.tensors, segment.memory, segment.address, offset, layout.payload_bytes, self._device_copy(layout))
        self._copy = copy
        try:
            copy.begin()
            self._start(lambda: self._finish(copy, layout, step, slot), on_gpu=layout.on_gpu)
        except Exception as error:  # `save` tells it; also a limit of processes: no thread can be started
            copy.fail(error)
            copy.settle()
            raise
        unseen, self._stepped = set(range(len(self._optimizers))) - self._stepped, set()
        if layout.on_gpu:
            for optimizer in unseen:
                self._wait(optimizer)
        return True

    def _finish(self, copy: StateCopy, layout: StateLayout, step: int, slot: int) -> None:
        """In the thread: copy the rest, and make it visible."""
        try:
            assert self._segment is not None
            sums, infinite = copy.finish()
            self._segment.stamp(slot, step, self._sequence + 1, layout.table(step, not infinite, self.shard, replicated=self._replicated, epoch=self.epoch), sums, layout.payload_bytes, finite=not infinite)
            self._written(slot, SlotStamp(step, self._sequence + 1), finite=not infinite)
        except Exception as error:  # noqa: BLE001 - it must not reach the training
            copy.fail(error)
            with contextlib.suppress(Exception):  # it is told; nothing may write to the memory any more
                copy.settle()
            self._failed(error, step, self._slots * layout.payload_bytes)
            return
        finally:
            if self._copy is copy:
                self._copy = None  # it keeps the tensors
        self._report.succeeded(step)
        self._report.not_finite(step, infinite, self.safe_step)

    def _written(self, slot: int, stamp: SlotStamp, *, finite: bool) -> None:
        """It is visible. What is newer than its step is of a training that was rolled back: nobody is to go on from that, if this one can be gone on from."""
        assert self._segment is not None
        self._sequence = stamp.sequence
        abandoned = [other for other, there in self._whole.items() if finite and there.step > stamp.step]
        for other in abandoned:
            self._segment.clear(other)
            del self._whole[other]
        if finite and self._segment.has_name:
            self.safe_step, self._foreign = stamp.step, False
        self._whole[slot] = stamp if finite else SlotStamp(_LEFT, stamp.sequence)

    def _start(self, work: Callable[[], None], *, on_gpu: bool) -> None:
        def run() -> None:
            if on_gpu:
                cuda_copy.keep_apart()
            work()

        thread = threading.Thread(target=run, name="eagle-eye-memory-checkpoint", daemon=True)
        thread.start()
        self._thread = thread

    def _is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _join(self, wait_s: float | None) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def _device_copy(self, layout: StateLayout) -> DeviceCopy | None:
        if not layout.on_gpu:
            return None
        return cuda_copy.CudaCopy(layout.gpus, self._kernels)

    # --- what waits --------------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        number = next((index for index, ours in enumerate(self._optimizers) if ours is optimizer), None)
        if cuda_copy.is_captured():  # the step is done when its graph is replayed, and nobody is told of that
            if self._copy is not None:
                self._copy.fail(StateChanged("a step of its optimizer was captured in a CUDA graph meanwhile"))
            return
        if number is not None:
            self._stepped.add(number)
        self._wait(number)

    def _wait(self, optimizer: int | None) -> None:
        copy = self._copy
        if copy is None:
            return
        began = time.perf_counter()
        try:
            copy.wait(optimizer, WAIT_S)
        except Exception as error:  # noqa: BLE001 - the step goes on, and the copy does not count
            copy.fail(error)
        if copy.is_copied:
            self._copy = None
        self.waited_s += time.perf_counter() - began

    def _guards(self, caller_waits: bool) -> Callable[[torch.Tensor], Guards]:
        """Which optimizers write to a tensor: by its memory, which a state_dict's tensors share."""
        owners: dict[int, set[int]] = {}
        for index, optimizer in enumerate(self._optimizers):
            for tensor in _tensors_of(optimizer):
                if is_wrapper(local_of(tensor)):
                    continue  # no state can hold it
                owners.setdefault(_memory_of(tensor), set()).add(index)
        everybody = frozenset({-1})

        def guards_of(tensor: torch.Tensor) -> Guards:
            return frozenset(owners.get(_memory_of(tensor), ())) or (everybody if caller_waits else frozenset())

        return guards_of

    # --- memory ------------------------------------------------------------------------------------------------

    def _has_room(self, layout: StateLayout) -> bool:
        segment = self._segment
        if segment is None or (self._foreign and segment.has_name) or segment.slots < self._slots or not segment.is_visible():
            return False
        return segment.has_room(layout.table_bytes, layout.payload_bytes)

    def _is_ready(self, layout: StateLayout) -> bool:
        """Room, and what copies from a GPU need: into a predecessor's memory, which is not pinned yet, they would be made while the training waits."""
        return self._has_room(layout) and (not layout.on_gpu or self._ready is self._segment)

    def _reserve(self, layout: StateLayout, step: int = -1) -> None:
        """A segment with room for this state, that of the predecessor if it has. Does not raise."""
        assert self._path is not None
        try:
            try:
                self._open()
            except OSError as error:
                if error.errno != errno.EINVAL:  # of another version, or no segment at all: replaced
                    raise
            self._slots = self._wanted_slots
            if not self._has_room(layout):
                self._make(layout)
            self._map(layout)
        except Exception as error:  # noqa: BLE001 - training goes on without it
            self._failed(error, step, self._slots * layout.payload_bytes)
            if self._segment is None:
                self._give_up_path()

    def _take_path(self) -> None:
        """Raises OSError where another client of this process has it."""
        if _owners.setdefault(self._place, self) is not self:
            raise OSError(errno.EAGAIN, "another MemoryCheckpoints of this process uses it: close() that one first", self._place)

    def _give_up_path(self) -> None:
        if _owners.get(self._place) is self:
            del _owners[self._place]

    def _make(self, layout: StateLayout) -> None:
        """Anew. Raises OSError."""
        self._take_path()
        try:
            self._make_beside(layout)
        except OSError as error:
            if not self._foreign or error.errno not in _NO_ROOM:
                raise
            _log.warning("the copies of another model in %s are written over: there is no memory for others beside them", self._path)
            self._foreign, self._slots = False, self._wanted_slots
            if not self._has_room(layout):
                self._make_beside(layout)

    def _make_beside(self, layout: StateLayout) -> None:
        """Where the node has no memory for the slots that are wanted, with two, or that of the predecessor stays. Raises OSError."""
        assert self._path is not None
        if self.safe_step < 0 and not (self._foreign and self._segment is not None and self._segment.has_name):
            self._release()  # it holds nothing that is to stay: its room is needed
            if not self._foreign:
                self._path.unlink(missing_ok=True)
        size, worker, copies = slot_bytes(layout.table_bytes, layout.payload_bytes), os.environ.get("EAGLE_EYE_WORKER", ""), 1 + self._foreign
        try:
            segment = MemorySegment.create(self._path, size, worker, self._slots, copies=copies)
        except OSError as error:
            if error.errno not in _NO_ROOM or self._slots <= SLOTS:
                raise
            self._slots = SLOTS
            needed = self._wanted_slots * layout.payload_bytes
            if self._has_room(layout):
                self._report.reduced(error, SLOTS, self._wanted_slots, needed)
                return
            segment = MemorySegment.create(self._path, size, worker, SLOTS, copies=copies)
            self._report.reduced(error, SLOTS, self._wanted_slots, needed)
        self._release()
        self._segment, self._whole = segment, {}

    def _map(self, layout: StateLayout) -> None:
        assert self._segment is not None
        self._segment.populate()
        if layout.on_gpu and not self._pinned:
            self._pinned = cuda_copy.pin(self._segment.address, len(self._segment.memory))
        made = {device: kernel for device in layout.gpus - self._kernels.keys() if (kernel := row_kernel(device)) is not None}
        self._kernels = {**self._kernels, **made}
        self._ready = self._segment if layout.on_gpu else None

    def _open(self, wait_s: float = 0.0) -> None:
        """The predecessor's segment, if there is one; tried for so long while another process holds it. Raises OSError if it is not ours."""
        if self._segment is not None or self._path is None:
            return
        self._take_path()
        try:
            self._segment = MemorySegment.open(self._path, wait_s=wait_s)
        except FileNotFoundError:
            return
        finally:
            if self._segment is None:
                self._give_up_path()
        safe = SlotStamp(-1, -1)
        for slot in range(self._segment.slots):
            try:
                content = self._segment.read(slot)
                table = StoredTable.parse(content.table)
            except (TornCopy, ValueError, KeyError, TypeError, AttributeError):
                continue
            finite = table.finite and not roll_backs.abandoned(self._rolled_back, table.epoch, table.step)
            stamp = SlotStamp(content.step, content.sequence)
            self._whole[slot] = stamp if finite else SlotStamp(_LEFT, content.sequence)
            safe = max(safe, stamp, key=lambda each: each.sequence) if finite else safe
        self._sequence, self.safe_step = max((stamp.sequence for stamp in self._whole.values()), default=self._sequence), -1 if self._foreign else safe.step

    def _release(self) -> None:
        segment, self._segment, self._ready = self._segment, None, None
        if segment is None:
            return
        if self._pinned:
            cuda_copy.unpin(segment.address)
            self._pinned = False
        segment.close()

    def _failed(self, error: Exception, step: int, needed: int) -> None:
        self._report.failed(error, step, needed, self.safe_step)

    # --- load --------------------------------------------------------------------------------------------------

    def load(self, template: dict[str, Any], *, at_most: int | None = None, at_least: int = 0, terms: CopyTerms = ANY_COPY) -> LoadedState | None:
        """Copy the newest whole state into the tensors of `template`; None if there is none, and then nothing was changed.

        The result has its step, and the state: the template's tensors, new ones for what the template lacks (an optimizer has none before its first step), and the stored values.
        `at_most` (default EAGLE_EYE_RESUME_STEP; below 0: no limit): the highest step to take; `at_least`: the lowest, where the training has another checkpoint, of the step before that.
        In a job of several ranks all call this, after torch.distributed is initialized, and load the same step, the newest that all of them hold whole.
        """
        if self.shard.world > 1 and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            _log.warning("nothing is loaded from memory: the ranks have to agree on a step; initialize torch.distributed before")
            return None
        limits = StepLimits(int(os.environ.get("EAGLE_EYE_RESUME_STEP") or -1) if at_most is None else at_most, at_least, self._rolled_back)
        self._join(None)
        try:
            self._open(END_S)
        except (OSError, ValueError) as error:
            _log.warning("the checkpoint in memory %s cannot be used: %s", self._path, error)
        backup = FetchedCopies(self._path, self.shard, limits.at_most, replicated=self._replicated)
        try:
            found = restore(self._segment, template, limits, None if self._replicated else self.shard, backup, terms)
            if found is None:
                found = self._load_stored(template, limits, backup)
        finally:
            backup.close()
        self._leave(found.step if found is not None else limits.at_most)
        if found is None:
            self._keep_foreign(template, limits)
        else:
            save_attempts.take_back(None, self.shard.rank, found.step)
        return found

    def _keep_foreign(self, template: dict[str, Any], limits: StepLimits) -> None:
        """A mistake in the template is to cost nobody the copies of a long training within its first step."""
        why = other_model(self._segment, template, limits, None if self._replicated else self.shard) if self._segment is not None else ""
        if why:
            _log.warning("the copies in %s are of another model, and stay until two of this one are whole: %s", self._path, why)
            self._foreign, self.safe_step = True, -1

    def _leave(self, step: int) -> None:
        """The training goes on from this step, or from an older one; below 0: that is not known. What is newer is written over first."""
        if step < 0:
            return
        kept = {slot: stamp for slot, stamp in self._whole.items() if stamp.step <= step}
        self._whole = {slot: kept.get(slot, SlotStamp(_LEFT, stamp.sequence)) for slot, stamp in self._whole.items()}
        self.safe_step = max((stamp.step for stamp in kept.values()), default=-1)

    def _load_stored(self, template: dict[str, Any], limits: StepLimits, backup: FetchedCopies) -> LoadedState | None:
        """What the launchers have stored of the copies that are gone."""
        home = storage_restore.folder_given()
        found = storage_restore.restore(template, home, limits, self.shard, replicated=self._replicated) if home is not None else None
        if found is None:
            backup.tell(-1, "")
            return None
        backup.tell(found.step, "storage", found.skipped)
        return LoadedState(found.state, found.step, (*backup.passed_over, *found.skipped), found.data_position)

    def _end(self) -> None:
        """At the end of the process."""
        self._join(END_S)

    def forget(self) -> None:
        """In a forked child, which has no thread, and whose training, if any, is not this one: nothing is saved there."""
        self._path = self._segment = self._ready = self._copy = self._thread = None
        self._pinned = False


def _tensors_of(optimizer: Any) -> Iterable[torch.Tensor]:
    """Parameters and state: what a step may change."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield parameter
            yield from (value for value in optimizer.state.get(parameter, {}).values() if isinstance(value, torch.Tensor))


def _memory_of(tensor: torch.Tensor) -> int:
    return int(local_of(tensor).untyped_storage().data_ptr())


def _forget_all() -> None:
    _owners.clear()
    for client in _clients:
        client.forget()


os.register_at_fork(after_in_child=_forget_all)
