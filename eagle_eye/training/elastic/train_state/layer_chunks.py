"""A layer's state cut into chunks: the same ones in the worker that gives it and in the one that takes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle_eye.training.elastic.transfer import digest

from . import tensor_bytes
from .train_state import LayerState

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = 4 << 20
"""A chunk is digested while it is still in the cache of a core."""
MOST_PIECES = 512
"""Of a chunk; the kernel copies at most 1024 ranges at a time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Some bytes of a tensor."""

    entry: int
    """Which of the layer's tensors."""
    start: int
    size: int


Chunk = tuple[Piece, ...]


def chunks_of(sizes: Sequence[int]) -> list[Chunk]:
    """Chunks of at most CHUNK_BYTES of a layer with tensors of these sizes.

    A tensor that does not fit into what is left of a chunk begins a new one: words stay aligned.
    """
    found: list[list[Piece]] = [[]]
    room = CHUNK_BYTES
    for entry, size in enumerate(sizes):
        for start in range(0, size, CHUNK_BYTES):
            piece = Piece(entry, start, min(CHUNK_BYTES, size - start))
            if piece.size > room or len(found[-1]) == MOST_PIECES:
                found.append([])
                room = CHUNK_BYTES
            found[-1].append(piece)
            room -= piece.size
    return [tuple(chunk) for chunk in found if chunk]


class LayerBytes:
    """The bytes of a layer, and the digests of its chunks as they become known.

    Tensors on a GPU, and such whose elements do not lie in order, are there as copies; `settle` writes them back.
    """

    def __init__(self, layer: LayerState, *, to_fill: bool = False) -> None:
        self.layer = layer
        self.chunks = chunks_of([entry.bytes for entry in layer.entries])
        self._flat = [_room(entry.tensor) if to_fill else tensor_bytes.flat(entry.tensor) for entry in layer.entries]
        self._digests: dict[int, bytes] = {}

    def parts(self, number: int) -> "list[Tensor]":
        """The pieces of a chunk, as uint8 tensors of shape (bytes,)."""
        return [self._flat[piece.entry].narrow(0, piece.start, piece.size) for piece in self.chunks[number]]

    def check(self, number: int) -> None:
        """Take the digest of a chunk as it is now, once."""
        if number not in self._digests:
            self._digests[number] = digest.of_chunk(self.parts(number))

    def digest(self) -> str:
        """Of all chunks."""
        for number in range(len(self.chunks)):
            self.check(number)
        return digest.of_layer(self._digests[number] for number in range(len(self.chunks)))

    def settle(self) -> None:
        """Write what arrived in copies to where it belongs."""
        for entry, content in zip(self.layer.entries, self._flat, strict=True):
            if not tensor_bytes.is_direct(entry.tensor):
                tensor_bytes.fill(entry.tensor, content)


def _room(tensor: "Tensor") -> "Tensor":
    """Like raw.flat, without a copy of what is to be overwritten."""
    import torch

    if tensor_bytes.is_direct(tensor):
        return tensor_bytes.flat(tensor)
    return torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8, pin_memory=tensor.device.type == "cuda")
