"""Where the newest revision of everything that is open lies in its topic, so that a next owner need not read it all."""

from typing import NamedTuple, TypeVar

import msgspec

from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Position, Stream
from eagle_eye.stream.start_offset import resume_at
from eagle_eye.types import Finding, Incident

FAR = 20_000
"""What lies so many records back is written again, so that a next owner need not go back for it."""
_READ = 2048
_Judged = TypeVar("_Judged", Finding, Incident)


class _Open(NamedTuple):
    noun: Incident | Finding
    place: Position


class OpenRecordOffsets:
    """Of one partition of the observations; of one thread."""

    def __init__(self, stream: Stream, partition: int) -> None:
        self._stream = stream
        self._partition = partition
        self._group = f"eagle-eye.open.{partition}"
        """Its commits say from where on everything that is open is found in a topic."""
        self._open: dict[str, dict[str, _Open]] = {INCIDENTS: {}, FINDINGS: {}}

    def find(self) -> tuple[list[Incident], list[Finding]]:
        """Newest revision of everything that is still open about the jobs of this partition. Raises StreamUnavailable."""
        return self._find(INCIDENTS, Incident), self._find(FINDINGS, Finding)

    def written(self, topic: str, noun: Incident | Finding, place: Position) -> None:
        """A revision was appended there."""
        if noun.active:
            self._open[topic][noun.id] = _Open(noun, place)
        else:
            self._open[topic].pop(noun.id, None)

    def commit(self) -> tuple[list[Incident], list[Finding]]:
        """Remember from where on to read; returns what lies far back and should be written again. Raises StreamUnavailable."""
        far: list[Incident | Finding] = []
        for topic, standing in self._open.items():
            for partition in range(self._stream.partitions(topic)):
                end = self._stream.end(topic, partition)
                there = [each for each in standing.values() if each.place.partition == partition]
                self._stream.commit(self._group, topic, partition, min((each.place.offset for each in there), default=end))
                far += [each.noun for each in there if each.place.offset < end - FAR]
        return [noun for noun in far if isinstance(noun, Incident)], [noun for noun in far if isinstance(noun, Finding)]

    def _find(self, topic: str, kind: type[_Judged]) -> list[_Judged]:
        """The highest revision counts, also where a former owner wrote an older one after it."""
        decoder = msgspec.json.Decoder(kind)
        newest: dict[str, tuple[_Judged, Position]] = {}
        for each in range(self._stream.partitions(topic)):
            offset = resume_at(self._stream, self._group, topic, each)
            while messages := self._stream.read(topic, each, offset, _READ):
                offset = messages[-1].offset + 1
                for message in messages:
                    judged = decoder.decode(message.value)
                    if judged.id not in newest or judged.revision > newest[judged.id][0].revision:
                        newest[judged.id] = judged, Position(each, message.offset)
        ours = [(judged, place) for judged, place in newest.values() if self._is_ours(judged)]
        self._open[topic] = {judged.id: _Open(judged, place) for judged, place in ours}
        return [judged for judged, _ in ours]

    def _is_ours(self, judged: Incident | Finding) -> bool:
        return judged.active and self._stream.partition_of(OBSERVATIONS, judged.job) == self._partition

