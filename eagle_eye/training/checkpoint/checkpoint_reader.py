"""Loads checkpoints: the newest whole one, whoever wrote it and however many ranks did.

Each shard is compared with its digest before a number of it is used. One that is torn or was changed is passed over for an older whole
step, and what is loaded says which steps were passed over and why.
"""

import errno
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from eagle_eye.errors import ConfigError
from eagle_eye.training import state_tree
from eagle_eye.training.object_path import ObjectPath, StoragePath

from . import distributed_tensor, save_attempts, shard_file
from .checkpoint_directory import contents, directory_of, names
from .distributed_tensor import LocalTensor
from .manifest import ELEMENT_BITS, Manifest, ManifestTensor, TensorPiece, UnusableCheckpoint
from .saved_checkpoint import SavedCheckpoint
from .shard_file import ByteSpan
from .tensor_regions import Region, whole

if TYPE_CHECKING:
    from torch import Tensor

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError)
"""What a damaged checkpoint raises."""
_log = logging.getLogger("eagle_eye.checkpoint")
_NAMED = 3
"""Tensors that a message names at most."""
_LISTINGS = 3
"""A directory is listed so often at most, where another process saves and deletes meanwhile."""
_TOLD = 64
"""So many of its newest steps a rank tells the others."""
_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, slots=True)
class SkippedCheckpoint:
    """A checkpoint that was not loaded."""

    path: StoragePath
    reason: str


@dataclass(frozen=True, slots=True)
class RestoredCheckpoint:
    """What `restore` has loaded, and what it passed over for it."""

    step: int
    """The first step still to do."""
    path: StoragePath
    """Of the manifest."""
    state: Any
    """The template, its tensors filled; numbers and texts are the checkpoint's."""
    data_position: Any
    """As it was saved."""
    per_rank: Any
    """What this rank alone had; None where another number of ranks saved, or it had nothing."""
    skipped: tuple[SkippedCheckpoint, ...]
    """Newer ones, newest first."""


def load(directory: str | os.PathLike[str] | None = None, at_most: int | None = None) -> tuple[dict[str, Any], int] | None:
    """State and step of the newest whole, finite checkpoint; None if there is none. All of the state, whatever number of ranks saved it.

    `at_most` (default EAGLE_EYE_RESUME_STEP; below 0: no limit) is the highest number to take. One that is torn
    or was changed on disk is named in a warning and skipped. Raises OSError where storage does not say what it has: an object store refuses, the directory may
    not be read or is none. Only where there is no directory, or nothing in it that can be loaded, is there no checkpoint.
    """
    return newest_usable(directory_of(directory), at_most, [], lambda entry: (load_whole(entry), entry.step))


def newest_usable(home: StoragePath, at_most: int | None, skipped: list[SkippedCheckpoint], use: Callable[[SavedCheckpoint], _Loaded]) -> _Loaded | None:
    """What `use` makes of the newest checkpoint for which it does not raise what a damaged one raises; None if there is none.

    Where none could be used, and files have come or gone meanwhile, another process saves here and has deleted what was listed: it is listed again.
    `skipped`: what was passed over at last. Raises OSError where storage does not say what it has.
    """
    for _ in range(_LISTINGS):
        skipped.clear()
        listed = _listed(home)
        for entry in candidates(home, at_most, skipped):
            try:
                return use(entry)
            except _UNREADABLE as error:
                _require_answer(entry.path, error)
                skip(skipped, entry.path, str(error))
        if _listed(home) == listed:
            break
    return None


def _listed(home: StoragePath) -> set[str]:
    """Manifests and shards: a step that is saved again has new ones."""
    return {path.name for path in names(home, "step-*")}


def load_whole(entry: SavedCheckpoint) -> dict[str, Any]:
    """All of one checkpoint's state. Raises UnusableCheckpoint for one that is damaged; OSError."""
    tensors: dict[str, Tensor] = {}
    for name, stored, piece, part in pieces_of(entry, lambda _, region: region):
        if len(stored.pieces) == 1:
            tensors[name] = part
        else:
            copy_region(part, piece.region, tensors.setdefault(name, _empty(stored, part)), whole(stored.shape))
    state: dict[str, Any] = state_tree.unflatten(tensors, rest_of(entry))
    return state


