"""Records that a runner has to write, in order, until the stream has acknowledged them."""

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
    """Not thread-safe. Successive records of one topic are appended together."""

    def __init__(self, stream: Stream, written: Callable[[str, Incident | Finding, Position], None]) -> None:
        """`written`: called with (topic, incident or finding, position) for each that the stream has acknowledged."""
        self._stream = stream
        self._written = written
        self._pending: deque[_Record] = deque()

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, topic: str, key: str, value: bytes) -> None:
        """Append one encoded record."""
        self._pending.append(_Record(topic, key, value, None))

    def add_results(self, incidents: Iterable[Incident], findings: Iterable[Finding], snapshots: Iterable[JobSnapshot] = ()) -> None:
        """Append incidents, then findings, then the snapshots of the frames in which they were found."""
        for topic, nouns in ((INCIDENTS, incidents), (FINDINGS, findings)):
            self._pending += [_Record(topic, noun.job, msgspec.json.encode(noun), noun) for noun in nouns]
        for snapshot in snapshots:
            self.add(JOB_SNAPSHOTS, snapshot.job, msgspec.json.encode(snapshot))

    def flush(self) -> None:
        """Write everything. Raises StreamUnavailable or StreamFull; what was not acknowledged stays, and may be written twice."""
        while self._pending:
            topic = self._pending[0].topic
            together = list(takewhile(lambda each: each.topic == topic, islice(self._pending, AT_ONCE)))  # noqa: B023 -- used at once
            places = self._stream.append(topic, [(each.key, each.value) for each in together])
            for record, place in zip(together, places, strict=True):
                self._pending.popleft()
                if record.noun is not None:
                    self._written(topic, record.noun, place)
