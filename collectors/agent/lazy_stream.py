"""A stream that is opened on first use, so that the agent starts even while the stream is unavailable."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import cast

from eagle_eye.errors import StreamError, StreamUnavailable
from eagle_eye.stream import Message, Position, Stream


class LazyStream:
    """The part of `Stream` that a writer needs. Raises StreamUnavailable while it cannot be opened; the writer spools then."""

    def __init__(self, opening: Callable[[], Stream]) -> None:
        self._opening = opening
        self._stream: Stream | None = None

    def open(self) -> None:
        """Try to open it now; else it is opened on first use. Raises ConfigError for an invalid configuration."""
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
        """Typed as a whole `Stream`, for a caller that only writes."""
        return cast("Stream", self)

    def _opened(self) -> Stream:
        if self._stream is None:
            try:
                self._stream = self._opening()
            except (OSError, StreamError) as error:
                raise StreamUnavailable(f"the stream cannot be opened: {error}") from error
        return self._stream
