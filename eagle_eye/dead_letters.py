"""Records that cannot be used: kept aside with where they lay and why, so that to pass them over loses nothing."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from .errors import UNREADABLE
from .stream import DEAD_LETTERS, OBSERVATIONS, Message, Stream

READ = 1000
LONGEST = 1 << 20
"""Bytes of a record that are kept: the record of a record must itself find room in the stream."""
LONGEST_REASON = 1000


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the topic of dead letters."""

    topic: str = OBSERVATIONS
    """In which the record lay, with its partition and offset."""
    partition: int
    offset: int
    reason: str
    record: bytes
    """Its first LONGEST bytes."""
    size: int = -1
    """How many bytes it had; -1: not told."""


class StoredDeadLetter(NamedTuple):
    """A dead letter as it lies in the stream."""

    time: float
    """When it was kept aside."""
    key: str
    """Of the record: mostly its job."""
    letter: DeadLetter


def dead_letter(message: Message, reason: str) -> tuple[str, bytes]:
    """Key and value for the topic of dead letters."""
    letter = DeadLetter(
        topic=message.topic, partition=message.partition, offset=message.offset, reason=reason[:LONGEST_REASON], record=message.value[:LONGEST],
        size=len(message.value),
    )  # fmt: skip
    return message.key, msgspec.json.encode(letter)


def dead_letters(stream: Stream) -> Iterator[StoredDeadLetter]:
    """All that are kept, partition by partition, the oldest first. Raises StreamError."""
    decoder = msgspec.json.Decoder(DeadLetter)
    for partition in range(stream.partitions(DEAD_LETTERS)):
        offset, end = stream.begin(DEAD_LETTERS, partition), stream.end(DEAD_LETTERS, partition)
        while offset < end:
            messages = stream.read(DEAD_LETTERS, partition, offset, READ)
            if not messages:
                break
            for message in messages:
                offset = message.offset + 1
                try:
                    yield StoredDeadLetter(message.time, message.key, decoder.decode(message.value))
                except UNREADABLE:
                    continue  # not written by us
