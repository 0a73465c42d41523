"""Many messages of one partition in one piece of bytes: how a fetcher hands over what it has read.

    length of the head (4, little-endian) | head (msgpack) | offsets int64 | times float64 | keys, writers int32 | lengths int64 | values

Ten thousand messages a second cost whoever takes them over a slice each: keys and writers, of which there are few, are named by their places
in the head.
"""

import struct
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from eagle_eye.access.certificates import Identity

from . import Message

_LENGTH = struct.Struct("<I")
_COLUMNS = (("offset", "<i8"), ("time", "<f8"), ("key", "<i4"), ("writer", "<i4"), ("length", "<i8"))
_Each = TypeVar("_Each", bound=Hashable)


class RecordSpan(NamedTuple):
    """Messages of one partition that follow each other."""

    messages: list[Message]
    more: bool
    """The stream had more than was asked for."""


class _Head(msgspec.Struct, array_like=True, frozen=True):
    count: int
    more: bool
    keys: tuple[str, ...]
    writers: tuple[Identity | None, ...]


_HEADS = msgspec.msgpack.Decoder(_Head)


def encode_span(span: RecordSpan) -> bytes:
    """All messages are of one topic and partition, which whoever reads it knows."""
    messages = span.messages
    keys, key_places = _numbered(messages, lambda message: message.key)
    writers, writer_places = _numbered(messages, lambda message: message.writer)
    head = msgspec.msgpack.encode(_Head(len(messages), span.more, keys, writers))
    columns = {
        "offset": [message.offset for message in messages], "time": [message.time for message in messages], "key": key_places,
        "writer": writer_places, "length": [len(message.value) for message in messages],
    }  # fmt: skip
    arrays = [np.array(columns[name], dtype=dtype).tobytes() for name, dtype in _COLUMNS]
    return b"".join((_LENGTH.pack(len(head)), head, *arrays, *(message.value for message in messages)))


def decode_span(topic: str, partition: int, data: bytes | bytearray | memoryview) -> RecordSpan:
    """Raises ValueError for what is no span."""
    view = memoryview(data)
    if len(view) < _LENGTH.size:
        raise ValueError(f"a span has at least {_LENGTH.size} bytes; {len(view)} came")
    at = _LENGTH.size + _LENGTH.unpack_from(view)[0]
    head = _HEADS.decode(view[_LENGTH.size : at])
    columns = {}
    for name, dtype in _COLUMNS:
        columns[name] = np.frombuffer(view, dtype=dtype, count=head.count, offset=at)
        at += columns[name].nbytes
    ends = np.cumsum(columns["length"]) + at
    if head.count and (int(ends[-1]) != len(view) or int(columns["length"].min()) < 0):
        raise ValueError(f"the values of a span should end at byte {int(ends[-1])}, but {len(view)} came")
    begins = ends - columns["length"]
    rows = zip(*(column.tolist() for column in (columns["offset"], columns["time"], columns["key"], columns["writer"], begins, ends)), strict=True)
    new, keys, writers = tuple.__new__, head.keys, head.writers
    messages = [new(Message, (topic, partition, offset, keys[key], bytes(view[begin:end]), time, writers[writer])) for offset, time, key, writer, begin, end in rows]
    return RecordSpan(messages, head.more)


def _numbered(messages: Sequence[Message], value_of: Callable[[Message], _Each]) -> tuple[tuple[_Each, ...], list[int]]:
    """(each value once, for each message its place among them)"""
    places: dict[_Each, int] = {}
    found = [places.setdefault(value_of(message), len(places)) for message in messages]
    return tuple(places), found
