"""A stream that is opened when it is first needed, so that the agent begins even while it cannot be."""

from collections.abc import Callable, Sequence
from typing import cast

from eagle_eye.errors import StreamAway, StreamError
from eagle_eye.stream import Stream


class LateStream:
    """What a writer needs of a stream. While it cannot be opened it is away, and the writer spools."""

    def __init__(self, opening: Callable[[], Stream]) -> None:
        self._opening = opening
        self._stream: Stream | None = None

    def append(self, topic: str, items: Sequence[tuple[str, bytes]]) -> None:
        """As `Stream.append`; StreamAway also while the stream cannot be opened."""
        if self._stream is None:
            try:
                self._stream = self._opening()
            except (OSError, StreamError) as error:
                raise StreamAway(f"the stream cannot be opened: {error}") from error
        self._stream.append(topic, items)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def as_stream(self) -> Stream:
        """For whoever asks for a whole stream and only appends."""
        return cast("Stream", self)
