"""Loading from the segment of this worker: the newest copy that is whole, this process's part, and on all ranks the same step.

Where one rank's copy of that step is damaged it asks for those that another node has kept; where no step is whole on all ranks, all of them do.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from eagle_eye.training import state_tree

from . import cuda_copy, rank_agreement
from .fetched_copies import FetchedCopies
from .memory_layout import Shard, StepLimits, StoredTable, StoredTensor, has_other_values, local_of
from .memory_segment import (
    ROW,
    SLOTS,
    SLOTS_WITH_BACKUP,
    MemorySegment,
    SlotContent,
    TornCopy,
    rows_of,
)
from .row_sums import RowSums
from .state_copy import tensor_at

THREADS = 4
"""One does not reach the speed of the memory; of two processors two do."""
STEPS = SLOTS_WITH_BACKUP + SLOTS
"""A rank may have so many whole: in its own memory, and fetched from another node."""
_PIECE = 1 << 24
_log = logging.getLogger("eagle_eye.checkpoint")


@dataclass(frozen=True, slots=True)
class LoadedState:
    """What was loaded."""

    state: dict[str, Any]
    step: int
    skipped: tuple[str, ...]
    """Newer copies that could not be used, and why."""


@dataclass(frozen=True, slots=True)
class _WholeCopy:
    """A copy that was verified, or is to be."""

    content: SlotContent
    table: StoredTable
    segment: MemorySegment
    tier: str = "memory"


def restore(segment: MemorySegment | None, template: dict[str, Any], limits: StepLimits, shard: Shard | None, backup: FetchedCopies) -> LoadedState | None:
    """The newest usable copy into the tensors of `template`. `shard`: whose it has to be; None: any will do."""
    tensors, _ = state_tree.flatten(template, lambda value: isinstance(value, torch.Tensor))
    skipped: list[str] = []
    copies = {} if segment is None else _usable(segment, tensors, limits, shard, skipped)

    def fetch() -> None:
        """Steps that are whole here stay. Once."""
        if backup.was_asked:
            return
        fetched = backup.fetch()
        found = {} if fetched is None else _usable(fetched, tensors, limits, shard, skipped)
        copies.update({step: replace(copy, tier="neighbour") for step, copy in found.items() if step not in copies})
        skipped.extend([backup.why] if backup.why and backup.source else ())

    with ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0))), "eagle-eye-memory-load") as threads:
        while (step := rank_agreement.agreed_step(sorted(copies, reverse=True), STEPS)) >= 0 or not rank_agreement.on_all(backup.was_asked):
            if step < 0:
                fetch()
                continue
            copy = copies[step]
            why = _damage(copy.segment, copy, threads.map)
            if why:
                del copies[step]
                _skip(skipped, f"the copy of step {step} in slot {copy.content.slot} of {copy.segment.path}", why)
                fetch()
            if not rank_agreement.on_all(not why):
                continue
            state = state_tree.unflatten(_filled(copy.segment, copy, tensors, threads.map), copy.table.rest)
            _log.info("the state of step %d was loaded from memory (%s, slot %d)", step, copy.segment.path, copy.content.slot)
            if skipped or copy.tier != "memory":
                backup.tell(step, copy.tier, "; ".join(skipped))
            return LoadedState(state, step, tuple(skipped))
    if skipped:
        backup.tell(-1, "", "; ".join(skipped))
    return None


def _usable(segment: MemorySegment, tensors: Mapping[str, torch.Tensor], limits: StepLimits, shard: Shard | None, skipped: list[str]) -> dict[int, _WholeCopy]:
    """By step: the copies whose description fits. Of two of one step the newer one."""
    found: dict[int, _WholeCopy] = {}
    for slot in range(segment.slots):
        place = f"slot {slot} of {segment.path}"
        try:
            content = segment.read(slot)
            table = StoredTable.parse(content.table)
        except (TornCopy, ValueError, KeyError, TypeError, AttributeError) as error:
            _skip(skipped, place, str(error))
            continue
        why = _misfit(table, tensors, limits, shard)
        if why:
            _skip(skipped, f"the copy of step {content.step} in {place}", why)
        elif table.step not in found or found[table.step].content.sequence < content.sequence:
            found[table.step] = _WholeCopy(content, table, segment)
    return found


def _misfit(table: StoredTable, tensors: Mapping[str, torch.Tensor], limits: StepLimits, shard: Shard | None) -> str:
    """Why a whole copy is not the one that is wanted."""
    if excluded := limits.excluded(table.step):
        return excluded
    if not table.finite:
        return "it holds values that are not finite"
    if shard is not None and table.shard != shard:
        return f"it is rank {table.shard.rank} of {table.shard.world}, this is rank {shard.rank} of {shard.world}"
    return table.mismatch(tensors)


def _damage(segment: MemorySegment, copy: _WholeCopy, spread: Callable[..., Any]) -> str:
    """Which part of the payload is not as it was written; '' if all is."""
    content = copy.content
    sums = RowSums(segment.memory, content.payload_at, content.payload_bytes)
    count = rows_of(content.payload_bytes)
    step = -(-count // THREADS) or 1
    rows = [row for row in spread(lambda first: sums.differ(content.sums, first, min(count, first + step)), range(0, count, step)) if row >= 0]
    if not rows:
        return ""
    at = rows[0] * ROW
    name = next((name for name, stored in copy.table.tensors.items() if stored.offset < at + ROW and stored.offset + stored.bytes > at), "?")
    return f"it was changed since it was written (digest of bytes {at} to {at + ROW}, in {name!r})"


def _filled(segment: MemorySegment, copy: _WholeCopy, tensors: Mapping[str, torch.Tensor], spread: Callable[..., Any]) -> dict[str, torch.Tensor]:
    """The template's tensors, and new ones, with the stored values."""
    filled: dict[str, torch.Tensor] = {}
    pieces: list[tuple[int, int, int]] = []
    to_gpu: list[tuple[torch.Tensor, torch.Tensor]] = []
    for name, stored in copy.table.tensors.items():
        at = copy.content.payload_at + stored.offset
        target = tensors.get(name)
        if target is None:
            target = torch.empty(stored.shape, dtype=stored.dtype)
        filled[name] = target
        local = local_of(target)
        is_plain = local.is_contiguous() and not has_other_values(local)
        if local.device.type == "cpu" and is_plain:
            pieces += _pieces(local.data_ptr(), segment.address + at, stored)
        elif local.device.type == "cuda" and is_plain and stored.bytes:
            source = tensor_at(segment.memory, at, torch.uint8, (stored.bytes,))
            to_gpu += zip(local.view(-1).view(torch.uint8).split(_PIECE), source.split(_PIECE), strict=True)
        elif stored.bytes:
            local.copy_(tensor_at(segment.memory, at, stored.dtype, stored.shape))
    list(spread(lambda piece: ctypes.memmove(*piece), pieces))
    if to_gpu:
        with cuda_copy.CudaFill(_PIECE) as fill:
            list(spread(lambda pair: fill.copy(*pair), to_gpu))
    return filled


def _pieces(target: int, source: int, stored: StoredTensor) -> Sequence[tuple[int, int, int]]:
    return [(target + at, source + at, min(_PIECE, stored.bytes - at)) for at in range(0, stored.bytes, _PIECE)]


def _skip(skipped: list[str], what: str, why: str) -> None:
    skipped.append(f"{what}: {why}")
    _log.warning("%s cannot be used, an older one is tried: %s", what, why)
