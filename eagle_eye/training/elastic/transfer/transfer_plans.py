"""The two ends of a state transfer: what a sender offers, and the transport that its receiver chooses."""

import ctypes
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from eagle_eye.training.elastic.train_state import tensor_bytes
from eagle_eye.training.elastic.train_state.train_state import TrainState

from . import remote_memory
from .layer_buffers import CHUNK_BYTES, LayerBuffers
from .shared_memory import SharedMemory
from .transports import RemoteRead


class MemoryProof:
    """Random bytes in this process's memory: another process that reads them there reads the right process."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(secrets.token_bytes(16), 16)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._buffer)

    @property
    def text(self) -> str:
        return self._buffer.raw.hex()


class SendPlan:
    """What this worker sends to one receiver."""

    def __init__(self, receiver: int, layers: list[int], stack: ExitStack) -> None:
        self.peer, self.layers = receiver, layers
        self.transport = ""
        """One of transports.NAMES, once the receiver has chosen."""
        self.shared_memory = SharedMemory.make(CHUNK_BYTES)
        stack.callback(self.shared_memory.close)


class RecvPlan:
    """What this worker receives from one sender."""

    def __init__(self, sender: int, layers: list[int], stack: ExitStack) -> None:
        self.peer, self.layers = sender, layers
        self.transport = ""
        """One of transports.NAMES, once it is chosen."""
        self.shared_memory: SharedMemory | None = None
        self.offer: dict[str, Any] = {}
        self._stack = stack

    def choose(self, allowed: Sequence[str]) -> str:
        """The fastest transport that works between these two processes."""
        offer = self.offer
        same_machine = offer["machine"] == machine_id()
        if "remote_memory" in allowed and same_machine and offer["direct"] and remote_memory.can_read(offer["pid"], offer["proof_at"], bytes.fromhex(offer["proof"])):
            return "remote_memory"
        if "shared_memory" in allowed and same_machine:
            self.shared_memory = SharedMemory.find(offer["shared_memory"], offer["shared_memory_proof"], CHUNK_BYTES)
            if self.shared_memory is not None:
                self._stack.callback(self.shared_memory.close)
                return "shared_memory"
        return "group"

    def remote_reads(self, buffers: LayerBuffers) -> Iterator[RemoteRead]:
        """Its chunks, each with its addresses in the sender's memory."""
        for layer in self.layers:
            addresses = self.offer["layers"][str(layer)]["addresses"]
            content = buffers.layer_bytes(layer)
            for number, chunk in enumerate(content.chunks):
                yield RemoteRead(content, number, [addresses[piece.entry] + piece.start for piece in chunk])


def offer_of(train_state: TrainState, send_plan: SendPlan, proof: MemoryProof) -> dict[str, Any]:
    """The first message of a sender to its receiver: where its state is in memory, and how each layer is built."""
    layers = [train_state.layer(index) for index in send_plan.layers]
    return {
        "machine": machine_id(),
        "pid": os.getpid(),
        "proof_at": proof.address,
        "proof": proof.text,
        "shared_memory": send_plan.shared_memory.path,
        "shared_memory_proof": send_plan.shared_memory.proof,
        "direct": all(tensor_bytes.is_direct(entry.tensor) for layer in layers for entry in layer.entries),
        "global_state": train_state.global_state(),
        "layers": {
            str(layer.index): {
                "schema": train_state.schema(layer.index),
                "addresses": [entry.tensor.data_ptr() for entry in layer.entries],
            }
            for layer in layers
        },
    }


def machine_id() -> str:
    """The same in all processes of a machine, in any container; empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
