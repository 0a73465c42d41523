"""What a runner has to write, in order, until the stream has acknowledged it."""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from eagle_eye.stream import FINDINGS, INCIDENTS, JOB_SNAPSHOTS, Position, Stream
from eagle_eye.types import Finding, Incident, JobSnapshot

AT_ONCE = 500
"""Records of one append."""


class _Record(NamedTuple):
    topic: str
    key: str
    value: bytes
    noun: Incident | Finding | None


class OutputBuffer:
    """Of one thread. Neighbours for the same topic go together."""

    def __init__(self, stream: Stream, written: Callable[[str, Incident | Finding, Position], None]) -> None:
        """`written`: told of each incident and finding that was acknowledged, with its topic."""
        self._stream = stream
        self._written = written
        self._waiting: deque[_Record] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, topic: str, key: str, value: bytes) -> None:
        """It goes after everything before it."""
        self._waiting.append(_Record(topic, key, value, None))

    def judged(self, incidents: Iterable[Incident], findings: Iterable[Finding], snapshots: Iterable[JobSnapshot] = ()) -> None:
        """An incident before its findings, both before the snapshot of the frame that they were seen in."""
        for topic, nouns in ((INCIDENTS, incidents), (FINDINGS, findings)):
            self._waiting += [_Record(topic, noun.job, msgspec.json.encode(noun), noun) for noun in nouns]
        for snapshot in snapshots:
            self.add(JOB_SNAPSHOTS, snapshot.job, msgspec.json.encode(snapshot))

    def flush(self) -> None:
        """Write everything. Raises StreamUnavailable or StreamFull; what was not acknowledged stays, and may arrive twice."""
        while self._waiting:
            topic = self._waiting[0].topic
            together = list(takewhile(lambda each: each.topic == topic, islice(self._waiting, AT_ONCE)))  # noqa: B023 -- used at once
            places = self._stream.append(topic, [(each.key, each.value) for each in together])
            for record, place in zip(together, places, strict=True):
                self._waiting.popleft()
                if record.noun is not None:
                    self._written(topic, record.noun, place)
