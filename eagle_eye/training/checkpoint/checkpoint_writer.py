"""Writes checkpoints: of one rank that has all of the state, or of all ranks, each with its shard.

A save of several ranks needs no collective and nobody waits: each rank writes its shard, then a manifest of its own (`.part`); the one that
finds the parts of all ranks there when it has written its own makes the checkpoint's manifest of them. Of a save that one rank does not finish
nothing becomes visible, and parts of two saves are never put together (save_attempts).
"""

import contextlib
import hashlib
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from eagle_eye.training import messages, object_path, state_tree
from eagle_eye.training.object_path import ObjectPath, StoragePath
from eagle_eye.training.save_retry import WAIT_S, SaveRetry, Unwritten
from eagle_eye.training.storage_failure import UNKNOWN, StorageFailure
from eagle_eye.training.thread_map import thread_map

from . import checkpoint_directory, distributed_tensor, json_position, save_attempts, shard_file
from . import manifest as manifests
from .checkpoint_directory import directory_of, step_number
from .checkpoint_retention import KEPT, CheckpointRetention
from .distributed_tensor import LocalTensor
from .manifest import DATA, Manifest, ManifestTensor, ShardFile, TensorPiece
from .part_merge import merged
from .tensor_regions import joined, whole

if TYPE_CHECKING:
    from torch import Tensor

_NAMED = 3
"""Tensors that a message names at most."""
_log = logging.getLogger("eagle_eye.checkpoint")
_told_not_finite: set[str] = set()
"""Tensors of this process that were told to hold values that are not finite."""


@dataclass(frozen=True, slots=True)
class PreparedCheckpoint:
    """One rank's part of a checkpoint, independent of the state that trains on."""

    home: StoragePath
    shards: tuple[Mapping[str, "Tensor"], ...]
    """Contiguous, in this process's memory. The second one and those behind it: further regions of tensors of which this rank holds more than one."""
    manifest: Manifest
    """Without its shards."""
    rank: int = 0
    run: str = ""
    """What the parts of all ranks have in common, and no other save has (save_attempts)."""
    keep: int = KEPT
    """Newest checkpoints that are kept, besides the newest finite one."""

    @property
    def step(self) -> int:
        """Of the checkpoint."""
        return self.manifest.step

    @property
    def needed_bytes(self) -> int:
        """Of its tensors; the manifest is small."""
        return sum(tensor.numel() * tensor.element_size() for shard in self.shards for tensor in shard.values())


def save(state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None = None, *, data_position: Any = None, keep: int = KEPT) -> StoragePath | None:
    """Write `state` (tensors, numbers, texts, None, in dicts, lists and tuples) as the checkpoint of `step`.

    One rank calls this. `directory`: a path, or a URL such as s3://bucket/prefix. `data_position`: where the job reads on in its data, anything that JSON holds. `keep`: so many of the
    newest checkpoints stay in the directory, and the newest finite one; older ones are deleted. Returns the manifest's path; or
    None if storage refused it, whatever its error: older checkpoints are untouched then, the launcher is told (event
    `checkpoint.failed`), and the same bytes are tried again in the background, after 1, 2, 4, … 60 s, until they are written or the
    next `save` begins. Where such an attempt hangs, since the storage does not answer, this one is left out after WAIT_S, told in the
    same way. A process that ends waits ten seconds more for them.
    Raises TypeError for what cannot be stored without pickle, TypeError or ValueError for whatever else is wrong with state, step or position: what is
    written, every reader takes.
    """
    step, keep = step_number(step), _kept(keep)
    with _retry.turn(WAIT_S) as free:
        if free:
            return _retry.save(replace(prepare(state, step, directory, data_position=data_position), keep=keep))
    leave_out(step, directory)
    return None


def leave_out(step: int, directory: str | os.PathLike[str] | None = None) -> None:
    """Tell the launcher that the checkpoint of `step` is not saved, since an earlier one is still being written."""
    _retry.leave_out(directory_of(directory).absolute(), step_number(step))


def save_or_raise(state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None = None) -> StoragePath:
    """As `save`, but the launcher is told and OSError is raised; trying again is the caller's."""
    step = step_number(step)
    with _retry.turn():
        return _retry.attempt(prepare(state, step, directory))


