"""The stream: an ordered log of records, shared by every process of a deployment.

`Stream` is the protocol; `embedded.EmbeddedStream` is the default, one machine, no server; `kafka.KafkaStream` is
for many machines. `factory` opens the one that the configuration names.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from eagle_eye.access.certificates import Identity

OBSERVATIONS = "eagle-eye.observations"
FINDINGS = "eagle-eye.findings"
INCIDENTS = "eagle-eye.incidents"
OUTCOMES = "eagle-eye.outcomes"
JOB_SNAPSHOTS = "eagle-eye.job-snapshots"
DEAD_LETTERS = "eagle-eye.dead-letters"
RUNNER_GROUP = "eagle-eye.runner"
"""Consumer group of the detectors: the observations before its committed offset have been evaluated, and the findings saved."""

REFUSED = b"\xc1refused: "
"""What the value of a record begins with whose signature is wrong: the reason, a line feed, and the record. No decoder takes it for a record."""


class Message(NamedTuple):
    """One record as the stream holds it."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes
    time: float
    writer: Identity | None = None
    """Whose signature it carries; None where records are not signed."""


def refusal(value: bytes) -> str:
    """Why a record was refused; '' if it was not."""
    if not value.startswith(REFUSED):
        return ""
    return value[len(REFUSED) :].partition(b"\n")[0].decode(errors="replace")


class Position(NamedTuple):
    """Partition and offset of an appended record."""

    partition: int
    offset: int


class ReadableStream(Protocol):
    """What whoever reads a stream needs of it. Every method may raise StreamUnavailable (try again later)."""

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """Up to `limit` messages from `offset` on; an empty list when there is none yet."""
        ...

    def begin(self, topic: str, partition: int) -> int:
        """Offset of the oldest message kept."""
        ...

    def end(self, topic: str, partition: int) -> int:
        """Offset that the next message will have at least."""
        ...

    def wait(self, topic: str, partition: int, offset: int, timeout: float) -> bool:
        """Block until a message at or after `offset` is there, at most `timeout` seconds."""
        ...


class Stream(ReadableStream, Protocol):
    """What every stream can do. Offsets rise within a partition; they need not be dense.

    Every method may raise StreamUnavailable (try again later) or StreamFull; `append` also StreamRefused (never try again).
    """

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        """Append (key, value) pairs in order. Returned means acknowledged: survives kill -9 of any process.

        Returns the position of each of them.
        """
        ...

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        ...

    def partition_of(self, topic: str, key: str) -> int:
        """The partition that a key goes to."""
        ...

    def commit(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Remember that a consumer group has done everything before `offset`."""
        ...

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """The group's committed offset, None if it never committed."""
        ...

    def close(self) -> None:
        """Release everything."""
        ...
