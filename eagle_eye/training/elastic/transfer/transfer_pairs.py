"""A giver and a taker: what the one offers and which way the other chooses."""

import ctypes
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eagle_eye.training.elastic.train_state import tensor_bytes
from eagle_eye.training.elastic.train_state.layer_chunks import CHUNK_BYTES
from eagle_eye.training.elastic.train_state.train_state import TrainState

from . import remote_memory
from .layer_buffers import LayerBuffers
from .shared_memory import SharedMemory
from .transports import RemoteRead


class MemoryProof:
    """Random bytes in this process's memory: whoever reads them there reads the right process."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(secrets.token_bytes(16), 16)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._buffer)

    @property
    def text(self) -> str:
        return self._buffer.raw.hex()


class SendPlan:
    """What goes to one taker."""

    def __init__(self, taker: int, layers: list[int], stack: ExitStack) -> None:
        self.peer, self.layers = taker, layers
        self.way = ""
        self.segment = SharedMemory.make(CHUNK_BYTES)
        stack.callback(self.segment.close)


class RecvPlan:
    """What comes from one giver."""

    def __init__(self, giver: int, layers: list[int], stack: ExitStack) -> None:
        self.peer, self.layers = giver, layers
        self.way = ""
        self.segment: SharedMemory | None = None
        self.offer: dict[str, Any] = {}
        self._stack = stack

    def choose(self, allowed: Sequence[str]) -> str:
        """The nearest way that works from here."""
        offer = self.offer
        near = offer["node"] == node()
        if "memory" in allowed and near and offer["direct"] and remote_memory.can_read(offer["pid"], offer["proof_at"], bytes.fromhex(offer["proof"])):
            return "memory"
        if "segment" in allowed and near:
            self.segment = SharedMemory.find(offer["segment"], offer["segment_proof"], CHUNK_BYTES)
            if self.segment is not None:
                self._stack.callback(self.segment.close)
                return "segment"
        return "group"

    def readings(self, shelf: LayerBuffers) -> Iterator[RemoteRead]:
        """Its chunks, each with where it lies at the giver."""
        for layer in self.layers:
            addresses = self.offer["layers"][str(layer)]["addresses"]
            content = shelf.content(layer)
            for number, chunk in enumerate(content.chunks):
                yield RemoteRead(content, number, [addresses[piece.entry] + piece.start for piece in chunk])


def offer_of(inventory: TrainState, gift: SendPlan, proof: MemoryProof) -> dict[str, Any]:
    """What a giver tells a taker first."""
    layers = [inventory.layer(index) for index in gift.layers]
    return {
        "node": node(),
        "pid": os.getpid(),
        "proof_at": proof.address,
        "proof": proof.text,
        "segment": gift.segment.path,
        "segment_proof": gift.segment.proof,
        "direct": all(tensor_bytes.is_direct(entry.tensor) for layer in layers for entry in layer.entries),
        "rest": inventory.rest(),
        "layers": {
            str(layer.index): {
                "skeleton": inventory.skeleton(layer.index),
                "addresses": [entry.tensor.data_ptr() for entry in layer.entries],
            }
            for layer in layers
        },
    }


def node() -> str:
    """Equal in all processes of a machine, whatever containers they are in."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
