"""The last tier of checkpoints in memory: what the launchers have stored of them, for a job that has lost both copies in memory.

All ranks load the same step, the newest that every one of them can read whole. What a rank alone had (plain tensors, random generators, its place
in the data) it gets back; a world of another size gets what rank 0 had. Tensors that are cut by DTensor may be cut in another way here.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eagle_eye.training import state_tree
from eagle_eye.training.object_path import ObjectPath, StoragePath

from . import checkpoint_reader, distributed_tensor, rank_agreement, shard_file
from .checkpoint_directory import FROM_MEMORY, directory_of
from .checkpoint_reader import SkippedCheckpoint
from .distributed_tensor import LocalTensor
from .manifest import ManifestTensor
from .memory_layout import Shard, StepLimits, why_not_fillable
from .saved_checkpoint import SavedCheckpoint
from .tensor_regions import whole

TOLD = 8
"""So many steps a rank tells the others, the newest: a directory has three, unless more are to be kept (checkpoint_retention.py)."""
ASK_AGAIN_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds until an object store that refused is asked again."""
_log = logging.getLogger("eagle_eye.checkpoint")


@dataclass(frozen=True, slots=True)
class StoredState:
    """What was loaded from storage."""

    state: dict[str, Any]
    step: int
    path: StoragePath
    """Of the manifest."""
    skipped: tuple[str, ...]
    """What could not be used, and why."""
    data_position: Any = None
    """Rank 0's."""


class _Misfit(ValueError):
    """It is whole, and of another state than the template asks for."""


def folder_given() -> StoragePath | None:
    """Where the launcher of this worker stores them; None without a launcher."""
    directory = os.environ.get("EAGLE_EYE_CHECKPOINT_DIR", "")
    return directory_of(directory) / FROM_MEMORY if directory else None


def restore(template: dict[str, Any], home: StoragePath, limits: StepLimits, shard: Shard, *, replicated: bool) -> StoredState | None:
    """The newest stored step into the tensors of `template`; None, for all ranks, if there is none that all can read. Nothing is changed before it is verified."""
    tensors, _ = state_tree.flatten(template, distributed_tensor.is_tensor)
    skipped: list[SkippedCheckpoint] = []
    found = {entry.step: entry for entry in _candidates(home, limits.at_most, skipped) if not limits.excluded(entry.step)}
    while (step := rank_agreement.agreed_step(sorted(found, reverse=True), TOLD)) >= 0:
        entry = found.pop(step)
        fill: Callable[[], dict[str, Any]] | None = None
        try:
            fill = _read(entry, tensors, shard, replicated=replicated)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            checkpoint_reader.skip(skipped, entry.path, str(error))
        if rank_agreement.on_all(fill is not None) and fill is not None:
            state = fill()
            _log.info("the state of step %d was loaded from storage (%s)", step, entry.path)
            return StoredState(state, step, entry.path, tuple(f"{each.path}: {each.reason}" for each in skipped), entry.manifest.data_position)
    return None


def _candidates(home: StoragePath, at_most: int, skipped: list[SkippedCheckpoint]) -> list[SavedCheckpoint]:
    """None where the storage does not say; an object store is asked again before, since the network may be back in a moment."""
    for wait_s in (*(ASK_AGAIN_S if isinstance(home, ObjectPath) else ()), None):
        try:
            return list(checkpoint_reader.candidates(home, at_most, skipped))
        except OSError as error:
            if wait_s is None:
                checkpoint_reader.skip(skipped, home, str(error))
                break
            _log.warning("%s does not say which checkpoints it has, it is asked again in %g s: %s", home, wait_s, error)
            threading.Event().wait(wait_s)
    return []


def _read(entry: SavedCheckpoint, tensors: Mapping[str, Any], shard: Shard, *, replicated: bool) -> Callable[[], dict[str, Any]]:
    """Verify all that this rank needs, and return what puts it in place. Raises ValueError, KeyError, TypeError, OSError."""
    manifest = entry.manifest
    own = "" if replicated or manifest.world_size != shard.world or str(shard.rank) not in manifest.ranks else f"ranks.{shard.rank}."
    rest: Any = manifest.ranks[str(shard.rank)] if own else checkpoint_reader.rest_of(entry)
    stored_names = {name.removeprefix(own): name for name in state_tree.references(rest)}
    wanted = {stored_names.get(name, name): distributed_tensor.local(tensor, first=True, name=name) for name, tensor in tensors.items()}
    new = {stored for name, stored in stored_names.items() if name not in tensors}
    _require_same(manifest.tensors, wanted, new)
    pieces = list(checkpoint_reader.pieces_of(entry, lambda name, region: region if name in new else wanted[name].region.overlap(region) if name in wanted else None))

    def fill() -> dict[str, Any]:
        filled: dict[str, Any] = {stored_names.get(name, name): tensor for name, tensor in tensors.items()}
        with torch.no_grad():
            for name, _, piece, part in pieces:
                if name in new:
                    filled[name] = part.clone()
                else:
                    checkpoint_reader.copy_region(part, piece.region, wanted[name].tensor, wanted[name].region)
        for name in new - filled.keys():  # an empty one has no piece that overlaps
            filled[name] = torch.empty(manifest.tensors[name].shape, dtype=shard_file.torch_dtype(manifest.tensors[name].dtype))
        state: dict[str, Any] = state_tree.unflatten(filled, rest)
        return state

    return fill


def _require_same(stored: Mapping[str, ManifestTensor], wanted: Mapping[str, LocalTensor], new: set[str]) -> None:
    for name, each in wanted.items():
        if why := why_not_fillable(each.tensor, name):
            raise _Misfit(why)
        distributed_tensor.require_writable(each.tensor, name)
        there = stored.get(name)
        if there is None:
            raise _Misfit(f"it has no tensor {name!r}")
        kind = shard_file.dtype_of(each.tensor, name)
        if (there.dtype, there.shape) != (kind, each.shape):
            raise _Misfit(f"tensor {name!r} is {there.dtype} {list(there.shape)} there, and {kind} {list(each.shape)} here")
    for name in sorted(new):
        pieces = stored[name].pieces
        if len(pieces) != 1 or pieces[0].region != whole(stored[name].shape):
            raise _Misfit(f"the distributed tensor {name!r} is not in the template")
