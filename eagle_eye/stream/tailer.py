"""Reads a partition from an offset on, and notices when the stream was reset.

A broker that lost its memory begins again at offset 0. Offsets alone do not show it once it has grown beyond the
reader's place. So each read begins with the message that was read last: it must still be there, and be the same.
"""

from . import Message, ReadableStream, Stream


class Tailer:
    """One reader of one partition, used by one thread."""

    def __init__(self, stream: ReadableStream, topic: str, partition: int, offset: int) -> None:
        self.offset = offset
        """Of the next message."""
        self._stream = stream
        self._topic = topic
        self._partition = partition
        self._last: Message | None = None
        """The one that was read last; the next read begins with it."""
        self._read: list[Message] = []
        """What the last read returned, after the `_last` of before."""

    def read(self, limit: int = 1024) -> list[Message] | None:
        """What follows, at most about `limit` messages; None once when the stream has begun anew: reading goes on at its begin.

        Raises StreamUnavailable.
        """
        last = self._last or self._before()
        if last is None:
            return self._follow_from(None, self._stream.read(self._topic, self._partition, self.offset, limit))
        messages = self._stream.read(self._topic, self._partition, last.offset, limit + 1)
        if messages and messages[0].offset == last.offset:
            first, *messages = messages
            if (first.key, first.value) != (last.key, last.value):
                self._begin_anew()
                return None
            if not messages:  # nothing yet, or a hole that only a read from behind the last one looks through
                messages = self._stream.read(self._topic, self._partition, self.offset, limit)
        elif not messages and self._stream.end(self._topic, self._partition) <= last.offset:
            self._begin_anew()
            return None
        return self._follow_from(last, messages)

    def rewind(self, offset: int) -> None:
        """Read again from `offset` on, of what the last read returned: the reader failed before it had done that."""
        if offset < self.offset:
            self.offset = offset
            self._last = next((message for message in reversed(self._read) if message.offset < offset), None)

    def wait(self, timeout: float) -> bool:
        """Until there is something to read, at most `timeout` seconds."""
        return self._stream.wait(self._topic, self._partition, self.offset, timeout)

    def _before(self) -> Message | None:
        """The message before the place where reading begins; None if that is the begin of the stream.

        A place beyond the end stands for a message that is there no more.
        """
        if self.offset <= self._stream.begin(self._topic, self._partition):
            return None
        found = self._stream.read(self._topic, self._partition, self.offset - 1, 1)
        if not found and self._stream.end(self._topic, self._partition) < self.offset:
            return Message(self._topic, self._partition, self.offset - 1, "", b"", 0.0)
        return found[0] if found and found[0].offset < self.offset else None

    def _follow_from(self, last: Message | None, messages: list[Message]) -> list[Message]:
        self._last = last
        self._read = messages if last is None else [last, *messages]
        if messages:
            self._last = messages[-1]
            self.offset = messages[-1].offset + 1
        return messages

    def _begin_anew(self) -> None:
        self._last, self._read = None, []
        self.offset = self._stream.begin(self._topic, self._partition)


def lag(stream: Stream, group: str, topic: str, partition: int) -> int:
    """How many offsets a group has not done yet. Raises StreamUnavailable.

    More than the records that wait where offsets have gaps; all of them where the group never committed.
    """
    committed = stream.committed(group, topic, partition)
    begin = stream.begin(topic, partition)
    return max(0, stream.end(topic, partition) - max(begin, committed or 0))