def save_shard(
    state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None = None, *, rank: int | None = None, world_size: int | None = None,
    run: str = "", writes_whole: bool | None = None, per_rank: dict[str, Any] | None = None, layout: Mapping[str, int] | None = None, data_position: Any = None,
    keep: int = KEPT,
) -> StoragePath | None:  # fmt: skip
    """Every rank calls this with its own part of the state; the last one of them makes the checkpoint visible. As `save` otherwise.

    A tensor has one name on all ranks, and a name means one tensor: what two ranks write of one name has to be the same values, or different regions of it.
    Of what is no tensor (numbers, texts) the first rank's counts; what differs belongs to `per_rank`.
    Of a DTensor a rank writes its shard (where ranks hold the same one, the first of them); `LocalTensor` says what a tensor that is cut by other means is. Tensors that are none are whole: the ranks with
    `writes_whole` write them, rank 0 alone if it is not given; with pipeline stages give it for the first data-parallel rank of each stage.
    `per_rank`: what this rank alone has, such as its random number generators. `layout`: how the job is cut, such as {"dp": 4, "pp": 2}.
    `rank`, `world_size`: torch's environment variables RANK and WORLD_SIZE if they are not given. `run`: a text that the ranks of this start of the job
    share, and no other start has, so that shards of two starts are never mixed; eagle-eye's run and epoch, or agreed by one broadcast, if it is
    not given. All ranks call this equally often for a step: parts of two attempts at it are never put together. Returns the path of what was written last: the
    checkpoint's manifest, or this rank's. Shards that do not fit together (two
    shapes of one tensor, a region that nobody wrote, or two ranks differently) are told as a checkpoint that failed.
    """
    step, keep = step_number(step), _kept(keep)
    rank = int(os.environ.get("RANK") or 0) if rank is None else rank
    world_size = int(os.environ.get("WORLD_SIZE") or 1) if world_size is None else world_size
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}, world_size={world_size}: give a rank from 0 to below the world size")
    run = _run_of_attempt(run, step, directory, rank) if world_size > 1 else ""
    with _retry.turn(WAIT_S) as free:
        if free:
            prepared = prepare(
                state, step, directory, rank=rank, world_size=world_size, first=rank == 0 if writes_whole is None else writes_whole, per_rank=per_rank,
                layout=layout, data_position=data_position,
            )  # fmt: skip
            return _retry.save(replace(prepared, run=run, keep=keep))
    leave_out(step, directory)
    return None


def _kept(keep: object) -> int:
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise ValueError(f"keep={keep!r}: give how many of the newest checkpoints stay, 1 or more")
    return keep


def prepare(
    state: dict[str, Any], step: int, directory: str | os.PathLike[str] | None = None, *, rank: int = 0, world_size: int = 1, first: bool = True,
    per_rank: dict[str, Any] | None = None, layout: Mapping[str, int] | None = None, data_position: Any = None,
) -> PreparedCheckpoint:  # fmt: skip
    """Copy what this rank writes. Raises TypeError, ValueError for what cannot be stored."""
    if not isinstance(state, dict):
        raise TypeError(f"the state is of type {type(state).__name__}: save a dict, such as {{'model': model.state_dict()}}")
    step = step_number(step)
    json_position.require_json(data_position)
    tensors, rest = state_tree.flatten(state, distributed_tensor.is_tensor)
    own, own_rest = state_tree.flatten({str(rank): per_rank}, distributed_tensor.is_tensor, "ranks") if per_rank else ({}, None)
    parts = {name: distributed_tensor.parts_of(tensor, first=first, name=name) for name, tensor in tensors.items()}
    parts |= {name: distributed_tensor.parts_of(tensor, first=True, name=name) for name, tensor in own.items()}
    shards: list[dict[str, Tensor]] = [{}]
    stored = {name: tensor for name, each in parts.items() if (tensor := _copy_into(shards, name, each)).pieces}
    odd = [name for shard in shards for name, copy in shard.items() if not _is_finite(copy)]
    manifest = Manifest(
        step=step, epoch=_epoch(), finite=not odd, saved=time.time(), shards=(), tensors=stored, rest=rest,
        world_size=world_size, layout=dict(layout or {}), data_position=data_position, ranks={str(rank): own_rest[str(rank)]} if own_rest else {},
    )  # fmt: skip
    _require_readable(manifest, len(shards))
    _tell_not_finite(step, odd)
    return PreparedCheckpoint(directory_of(directory), tuple(shards), manifest, rank)


def _require_readable(manifest: Manifest, shards: int) -> None:
    """What no reader would take is the state's fault, and raises before anything is written. Raises TypeError, ValueError."""
    named = tuple(ShardFile(f"{number}{DATA}", 0, 0) for number in range(shards))
    try:
        manifests.encode(replace(manifest, shards=named), part=manifest.world_size > 1)
    except ValueError as error:
        remedy = "" if manifest.world_size > 1 else ". Of a tensor that is cut save all of it, or call save_shard on every rank"
        raise ValueError(f"no checkpoint can be made of the state of step {manifest.step}: {error}{remedy}") from error


