"""Loading from the segment of this worker: the newest copy that is whole, this process's part, and on all ranks the same step.

Where one rank's copy of that step is damaged it asks for those that another node has kept; where no step is whole on all ranks, all of them do.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from eagle_eye.training import state_tree

from . import cuda_copy, rank_agreement
from .fetched_copies import FetchedCopies
from .memory_layout import Shard, StepLimits, StoredTable, StoredTensor, has_other_values, local_of
from .memory_segment import (
    MOST_SLOTS,
    ROW,
    SLOTS,
    EmptySlot,
    MemorySegment,
    SlotContent,
    TornCopy,
    rows_of,
)
from .rank_agreement import CopyKey
from .row_sums import RowSums
from .state_copy import tensor_at

THREADS = 4
"""One does not reach the speed of the memory; of two processors two do."""
STEPS = MOST_SLOTS + SLOTS
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
    data_position: Any = None
    """Where the training reads on in its data, as `save` was told."""


@dataclass(frozen=True, slots=True)
class CopyTerms:
    """What a copy has to be besides, where one rank loads for all that hold the same. Both are given a state without its tensors (state_tree)."""

    misfit: Callable[[Any], str] = lambda _: ""
    """Why it is none for this training; '' if it is."""
    history: Callable[[Any], int] = lambda _: 0
    """Rises each time the training is rolled back: copies of a lower one than another has are of what was abandoned."""
    of_all_nodes: bool = False
    """Another node may have a newer one than this: it is asked in any case."""


ANY_COPY = CopyTerms()


@dataclass(frozen=True, slots=True)
class _WholeCopy:
    """A copy that was verified, or is to be."""

    content: SlotContent
    table: StoredTable
    segment: MemorySegment
    tier: str = "memory"


_Copies = dict[CopyKey, list[_WholeCopy]]
"""Those that may be used. Of one key there may be two: the worker's own, and what another node has kept of it."""


def restore(
    segment: MemorySegment | None, template: dict[str, Any], limits: StepLimits, shard: Shard | None, backup: FetchedCopies, terms: CopyTerms = ANY_COPY
) -> LoadedState | None:
    """The newest usable copy into the tensors of `template`. `shard`: whose it has to be; None: any will do. What is passed over is added to that of `backup`."""
    tensors, _ = state_tree.flatten(template, lambda value: isinstance(value, torch.Tensor))
    skipped = backup.passed_over
    usable = partial(_usable, tensors=tensors, limits=limits, shard=shard, skipped=skipped, terms=terms)
    copies = {} if segment is None else usable(segment)

    def fetch() -> None:
        """Behind those that are here. Once."""
        if not backup.was_asked:
            _fetch(backup, copies, usable, max(1, limits.at_least, 1 + max((key.step for key in copies), default=0)) if terms.of_all_nodes else 0)

    if terms.of_all_nodes:
        fetch()
    copies = _of_newest_history(copies, terms, skipped)
    with ThreadPoolExecutor(min(THREADS, len(os.sched_getaffinity(0))), "eagle-eye-memory-load") as threads:
        while (key := rank_agreement.agreed_copy(sorted(copies, reverse=True), STEPS)) is not None or not rank_agreement.on_all(backup.was_asked):
            if key is None:
                fetch()
                continue
            step, copy = key.step, _undamaged(copies[key], skipped, threads.map)
            if copy is None:
                del copies[key]
                fetch()
            if not rank_agreement.on_all(copy is not None) or copy is None:
                continue
            state = state_tree.unflatten(_filled(copy.segment, copy, tensors, threads.map), copy.table.rest)
            _log.info("the state of step %d was loaded from memory (%s, slot %d)", step, copy.segment.path, copy.content.slot)
            if skipped or copy.tier != "memory":
                backup.tell(step, copy.tier)
            return LoadedState(state, step, tuple(skipped), copy.table.data_position)
    return None


def _fetch(backup: FetchedCopies, copies: _Copies, usable: Callable[[MemorySegment], _Copies], newer_from: int) -> None:
    fetched = backup.fetch(newer_from)
    found = {} if fetched is None else usable(fetched)
    for key, each in found.items():
        copies.setdefault(key, []).extend(replace(copy, tier="neighbour") for copy in each)


def _usable(
    segment: MemorySegment, tensors: Mapping[str, torch.Tensor], limits: StepLimits, shard: Shard | None, skipped: list[str], terms: CopyTerms
) -> _Copies:
    """The copies whose description fits, the newest first."""
    found: _Copies = {}
    for slot in range(segment.slots):
        place = f"slot {slot} of {segment.path}"
        try:
            content = segment.read(slot)
            table = StoredTable.parse(content.table)
        except EmptySlot:
            continue
        except (TornCopy, ValueError, KeyError, TypeError, AttributeError) as error:
            _skip(skipped, place, str(error))
            continue
        why = _misfit(table, tensors, limits, shard) or terms.misfit(table.rest)
        if why:
            _skip(skipped, f"the copy of step {content.step} in {place}", why)
        else:
            found.setdefault(CopyKey(table.step, table.epoch), []).append(_WholeCopy(content, table, segment))
    for copies in found.values():
        copies.sort(key=lambda copy: -copy.content.sequence)
    return found


def _of_newest_history(copies: _Copies, terms: CopyTerms, skipped: list[str]) -> _Copies:
    """Without those of a training that was rolled back since, as others show."""
    newest = max((terms.history(copy.table.rest) for each in copies.values() for copy in each), default=0)
    kept: _Copies = {}
    for key, each in copies.items():
        for copy in each:
            if terms.history(copy.table.rest) == newest:
                kept.setdefault(key, []).append(copy)
            else:
                _skip(skipped, f"the copy of step {key.step} in slot {copy.content.slot} of {copy.segment.path}", "the training was rolled back behind it")
    return kept


def _undamaged(copies: list[_WholeCopy], skipped: list[str], spread: Callable[..., Any]) -> _WholeCopy | None:
    """The first of these, of one step, that is as it was written; those before it go."""
    while copies:
        copy = copies[0]
        why = _damage(copy.segment, copy, spread)
        if not why:
            return copy
        del copies[0]
        _skip(skipped, f"the copy of step {copy.content.step} in slot {copy.content.slot} of {copy.segment.path}", why)
    return None


def other_model(segment: MemorySegment, template: dict[str, Any], limits: StepLimits, shard: Shard | None) -> str:
    """Why none of the copies that might be gone on from fits this template; '' if one does, or there is none."""
    tensors, _ = state_tree.flatten(template, lambda value: isinstance(value, torch.Tensor))
    reasons: list[str] = []
    for slot in range(segment.slots):
        try:
            table = StoredTable.parse(segment.read(slot).table)
        except (TornCopy, ValueError, KeyError, TypeError, AttributeError):
            continue
        if not _unwanted(table, limits, shard):
            reasons.append(table.mismatch(tensors))
    return reasons[0] if reasons and all(reasons) else ""


def _misfit(table: StoredTable, tensors: Mapping[str, torch.Tensor], limits: StepLimits, shard: Shard | None) -> str:
    """Why a whole copy is not the one that is wanted."""
    return _unwanted(table, limits, shard) or table.mismatch(tensors)


def _unwanted(table: StoredTable, limits: StepLimits, shard: Shard | None) -> str:
    """Whatever the template is."""
    if excluded := limits.excluded(table.step, table.epoch):
        return excluded
    if not table.finite:
        return "it holds values that are not finite"
    if shard is not None and table.shard != shard:
        return f"it is rank {table.shard.rank} of {table.shard.world}, this is rank {shard.rank} of {shard.world}"
    return ""


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
