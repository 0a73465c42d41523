"""What a copy in memory holds, as its table says, and what of it goes to storage: values in, values out.

Of a tensor that several ranks share (a DTensor) each writes its region. What a rank has for itself (plain tensors, numbers) is the state of the
checkpoint where it is rank 0's; of any other rank it is that rank's own, so that each gets back what it had, bit for bit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from eagle_eye.training import state_tree
from eagle_eye.training.checkpoint.manifest import Manifest, ManifestTensor, TensorPiece
from eagle_eye.training.checkpoint.shard_file import dtype_named
from eagle_eye.training.checkpoint.tensor_regions import Extents, Region, whole


class CopyTable(msgspec.Struct, frozen=True):
    """As the worker has written it (memory_layout)."""

    step: int
    rank: int
    world: int
    tensors: dict[str, tuple[str, Extents, int, int, str]]
    """Name → torch's dtype, shape, offset within the payload, bytes, shard."""
    rest: dict[str, Any]
    saved: float = 0.0
    replicated: bool = False
    regions: dict[str, tuple[Extents, Extents, Extents, bool] | None] = {}
    """Name of a DTensor → offsets and shape of its region, the whole shape, whether this rank writes it; None: storage cannot hold it."""
    data_position: Any = None
    """Where the training reads on in its data; of a checkpoint it is rank 0's."""


@dataclass(frozen=True, slots=True)
class PlacedContent:
    """A tensor that is to be written, and where it is in the copy."""

    name: str
    dtype: str
    """As safetensors calls it."""
    shape: Extents
    offset: int
    """Within the payload."""
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredPart:
    """What one rank writes of a checkpoint."""

    manifest: Manifest
    """Without its shard."""
    tensors: Sequence[PlacedContent]

    @property
    def bytes(self) -> int:
        """Of its tensors."""
        return sum(each.bytes for each in self.tensors)


def part_of(table: CopyTable, epoch: int) -> StoredPart:
    """Raises TypeError, naming the tensor, for what storage cannot hold."""
    lost = [name for name, region in table.regions.items() if region is None]
    if lost:
        raise TypeError(f"storage cannot hold {lost[0]!r}: its ranks have summands of it, or several regions each; reduce or redistribute it before it is saved")
    is_own = table.rank > 0 and not table.replicated
    own = {name: f"ranks.{table.rank}.{name}" for name in table.tensors if name not in table.regions} if is_own else {}
    contents: list[PlacedContent] = []
    stored: dict[str, ManifestTensor] = {}
    for name, (torch_dtype, shape, offset, size, _) in table.tensors.items():
        region, full, written = _region(table, name, shape)
        if written:
            placed = PlacedContent(own.get(name, name), dtype_named(torch_dtype, name), region.shape, offset, size)
            contents.append(placed)
            stored[placed.name] = ManifestTensor(placed.dtype, full, (TensorPiece(0, region),))
    manifest = Manifest(
        step=table.step, epoch=epoch, finite=True, saved=table.saved, shards=(), tensors=stored, world_size=1 if table.replicated else table.world,
        rest=state_tree.only(table.rest, table.regions) if is_own else table.rest,
        ranks={str(table.rank): state_tree.renamed(table.rest, own)} if is_own else {}, data_position=table.data_position,
    )  # fmt: skip
    return StoredPart(manifest, contents)


def writers(table: CopyTable) -> range:
    """The ranks whose parts make the checkpoint."""
    return range(1 if table.replicated else table.world)


def _region(table: CopyTable, name: str, shape: Extents) -> tuple[Region, Extents, bool]:
    """Region, whole shape, whether it is written here."""
    found = table.regions.get(name)
    if found is None:
        return whole(shape), shape, True
    offsets, extent, full, first = found
    if not math.prod(full):  # without elements, however it is cut: readers want to find it
        return whole(full), full, first
    region = Region(offsets, extent)
    return region, full, first and bool(region.size)
