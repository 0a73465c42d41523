"""Reading a partition on from where one stopped, and noticing when the stream has begun anew.

A broker that lost its memory begins again at offset 0. Offsets alone do not show it once it has grown beyond the
reader's place. So each read begins with the message that was read last: it must still be there, and be the same.
"""

from typing import NamedTuple

from . import Message, Stream


class _Last(NamedTuple):
    offset: int
    key: str
    value: bytes


class Follower:
    """One reader of one partition; of one thread."""

    def __init__(self, stream: Stream, topic: str, partition: int, offset: int) -> None:
        self.offset = offset
        """Of the next message."""
        self._stream = stream
        self._topic = topic
        self._partition = partition
        self._last: _Last | None = None

    def read(self, limit: int = 1024) -> list[Message] | None:
        """What follows, at most about `limit` messages; None once when the stream has begun anew: reading goes on at its begin.

        Raises StreamAway.
        """
        last = self._last
        if last is None:
            return self._follow(self._stream.read(self._topic, self._partition, self.offset, limit))
        messages = self._stream.read(self._topic, self._partition, last.offset, limit + 1)
        if messages and messages[0].offset == last.offset:
            first, *messages = messages
            if (first.key, first.value) != (last.key, last.value):
                self._begin_anew()
                return None
        elif not messages and self._stream.end(self._topic, self._partition) <= last.offset:
            self._begin_anew()
            return None
        return self._follow(messages)

    def wait(self, timeout: float) -> bool:
        """Until there is something to read, at most `timeout` seconds."""
        return self._stream.wait(self._topic, self._partition, self.offset, timeout)

    def _follow(self, messages: list[Message]) -> list[Message]:
        if messages:
            newest = messages[-1]
            self._last = _Last(newest.offset, newest.key, newest.value)
            self.offset = newest.offset + 1
        return messages

    def _begin_anew(self) -> None:
        self._last = None
        self.offset = self._stream.begin(self._topic, self._partition)


def lag(stream: Stream, group: str, topic: str, partition: int) -> int:
    """How many offsets a group has not done yet. Raises StreamAway.

    More than the records that wait where offsets have gaps; all of them where the group never committed.
    """
    committed = stream.committed(group, topic, partition)
    begin = stream.begin(topic, partition)
    return max(0, stream.end(topic, partition) - max(begin, committed or 0))
