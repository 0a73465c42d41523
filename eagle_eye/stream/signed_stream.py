"""A stream whose records are signed when they are appended, and checked when they are read."""

import logging
import os
import threading
from collections.abc import Sequence

from eagle_eye.access.stream_keys import StreamKey
from eagle_eye.clock import Clock
from eagle_eye.config import AccessConfig

from . import Message, Position, Stream
from .record_signature import INCARNATION_BYTES, SignatureCheck, Signer, unsigned_value

log = logging.getLogger(__name__)

TOLD_EVERY_S = 600.0
"""The same refusal of one partition is logged once in so long; each record is counted."""


class SignedStream:
    """Another stream, with signatures. A process that may not know the keys of others reads records as they are, without their signatures."""

    def __init__(self, stream: Stream, key: StreamKey, access: AccessConfig, clock: Clock) -> None:
        self.stream = stream
        self.refused = 0
        """Records that were refused when they were read."""
        self._signer = Signer(key, os.urandom(INCARNATION_BYTES), clock)
        self._clock = clock
        self._told: dict[tuple[str, int, str], float] = {}
        self._lock = threading.Lock()
        self._check = None
        if key.root is not None:
            self._check = SignatureCheck(key.root, late_s=access.stream_late_s, unsigned=access.stream_unsigned, refused=self._refused)

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        return self.stream.append(topic, [(key, self._signer.sign(topic, key, value)) for key, value in items])

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        messages = self.stream.read(topic, partition, offset, limit)
        if self._check is None:
            return [message._replace(value=unsigned_value(message.value)) for message in messages]
        return self._check.check(messages)

    def _refused(self, message: Message, why: str) -> None:
        place = message.topic, message.partition, why
        now = self._clock.monotonic()
        with self._lock:
            self.refused += 1
            if now - self._told.get(place, -TOLD_EVERY_S) < TOLD_EVERY_S:
                return
            if len(self._told) > 1000:
                self._told.clear()
            self._told[place] = now
        log.warning("%s/%d: the record at offset %d is refused: %s", message.topic, message.partition, message.offset, why)

    # --- all else is the other stream's ---------------------------------------------------------------------------

    def partitions(self, topic: str) -> int:
        return self.stream.partitions(topic)

    def partition_of(self, topic: str, key: str) -> int:
        return self.stream.partition_of(topic, key)

    def begin(self, topic: str, partition: int) -> int:
        return self.stream.begin(topic, partition)

    def end(self, topic: str, partition: int) -> int:
        return self.stream.end(topic, partition)

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        return self.stream.wait(topic, partition, offset, timeout)

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        self.stream.commit(group, topic, partition, offset)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        return self.stream.committed(group, topic, partition)

    def close(self) -> None:
        self.stream.close()
