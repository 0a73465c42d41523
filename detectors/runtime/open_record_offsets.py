"""Offsets of the newest revisions of all open findings and incidents, so that the next owner reads only from there."""

from typing import NamedTuple, TypeVar

import msgspec

from eagle_eye.errors import UNREADABLE
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Position, Stream
from eagle_eye.stream.start_offset import resume_at
from eagle_eye.types import Finding, Incident

FAR = 20_000
"""A record so many offsets back is written again, so that the next owner need not read that far back."""
_READ = 2048
_Result = TypeVar("_Result", Finding, Incident)


class _OpenRecord(NamedTuple):
    noun: Incident | Finding
    place: Position


class OpenRecordOffsets:
    """Offsets for one partition of the observations. Not thread-safe."""

    def __init__(self, stream: Stream, partition: int) -> None:
        self._stream = stream
        self._partition = partition
        self._group = f"eagle-eye.open.{partition}"
        """Consumer group whose committed offset is that of the oldest open record of a topic."""
        self._open: dict[str, dict[str, _OpenRecord]] = {INCIDENTS: {}, FINDINGS: {}}

    def find(self) -> tuple[list[Incident], list[Finding]]:
        """Newest revision of each open incident and finding of this partition's jobs. Raises StreamUnavailable."""
        return self._find(INCIDENTS, Incident), self._find(FINDINGS, Finding)

    def written(self, topic: str, noun: Incident | Finding, place: Position) -> None:
        """Call after a revision was appended at this position."""
        if noun.active:
            self._open[topic][noun.id] = _OpenRecord(noun, place)
        else:
            self._open[topic].pop(noun.id, None)

    def commit(self) -> tuple[list[Incident], list[Finding]]:
        """Commit the oldest offsets; returns what lies far back and should be written again. Raises StreamUnavailable."""
        far: list[Incident | Finding] = []
        for topic, records in self._open.items():
            for partition in range(self._stream.partitions(topic)):
                end = self._stream.end(topic, partition)
                there = [each for each in records.values() if each.place.partition == partition]
                self._stream.commit(self._group, topic, partition, min((each.place.offset for each in there), default=end))
                far += [each.noun for each in there if each.place.offset < end - FAR]
        return [noun for noun in far if isinstance(noun, Incident)], [noun for noun in far if isinstance(noun, Finding)]

    def _find(self, topic: str, kind: type[_Result]) -> list[_Result]:
        """Read a topic from its committed offset; the highest revision counts, even if a former owner wrote an older one later."""
        decoder = msgspec.json.Decoder(kind)
        newest: dict[str, tuple[_Result, Position]] = {}
        for each in range(self._stream.partitions(topic)):
            offset = resume_at(self._stream, self._group, topic, each)
            while messages := self._stream.read(topic, each, offset, _READ):
                offset = messages[-1].offset + 1
                for message in messages:
                    try:
                        result = decoder.decode(message.value)
                    except UNREADABLE:
                        continue  # the leader keeps it aside
                    if result.id not in newest or result.revision > newest[result.id][0].revision:
                        newest[result.id] = result, Position(each, message.offset)
        ours = [(result, place) for result, place in newest.values() if self._is_ours(result)]
        self._open[topic] = {result.id: _OpenRecord(result, place) for result, place in ours}
        return [result for result, _ in ours]

    def _is_ours(self, result: Incident | Finding) -> bool:
        return result.active and self._stream.partition_of(OBSERVATIONS, result.job) == self._partition

