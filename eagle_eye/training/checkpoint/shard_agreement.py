"""Whether a checkpoint's shards hold what its manifest says, as whoever loads it asks: without torch, and without reading the tensors."""

from eagle_eye.training import state_tree

from . import shard_file
from .manifest import Manifest, UnusableCheckpoint
from .saved_checkpoint import SavedCheckpoint
from .shard_file import DescribedTensor

_REMEDY = "Load an older step, or copy the checkpoint anew from where it is whole"


def require_loadable(entry: SavedCheckpoint) -> None:
    """Raises UnusableCheckpoint for one that no load takes, whatever its sums say; OSError."""
    manifest = entry.manifest
    headers = [shard_file.header(entry.path.parent, shard) for shard in manifest.shards]
    if not isinstance(manifest.rest, dict):
        raise UnusableCheckpoint(f"{entry.path} does not say how the state is nested. {_REMEDY}")
    try:
        lost = _lost(manifest, headers)
    except RecursionError:
        raise UnusableCheckpoint(f"{entry.path} is nested too deep to be loaded. {_REMEDY}") from None
    if lost:
        raise UnusableCheckpoint(f"{entry.path.parent / lost[0]} does not hold tensor {lost[1]!r} as {entry.path} says. {_REMEDY}")


def _lost(manifest: Manifest, headers: list[dict[str, DescribedTensor]]) -> tuple[str, str] | None:
    """A file, and the tensor that it should have; None: all is there."""
    names = [shard.name for shard in manifest.shards]
    if manifest.version == 1:  # the shard alone knows its tensors
        return next(((names[0], name) for name in state_tree.references(manifest.rest) if name not in headers[0]), None)
    for name, tensor in manifest.tensors.items():
        for piece in tensor.pieces:
            if headers[piece.shard].get(name) != (tensor.dtype, piece.region.shape):
                return names[piece.shard], name
    return next(((names[0] if names else "no shard", name) for name in state_tree.references(manifest.rest) if not manifest.tensors[name].pieces), None)
