"""Output of a runner: records kept in order until the stream has acknowledged them, and callbacks for the leader in the same process."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import NamedTuple, TypeVar

import msgspec

from eagle_eye.errors import StreamRefused
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import encode_snapshot
from eagle_eye.stream import FINDINGS, INCIDENTS, JOB_SNAPSHOTS, Position, Stream
from eagle_eye.types import Finding, Incident, JobSnapshot, Notice

AT_ONCE = 500
"""Records of one append."""
_log = logging.getLogger(__name__)
_Payload = TypeVar("_Payload")


class _Record(NamedTuple):
    topic: str
    key: str
    value: bytes
    noun: Incident | Finding | None


class OutputBuffer:
    """Not thread-safe. Successive records of one topic are appended together."""

    def __init__(
        self, stream: Stream, written: Callable[[str, Incident | Finding, Position], None], refused: Callable[[str], None] = _log.warning
    ) -> None:
        """`written`: called with (topic, incident or finding, position) for each that the stream has acknowledged; `refused`: with the reason
        for each that it can never take."""
        self._stream = stream
        self._written = written
        self._refused = refused
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
            self.add(JOB_SNAPSHOTS, snapshot.job, encode_snapshot(snapshot))

    def flush(self) -> None:
        """Write everything. Raises StreamUnavailable or StreamFull; what was not acknowledged stays, and may be written twice."""
        while self._pending:
            topic = self._pending[0].topic
            together = list(takewhile(lambda each: each.topic == topic, islice(self._pending, AT_ONCE)))  # noqa: B023 -- used at once
            try:
                self._append(topic, together)
            except StreamRefused:
                self._append_each(topic, together)

    def _append_each(self, topic: str, records: list[_Record]) -> None:
        """One of them can never be taken: it must not keep the others waiting."""
        for record in records:
            try:
                self._append(topic, [record])
            except StreamRefused as error:
                self._pending.popleft()
                self._refused(str(error))

    def _append(self, topic: str, records: list[_Record]) -> None:
        places = self._stream.append(topic, [(each.key, each.value) for each in records])
        for record, place in zip(records, places, strict=True):
            self._pending.popleft()
            if record.noun is not None:
                self._written(topic, record.noun, place)


class Subscribers(NamedTuple):
    """Callbacks, called on the runner's own thread. An exception in one of them is logged; detection goes on."""

    incidents: Callable[[list[Incident]], None] | None
    findings: Callable[[list[Finding]], None] | None
    snapshots: Callable[[list[JobSnapshot]], None] | None
    frame: Callable[[Frame], None] | None
    notice: Callable[[Notice], None] | None

    def publish(self, incidents: list[Incident], findings: list[Finding], snapshots: list[JobSnapshot], frames: Sequence[Frame]) -> None:
        """Results of one mark; empty ones are not passed on."""
        if incidents:
            _call(self.incidents, incidents)
        if findings:
            _call(self.findings, findings)
        if snapshots:
            _call(self.snapshots, snapshots)
        for frame in frames:
            _call(self.frame, frame)

    def notify(self, notice: Notice) -> None:
        """A notice about detection itself, for the operator."""
        _log.warning("%s: %s", notice.name, notice.message)
        _call(self.notice, notice)


def _call(subscriber: Callable[[_Payload], None] | None, payload: _Payload) -> None:
    if subscriber is None:
        return
    try:
        subscriber(payload)
    except Exception:  # noqa: BLE001 -- a subscriber is foreign code: detection goes on
        _log.exception("a subscriber of the runner failed")