def restore(
    template: dict[str, Any], directory: str | os.PathLike[str] | None = None, at_most: int | None = None, *, rank: int | None = None, strict: bool = True,
    agree: bool | None = None,
) -> RestoredCheckpoint | None:
    """Fill the tensors of `template` (nested as the state that was saved) from the newest whole, finite checkpoint; None if there is none.

    Every rank calls this with what it is to have: ordinary tensors, DTensors, LocalTensors, or a part of the layers; the number of ranks, and how tensors were cut
    when they were saved, need not be the same. Nothing of the template is written before all that it needs is read and found whole: that much
    memory is needed besides. `rank`: of this process, for what each rank alone had (RANK if not given). `strict`: the checkpoint has no further tensors.
    `agree`: all ranks of torch.distributed's default group call this, and load one step, the newest that each of them can use: it is agreed on before anything is
    written. If it is not given they do where the template has a DTensor or LocalTensor; with ordinary tensors alone this rank may be the only one that loads, and asks nobody. Give it on all ranks alike where only some of them have such tensors.
    What one rank raises, the others raise too. Raises OSError as `load` does, TypeError for a tensor that has no region of its own here (`DTensor` with summands), ValueError for one that cannot be filled (`expand`), ConfigError where the newest whole checkpoint is of another model: a tensor that it has not, or with another shape or data type.
    """
    tensors, rest = state_tree.flatten(template, distributed_tensor.is_tensor)
    wanted = {name: distributed_tensor.local(tensor, first=True, name=name) for name, tensor in tensors.items()}
    for name, part in wanted.items():
        distributed_tensor.require_writable(part.tensor, name)
    rank = int(os.environ.get("RANK") or 0) if rank is None else rank
    skipped: list[SkippedCheckpoint] = []

    def verified(entry: SavedCheckpoint) -> Callable[[], RestoredCheckpoint]:
        pieces, of_rank = _needed(wanted, entry, strict), _of_rank(entry, str(rank))
        nested = state_tree.merged(state_tree.only(rest_of(entry), tensors), rest)

        def filled() -> RestoredCheckpoint:
            _fill(wanted, pieces)
            return RestoredCheckpoint(entry.step, entry.path, state_tree.unflatten(tensors, nested), entry.manifest.data_position, of_rank, tuple(skipped))

        return filled

    home = directory_of(directory)
    together = any(map(distributed_tensor.is_part, tensors.values())) if agree is None else agree
    fill = (_newest_of_all if together else newest_usable)(home, at_most, skipped, verified)
    if fill is None:
        return None
    found = fill()
    save_attempts.take_back(home, rank, found.step)
    return found


def _newest_of_all(home: StoragePath, at_most: int | None, skipped: list[SkippedCheckpoint], use: Callable[[SavedCheckpoint], _Loaded]) -> _Loaded | None:
    """As `newest_usable`: the newest one for which `use` raises on no rank. All ranks call it."""
    from . import rank_agreement

    if not rank_agreement.is_distributed():
        return newest_usable(home, at_most, skipped, use)
    for _ in range(_LISTINGS):
        skipped.clear()
        listed = _on_all_ranks(lambda: (_listed(home), list(candidates(home, at_most, skipped))))
        found = {entry.step: entry for entry in listed[1]}
        while (step := rank_agreement.agreed_step(sorted(found, reverse=True), _TOLD)) >= 0:
            for newer in sorted((each for each in found if each > step), reverse=True):
                skip(skipped, found.pop(newer).path, "not all ranks have it")
            used = _used_by_all(found.pop(step), skipped, use)
            if used is not None:
                return used
        if rank_agreement.on_all(_on_all_ranks(lambda: _listed(home)) == listed[0]):
            break
    return None


def _used_by_all(entry: SavedCheckpoint, skipped: list[SkippedCheckpoint], use: Callable[[SavedCheckpoint], _Loaded]) -> _Loaded | None:
    from . import rank_agreement

    def attempt() -> _Loaded | None:
        try:
            return use(entry)
        except _UNREADABLE as error:
            _require_answer(entry.path, error)
            skip(skipped, entry.path, str(error))
            return None

    used = _on_all_ranks(attempt)
    if rank_agreement.on_all(used is not None):
        return used
    if used is not None:
        skip(skipped, entry.path, "another rank cannot use it")
    return None


