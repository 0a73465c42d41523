"""One manifest of those of all ranks: what each has written of which tensor is put together, and nothing that does not fit."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eagle_eye.training import state_tree

from . import manifest as manifests
from .manifest import Manifest, ManifestTensor, ShardFile, TensorPiece
from .tensor_regions import Region

_GLOBAL_NAMES = (
    "a name has to mean the same tensor on every rank. Where stages of a pipeline count from 0 each, as optimizer.state_dict() does, use names of parameters "
    "(get_optimizer_state_dict with StateDictOptions(flatten_optimizer_state_dict=True)); what a rank has for itself belongs to per_rank"
)


@dataclass(slots=True)
class _MergedTensor:
    """A tensor of which the ranks so far have written some regions."""

    of: ManifestTensor
    rank: int
    """The first one that wrote of it."""
    pieces: dict[Region, TensorPiece] = field(default_factory=dict)


def merged(parts: Sequence[Manifest]) -> Manifest:
    """One manifest of those of all ranks, in their order. Raises ValueError, naming the tensor and the ranks, where they do not fit together.

    A region that several ranks have written, and all of them alike, is there once. Of what is no tensor the first rank's counts.
    """
    shards, tensors, rest = list[ShardFile](), dict[str, _MergedTensor](), parts[0].rest
    for rank, part in enumerate(parts):
        first = len(shards)
        shards += part.shards
        for name, tensor in part.tensors.items():
            held = tensors.setdefault(name, _MergedTensor(tensor, rank))
            if (held.of.dtype, held.of.shape) != (tensor.dtype, tensor.shape):
                kinds = f"{held.of.dtype} {held.of.shape} on rank {held.rank} and {tensor.dtype} {tensor.shape} on rank {rank}"
                raise ValueError(f"tensor {name!r} is {kinds}: {_GLOBAL_NAMES}")
            for piece in tensor.pieces:
                _add(name, held, replace(piece, shard=first + piece.shard), shards)
        rest = state_tree.merged(rest, part.rest)
    whole = {name: replace(held.of, pieces=tuple(held.pieces.values())) for name, held in tensors.items()}
    for name, tensor in whole.items():
        manifests.require_whole(name, tensor)
    return replace(
        parts[0], shards=tuple(replace(shard, tensor_crc32={}) for shard in shards), tensors=whole, rest=rest, finite=all(part.finite for part in parts),
        saved=max(part.saved for part in parts), ranks={rank: value for part in parts for rank, value in part.ranks.items()},
    )  # fmt: skip


def _add(name: str, held: _MergedTensor, piece: TensorPiece, shards: Sequence[ShardFile]) -> None:
    before = held.pieces.setdefault(piece.region, piece)
    if before is piece or not piece.region.size:
        return
    one, other = shards[before.shard], shards[piece.shard]
    if name not in one.tensor_crc32 or one.tensor_crc32[name] != other.tensor_crc32.get(name):
        where = f"elements from {piece.region.offsets} on, {piece.region.shape} of them"
        raise ValueError(f"ranks {one.rank} and {other.rank} have both written tensor {name!r} ({where}), and not the same values: {_GLOBAL_NAMES}")