def _tell_not_finite(step: int, odd: Sequence[str]) -> None:
    """Once of each tensor."""
    new = [name for name in odd if name not in _told_not_finite]
    if new:
        _told_not_finite.update(new)
        more = f" and {len(new) - _NAMED} further ones hold" if len(new) > _NAMED else " holds" if len(new) == 1 else " hold"
        _log.warning("the checkpoint of step %d will not be loaded: %s%s values that are not finite; an older one is kept", step, ", ".join(map(repr, new[:_NAMED])), more)


def _copy_into(shards: list[dict[str, "Tensor"]], name: str, parts: Sequence[LocalTensor]) -> ManifestTensor:
    """What this rank writes of a tensor, each region into a shard of its own; without pieces if it is nothing."""
    import torch

    written = [part for part in parts if part.written_here and part.region.size]
    if not math.prod(parts[0].shape) and any(part.written_here for part in parts):  # without elements, however it is cut: readers want to find it
        empty = parts[0].tensor
        written = [LocalTensor(empty.new_empty(parts[0].shape, device="cpu"), whole(parts[0].shape), parts[0].shape)]
    pieces: list[TensorPiece] = []
    for region, dimension, numbers in joined([part.region for part in written]):
        copies = [written[number].tensor.detach().to("cpu", copy=True).contiguous() for number in numbers]
        shards += [{}] if len(pieces) == len(shards) else []
        shards[len(pieces)][name] = torch.cat(copies, dimension) if len(copies) > 1 else copies[0]
        pieces.append(TensorPiece(len(pieces), region))
    return ManifestTensor(shard_file.dtype_of(parts[0].tensor, name), parts[0].shape, tuple(pieces))


def _is_finite(tensor: "Tensor") -> bool:
    from .memory_layout import all_finite  # needs torch, which whoever saves tensors has loaded

    return not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0 or all_finite(tensor)


def _epoch() -> int:
    """In which this process was started."""
    return int(os.environ.get("EAGLE_EYE_EPOCH") or 0)


def _run_of_attempt(run: str, step: int, directory: str | os.PathLike[str] | None, rank: int) -> str:
    """What the parts of this call have in common on all ranks; it counts from here on, whatever becomes of it."""
    run = _run_id(run or _run_of_this_start())
    return save_attempts.run_of(run, save_attempts.begin(directory_of(directory), run, rank, step))


def _run_of_this_start() -> str:
    run, epoch = os.environ.get("EAGLE_EYE_RUN"), os.environ.get("EAGLE_EYE_EPOCH")
    return f"{run} {epoch}" if run and epoch else _agreed_run()


@cache
def _agreed_run() -> str:
    import torch
    import torch.distributed as dist

    if not dist.is_initialized():
        raise ValueError("save_shard of several ranks: give run=, a text that the ranks of this start of the job share, and no other start has")
    device = "cuda" if "nccl" in dist.get_backend() else "cpu"
    number = torch.tensor(int.from_bytes(os.urandom(7), "big"), dtype=torch.int64, device=device)
    dist.broadcast(number, 0)
    return str(number.item())


def _run_id(run: str) -> str:
    return hashlib.blake2b(run.encode(), digest_size=8).hexdigest()


def _write(prepared: PreparedCheckpoint) -> StoragePath:
    """Raises OSError, and then leaves nothing behind but what another rank may have named already."""
    path, manifest = put(prepared)
    home = prepared.home
    if manifest.world_size == 1:
        published(path, manifest, prepared.keep)
        return path
    try:
        return publish(home, [home / each for each in _part_names(prepared)], prepared.keep) or path
    except ValueError as error:
        reason = f"the shards of its ranks make no checkpoint: {error}"
        _log.error("no checkpoint of step %d in %s: %s", prepared.step, home, reason)
        _report_failure(prepared, StorageFailure(os.fspath(home), "", reason, UNKNOWN), 0, 0.0)
        return path


def put(prepared: PreparedCheckpoint) -> tuple[StoragePath, Manifest]:
    """Write the shards, and then the manifest of a single rank or the part of one of several; deletes nothing, tells nobody. Raises OSError."""
    home, several = prepared.home, prepared.manifest.world_size > 1
    home.mkdir(parents=True, exist_ok=True)
    if several:
        save_attempts.delete_earlier(home, prepared.step, prepared.run)
    manifest = replace(prepared.manifest, shards=tuple(_write_shards(prepared)))
    path = home / (_part_names(prepared)[prepared.rank] if several else checkpoint_directory.manifest_name(prepared.step))
    try:
        object_path.put(path, manifests.encode(manifest, part=several))
    except OSError:
        _take_back(prepared, path, [shard.name for shard in manifest.shards])
        raise
    if several:
        save_attempts.written(home, prepared.rank, prepared.step, path)
    return path, manifest


