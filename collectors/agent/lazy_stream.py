"""A stream that is opened when it is first needed, so that the agent begins even while it cannot be."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from eagle_eye.errors import StreamError, StreamUnavailable
from eagle_eye.stream import Message, Position, Stream


class LazyStream:
    """What a writer needs of a stream. While it cannot be opened it is away, and the writer spools."""

    def __init__(self, opening: Callable[[], Stream]) -> None:
        self._opening = opening
        self._stream: Stream | None = None

    def open(self) -> None:
        """Now, if it can be; else at the first use. Raises ConfigError for a configuration that will never do."""
        with suppress(StreamUnavailable):
            self._opened()

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> list[Position]:
        """As `Stream.append`; StreamUnavailable also while the stream cannot be opened, as in the others."""
        return self._opened().append(topic, items)

    def read(self, topic: str, partition: int, offset: int, limit: int = 1024) -> list[Message]:
        """As `Stream.read`."""
        return self._opened().read(topic, partition, offset, limit)

    def begin(self, topic: str, partition: int) -> int:
        """As `Stream.begin`."""
        return self._opened().begin(topic, partition)

    def committed(self, group: str, topic: str, partition: int) -> int | None:
        """As `Stream.committed`."""
        return self._opened().committed(group, topic, partition)

    def close(self) -> None:
        """Release it, if it was opened."""
        if self._stream is not None:
            self._stream.close()

    def as_stream(self) -> Stream:
        """For whoever asks for a whole stream and only writes."""
        return cast("Stream", self)

    def _opened(self) -> Stream:
        if self._stream is None:
            try:
                self._stream = self._opening()
            except (OSError, StreamError) as error:
                raise StreamUnavailable(f"the stream cannot be opened: {error}") from error
        return self._stream
