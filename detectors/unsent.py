"""What a runner has to write, in order, until the stream has acknowledged it."""

from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile

import msgspec

from eagle_eye.stream import FINDINGS, INCIDENTS, PULSES, Stream
from eagle_eye.types import Finding, Incident, Pulse

AT_ONCE = 500
"""Records of one append."""


class Unsent:
    """Of one thread. Neighbours for the same topic go together."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._waiting: deque[tuple[str, str, bytes]] = deque()
        """(topic, key, value)."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, topic: str, key: str, value: bytes) -> None:
        """It goes after everything before it."""
        self._waiting.append((topic, key, value))

    def judged(self, incidents: Iterable[Incident], findings: Iterable[Finding], pulses: Iterable[Pulse] = ()) -> None:
        """An incident before its findings, both before the pulse of the frame that they were seen in."""
        for topic, nouns in ((INCIDENTS, incidents), (FINDINGS, findings), (PULSES, pulses)):
            for noun in nouns:
                self.add(topic, noun.job, msgspec.json.encode(noun))

    def flush(self) -> None:
        """Write everything. Raises StreamAway or StreamFull; what was not acknowledged stays, and may arrive twice."""
        while self._waiting:
            topic = self._waiting[0][0]
            together = list(takewhile(lambda each: each[0] == topic, islice(self._waiting, AT_ONCE)))  # noqa: B023 -- used at once
            self._stream.append(topic, [(key, value) for _, key, value in together])
            for _ in together:
                self._waiting.popleft()