def _on_all_ranks(work: Callable[[], _Loaded]) -> _Loaded:
    """What `work` returns here. Where it raises on one rank it raises on all: they would wait for that one without end."""
    from . import rank_agreement

    error: Exception | None = None
    done: list[_Loaded] = []
    try:
        done.append(work())
    except Exception as raised:  # noqa: BLE001 - the other ranks hear of it first
        error = raised
    if rank_agreement.on_all(error is None):
        return done[0]
    is_of_configuration = not rank_agreement.on_all(not isinstance(error, ConfigError))
    if error is not None:
        raise error
    told = "no checkpoint is loaded, since another rank cannot go on; what it has raised says why"
    raise ConfigError(told) if is_of_configuration else OSError(errno.EIO, told)


def candidates(home: StoragePath, at_most: int | None, skipped: list[SkippedCheckpoint]) -> Iterator[SavedCheckpoint]:
    """Newest first. What is passed over is added to `skipped`."""
    limit = int(os.environ.get("EAGLE_EYE_RESUME_STEP") or -1) if at_most is None else at_most
    readable, unreadable = contents(home)
    for each in reversed(unreadable):
        skip(skipped, each.path, each.reason)
    for entry in reversed(readable):
        if 0 <= limit < entry.step:
            continue
        if not entry.finite:
            skip(skipped, entry.path, "it holds values that are not finite")
            continue
        yield entry


def _require_answer(path: StoragePath, error: Exception) -> None:
    """Raises the error of an object store that refused: it says nothing of the checkpoint, and an older one would be refused as well."""
    if isinstance(path, ObjectPath) and isinstance(error, OSError):
        raise error


def skip(skipped: list[SkippedCheckpoint], path: StoragePath, reason: str) -> None:
    """Pass one over, with a warning."""
    _log.warning("checkpoint %s cannot be used, an older one is tried: %s", path, reason)
    skipped.append(SkippedCheckpoint(path, reason))


_Piece = tuple[str, ManifestTensor, TensorPiece, "Tensor"]


def _needed(wanted: Mapping[str, LocalTensor], entry: SavedCheckpoint, strict: bool) -> list[_Piece]:
    """What fills these tensors, read and verified."""
    if entry.manifest.version > 1:
        _require_same_model(wanted, entry.manifest.tensors, entry.path, strict)
    found = list(pieces_of(entry, lambda name, region: wanted[name].region.overlap(region) if name in wanted else None))
    if entry.manifest.version == 1:
        _require_same_model(wanted, {name: each for name, each, _, _ in found}, entry.path, strict)
    return found


def _fill(wanted: Mapping[str, LocalTensor], pieces: Sequence[_Piece]) -> None:
    import torch

    with torch.no_grad():
        for name, _, piece, part in pieces:
            if name in wanted:
                copy_region(part, piece.region, wanted[name].tensor, wanted[name].region)


def rest_of(entry: SavedCheckpoint) -> dict[str, Any]:
    """What of the state is no tensor. Raises UnusableCheckpoint where the manifest has nothing of it."""
    if not isinstance(entry.manifest.rest, dict):
        raise UnusableCheckpoint(f"{entry.path} does not say how the state is nested. Load an older step")
    return entry.manifest.rest


def _require_same_model(wanted: Mapping[str, LocalTensor], stored: Mapping[str, ManifestTensor], path: StoragePath, strict: bool) -> None:
    differ = [
        f"{name!r} is {shard_file.dtype_of(each.tensor, name)} {each.shape} here and {stored[name].dtype} {stored[name].shape} there"
        for name, each in wanted.items()
        if name in stored and (shard_file.dtype_of(each.tensor, name), each.shape) != (stored[name].dtype, stored[name].shape)
    ]
    missing = [f"it has no {name!r}" for name in wanted if name not in stored]
    further = [f"{name!r} is in it and not here" for name in stored if strict and name not in wanted and not name.startswith("ranks.")]
    wrong = [*differ, *missing, *further]
    if wrong:
        more = f", and {len(wrong) - _NAMED} further ones" if len(wrong) > _NAMED else ""
        raise ConfigError(f"checkpoint {path} is of another model: {'; '.join(wrong[:_NAMED])}{more}. Give the directory of this model's checkpoints")


