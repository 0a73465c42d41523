"""The layers that a worker sends or receives, cut into chunks: the same ones in the sender and in the receiver."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eagle_eye.training.elastic.train_state import tensor_bytes
from eagle_eye.training.elastic.train_state.train_state import LayerState

if TYPE_CHECKING:
    from torch import Tensor

CHUNK_BYTES = 4 << 20
"""A chunk is digested while it is still in the cache of a core."""
MOST_PIECES = 512
"""Of a chunk; the kernel copies at most 1024 ranges at a time."""
ROW_BYTES = 4096
_WORD_BYTES = 8
DIGEST_BYTES = 16


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

    Tensors on a GPU, and tensors that are not contiguous, are copies here; `write_back` writes them back.
    """

    def __init__(self, layer: LayerState, *, receiving: bool = False) -> None:
        self.layer = layer
        self.chunks = chunks_of([entry.bytes for entry in layer.entries])
        self._flat = [_room(entry.tensor) if receiving else tensor_bytes.flat(entry.tensor) for entry in layer.entries]
        self._digests: dict[int, bytes] = {}

    def parts(self, number: int) -> "list[Tensor]":
        """The pieces of a chunk, as uint8 tensors of shape (bytes,)."""
        return [self._flat[piece.entry].narrow(0, piece.start, piece.size) for piece in self.chunks[number]]

    def hash_chunk(self, number: int) -> None:
        """Compute the digest of a chunk as it is now, once."""
        if number not in self._digests:
            self._digests[number] = chunk_digest(self.parts(number))

    def digest(self) -> str:
        """Of all chunks."""
        for number in range(len(self.chunks)):
            self.hash_chunk(number)
        return layer_digest(self._digests[number] for number in range(len(self.chunks)))

    def write_back(self) -> None:
        """Copy what arrived in buffers into the tensors of the layer."""
        for entry, content in zip(self.layer.entries, self._flat, strict=True):
            if not tensor_bytes.is_direct(entry.tensor):
                tensor_bytes.fill(entry.tensor, content)


class LayerBuffers:
    """The layers that a worker sends or receives, each in memory only while it is in flight.

    `users`: the index of a layer once for each worker that it goes to, or comes from.
    """

    def __init__(self, layers: Mapping[int, LayerState], users: Iterable[int], *, receiving: bool = False) -> None:
        self._layers, self._left, self._receiving = layers, Counter(users), receiving
        self._contents: dict[int, LayerBytes] = {}
        self._digests: dict[int, str] = {}

    def layer_bytes(self, layer: int) -> LayerBytes:
        """The bytes of a layer; of one on a GPU a copy is made now."""
        if layer not in self._contents:
            self._contents[layer] = LayerBytes(self._layers[layer], receiving=self._receiving)
        return self._contents[layer]

    def release(self, layer: int) -> None:
        """One of its users is done with it; after the last one the buffer is freed."""
        self._left[layer] -= 1
        if self._left[layer] > 0:
            return
        content = self.layer_bytes(layer)
        self._digests[layer] = content.digest()
        if self._receiving:
            content.write_back()
        del self._contents[layer]

    def digest(self, layer: int) -> str:
        """Of a layer with which all or some users are done."""
        return self._digests[layer] if layer in self._digests else self.layer_bytes(layer).digest()


def _room(tensor: "Tensor") -> "Tensor":
    """Like tensor_bytes.flat, without a copy of what is to be overwritten."""
    import torch

    if tensor_bytes.is_direct(tensor):
        return tensor_bytes.flat(tensor)
    return torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8, pin_memory=tensor.device.type == "cuda")


# --- digests


def chunk_digest(parts: "Iterable[Tensor]") -> bytes:
    """The digest of some uint8 tensors of shape (bytes,), one after another, in this process's memory.

    It keeps up with copying them: a chunk is digested while it is still in the cache.
    The bytes are taken as rows of 4 KiB, a row's 512 words of 64 bits are added up modulo 2^64, and the sums go through
    SHA-256; what is no whole row goes there as it is. So a change of one word, thus any flipped bit, is seen for certain
    (its row's sum changes), and so are rows, pages or chunks that were swapped unless their rows have the
    same sums; several changes in one row cancel each other with a probability of 2^-64 if they are random. It does not see
    words that were swapped within one row, which copying does not do, and it is no protection against malice. About 20 GB/s
    on one core, where CRC-32 has 3.5 and SHA-256 1.3.
    """
    found = hashlib.sha256()
    for part in parts:
        whole = part.numel() // ROW_BYTES * ROW_BYTES
        if whole:
            sums = _words(part[:whole]).view(-1, ROW_BYTES // _WORD_BYTES).sum(1)
            found.update(tensor_bytes.view(sums))
        rest = part[whole:]
        found.update(tensor_bytes.view(rest))
    return found.digest()[:DIGEST_BYTES]


def layer_digest(chunks: Iterable[bytes]) -> str:
    """The digest of a layer, in hexadecimal, from those of its chunks in order."""
    return hashlib.sha256(b"".join(chunks)).hexdigest()[: 2 * DIGEST_BYTES]


def _words(part: "Tensor") -> "Tensor":
    import torch

    aligned = part if part.storage_offset() % _WORD_BYTES == 0 else part.clone()
    return aligned.view(torch.int64)
