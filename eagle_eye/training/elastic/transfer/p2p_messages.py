"""Small messages between two workers of a group: a JSON value, with its length and checksum.

A message has a fixed size, so that the receiver need not know its length before; a long one is continued in a second
message.
"""

import json
import struct
import zlib
from typing import TYPE_CHECKING, Any

from eagle_eye.errors import Broken
from eagle_eye.training.elastic.train_state import tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from eagle_eye.training.elastic.process_group.process_group import ProcessGroup, Work

FIRST_BYTES = 4096
_HEAD = struct.Struct("<qq")
"""Length and CRC-32 of the JSON text."""
_ROOM = FIRST_BYTES - _HEAD.size


def device_of(group: "ProcessGroup") -> str:
    """Device of tensors that go over the group: NCCL carries those of a GPU only."""
    return str(getattr(group, "device", "cpu"))


def send(group: "ProcessGroup", value: Any, to: int, tag: int) -> "list[tuple[Work, Tensor]]":
    """Start to send; wait for the returned works before the group is closed. Uses tag and tag + 1."""
    text = json.dumps(value, separators=(",", ":")).encode()
    first = (_HEAD.pack(len(text), zlib.crc32(text)) + text[:_ROOM]).ljust(FIRST_BYTES, b"\0")
    parts = [first, text[_ROOM:]] if len(text) > _ROOM else [first]
    tensors = [_tensor(part).to(device_of(group)) for part in parts]
    return [(group.send(tensor, to, tag + index), tensor) for index, tensor in enumerate(tensors)]


def receive(group: "ProcessGroup", frm: int, tag: int) -> Any:
    """Wait for the message that rank `frm` sends under this tag. Raises Broken if the peer is gone or the message was changed on its way."""
    first = _receive(group, FIRST_BYTES, frm, tag)
    length, checksum = _HEAD.unpack(first[: _HEAD.size])
    text = first[_HEAD.size : _HEAD.size + length]
    if length > _ROOM:
        text += _receive(group, length - _ROOM, frm, tag + 1)
    if zlib.crc32(text) != checksum:
        raise Broken(f"a message of rank {frm} was changed on its way")
    return json.loads(text)


def _receive(group: "ProcessGroup", size: int, frm: int, tag: int) -> bytes:
    import torch

    tensor = torch.empty(size, dtype=torch.uint8, device=device_of(group))
    group.receive(tensor, frm, tag).wait()
    here = tensor.cpu()
    return bytes(tensor_bytes.view(here))


def _tensor(text: bytes) -> "Tensor":
    import torch

    return torch.frombuffer(bytearray(text), dtype=torch.uint8)
