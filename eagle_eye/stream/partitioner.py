"""The partition of a key, and the limits of topics and records: the same rules for every kind of stream."""

import hashlib
import re

from eagle_eye.errors import StreamRefused

MAX_RECORD_BYTES = 16 << 20
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


def partition_of(key: str, count: int) -> int:
    """The same in every process, run and kind of stream.

    >>> [partition_of("tenant/name/run", count) for count in (1, 4)]
    [0, 1]
    """
    if count == 1:
        return 0
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest()) % count


def check_topic(topic: str) -> None:
    """Raises StreamRefused for a name that some stream could not take."""
    if not _TOPIC.fullmatch(topic):
        raise StreamRefused(f"{topic!r} cannot name a topic: use letters, digits, dots, hyphens, underscores")


def check_size(topic: str, key: str, value: bytes) -> None:
    """Raises StreamRefused for a record that is too large."""
    if len(value) > MAX_RECORD_BYTES:
        raise StreamRefused(
            f"a record of {key} for {topic} has {len(value)} bytes; the stream takes {MAX_RECORD_BYTES}: split it"
        )