def _write_shards(prepared: PreparedCheckpoint) -> list[ShardFile]:
    """Raises OSError, and then leaves nothing behind."""
    home, several, names, files = prepared.home, prepared.manifest.world_size > 1, list[str](), list[ShardFile]()
    try:
        for tensors in prepared.shards:
            names.append(checkpoint_directory.new_shard_name(prepared.step, prepared.manifest.epoch, prepared.rank))
            files.append(shard_file.write(home / names[-1], tensors, prepared.rank, sum_each=several))
    except OSError:
        _delete_shards(home, names)  # no manifest would ever name them, and there is no room
        raise
    return files


def _take_back(prepared: PreparedCheckpoint, path: StoragePath, shards: Sequence[str]) -> None:
    """Delete the shards of a manifest that storage refused, unless it may be there: the renaming was done before the error, or the request was before its answer was lost.

    A part that is gone was put together with the others, or never there: the manifest of all of them says which. An object store may still be about to put it. What is left over
    goes with the next sweep.
    """
    several = prepared.manifest.world_size > 1
    whole_path = prepared.home / checkpoint_directory.manifest_name(prepared.step)
    if isinstance(path, ObjectPath) or not manifests.is_without(path, shards, part=several):
        return
    if not several or manifests.is_without(whole_path, shards):
        _delete_shards(prepared.home, shards)


def _delete_shards(home: StoragePath, shards: Sequence[str]) -> None:
    for name in shards:
        with contextlib.suppress(OSError):
            (home / name).unlink(missing_ok=True)


def _part_names(prepared: PreparedCheckpoint) -> list[str]:
    size = prepared.manifest.world_size
    return [checkpoint_directory.part_name(prepared.step, prepared.run, rank, size) for rank in range(size)]


def publish(home: StoragePath, paths: Sequence[StoragePath], keep: int | CheckpointRetention = KEPT) -> StoragePath | None:
    """Make the manifest of the whole checkpoint if the parts of all ranks are there: two ranks that both find them write the same. None: they are not.

    Raises ValueError for parts that are damaged or do not fit together; OSError.
    """
    threads = 1
    if isinstance(home, ObjectPath):  # one question in place of one for each rank
        threads, there = object_path.THREADS, home.sizes()
        if not all(path.name in there for path in paths):
            return None
    try:
        manifest = merged(thread_map(lambda path: manifests.read(path, part=True), paths, threads))
    except FileNotFoundError:
        return None  # another rank is not done, or all were and another rank has published
    path = home / checkpoint_directory.manifest_name(manifest.step)
    object_path.put(path, manifests.encode(manifest))
    thread_map(_delete, paths, threads)
    published(path, manifest, keep)
    return path


def _delete(part: StoragePath) -> None:
    with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)


def published(path: StoragePath, manifest: Manifest, keep: int | CheckpointRetention = KEPT) -> None:
    """The checkpoint is visible: what is too old goes, and the launcher hears of it. Does not raise: whatever keeps older ones from being deleted costs no save."""
    try:
        checkpoint_directory.prune(path.parent, keep, published=path)
        _not_pruned.pop(os.fspath(path.parent), None)
    except Exception as error:  # noqa: BLE001 - what is in the directory may have been written by anybody
        if _not_pruned.get(os.fspath(path.parent)) != str(error):  # once, not with each save
            _not_pruned[os.fspath(path.parent)] = str(error)
            _log.warning("older checkpoints in %s are not deleted: %s; it is tried again with the next one", path.parent, str(error) or repr(error))
    messages.tell_launcher("checkpoint", step=manifest.step, path=str(path), finite=manifest.finite, epoch=manifest.epoch)


def _report_failure(unwritten: Unwritten, failure: StorageFailure, attempt: int, retry_s: float) -> None:
    messages.tell_launcher(
        "checkpoint_failed", step=unwritten.step, path=failure.path, errno=failure.errno, reason=failure.reason, free_bytes=failure.free_bytes,
        needed_bytes=unwritten.needed_bytes, attempt=attempt, retry_s=retry_s,
    )  # fmt: skip


_not_pruned: dict[str, str] = {}
"""Directory → why older checkpoints in it could not be deleted, as it was told."""
_retry = SaveRetry(_write, _report_failure)
"""Of this process."""