def pieces_of(entry: SavedCheckpoint, wanted: Callable[[str, Region], Region | None]) -> Iterator[tuple[str, ManifestTensor, TensorPiece, "Tensor"]]:
    """Name, tensor, piece and content of each piece of which something is wanted, shard by shard; what is wanted was verified.

    `wanted`: from the name of a tensor and the region of a piece, the part of that region that is needed, or None. What lies beside it may be zeros: of an object store
    no more is read. Raises UnusableCheckpoint, OSError. In version 1 all are wanted.
    """
    manifest, folder = entry.manifest, entry.path.parent
    if manifest.version == 1:
        for name, part in _tensors(manifest, folder, 0).items():
            stored = ManifestTensor(shard_file.dtype_of(part, name), tuple(part.shape), (TensorPiece(0, whole(part.shape)),))
            yield name, stored, stored.pieces[0], part
        return
    by_shard: dict[int, list[_WantedPiece]] = {}
    for name, stored in manifest.tensors.items():
        for piece in stored.pieces:
            if (region := wanted(name, piece.region)) is not None:
                by_shard.setdefault(piece.shard, []).append(_WantedPiece(name, stored, piece, region))
    for shard, needed in sorted(by_shard.items()):
        parts = _tensors(manifest, folder, shard, needed)
        for name, stored, piece, _ in needed:
            part = parts.get(name)
            if part is None or (shard_file.dtype_of(part, name), tuple(part.shape)) != (stored.dtype, piece.region.shape):
                raise UnusableCheckpoint(f"{folder / manifest.shards[shard].name} does not hold tensor {name!r} as {entry.path} says. Load an older step")
            yield name, stored, piece, part


class _WantedPiece(NamedTuple):
    name: str
    stored: ManifestTensor
    piece: TensorPiece
    region: Region
    """What is needed of it."""

    def span_at(self, place: ByteSpan) -> ByteSpan:
        """Where that is in the shard; the tensor lies at `place`."""
        bits = ELEMENT_BITS[self.stored.dtype]
        first, last = self.region.span_in(self.piece.region)
        return ByteSpan(place.begin + first * bits // 8, min(place.end, place.begin + -(-last * bits // 8)))


def _tensors(manifest: Manifest, folder: StoragePath, shard: int, needed: Sequence[_WantedPiece] | None = None) -> dict[str, "Tensor"]:
    """Of a shard; `needed`: all but this may be zeros."""
    file = manifest.shards[shard]
    if needed is None:
        return shard_file.tensors_in(shard_file.read(folder, file), folder / file.name)
    content = shard_file.read_needed(folder, file, lambda places: [each.span_at(places[each.name]) for each in needed if each.name in places])
    return shard_file.tensors_in(content, folder / file.name)


def _empty(stored: ManifestTensor, like: "Tensor") -> "Tensor":
    import torch

    return torch.empty(stored.shape, dtype=like.dtype)


def copy_region(source: "Tensor", held: Region, target: "Tensor", wanted: Region) -> None:
    """What both regions have in common."""
    common = held.overlap(wanted)
    if common is None:
        return
    for dimension, (begin, there, length) in enumerate(zip(common.within(held), common.within(wanted), common.shape, strict=True)):
        source, target = source.narrow(dimension, begin, length), target.narrow(dimension, there, length)
    target.copy_(source)


def _of_rank(entry: SavedCheckpoint, rank: str) -> Any:
    manifest = entry.manifest
    if rank not in manifest.ranks or manifest.world_size != int(os.environ.get("WORLD_SIZE") or manifest.world_size):
        return None
    prefix = f"ranks.{rank}."
    own = {name for name in manifest.tensors if name.startswith(prefix)}
    found: dict[str, Tensor] = {}
    for name, _, _, part in pieces_of(entry, lambda name, region: region if name in own else None):
        found[name] = part.clone()
    return state_tree.unflatten(found, state_tree.only(manifest.ranks[rank], found))  # what it shared with others is in the state
