"""How a new owner takes up a partition: where to begin, what to warm up on, what is open."""

from typing import TypeVar

import msgspec

from eagle_eye import wire
from eagle_eye.errors import WireError
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Stream
from eagle_eye.types import Finding, Incident

from .watch import Watch
from .window import KEPT_SECONDS

_READ = 2048
_Judged = TypeVar("_Judged", Finding, Incident)


def committed_offset(stream: Stream, group: str, partition: int) -> int:
    """Where the last owner stopped; the oldest record if there was none."""
    committed = stream.committed(group, OBSERVATIONS, partition)
    begin = stream.begin(OBSERVATIONS, partition)
    return begin if committed is None else max(begin, committed)


def offset_before(stream: Stream, partition: int, end: int, seconds: float) -> int:
    """Offset of the first record that is at most `seconds` older than the last one before `end`."""
    begin = stream.begin(OBSERVATIONS, partition)
    newest = stream.read(OBSERVATIONS, partition, max(begin, end - 1), 1)
    if not newest:
        return begin
    wanted = newest[0].time - seconds
    low, high = begin, end
    while low < high:
        middle = (low + high) // 2
        found = stream.read(OBSERVATIONS, partition, middle, 1)
        if found and found[0].time < wanted:
            low = middle + 1
        else:
            high = middle
    return low


def refill(stream: Stream, partition: int, watch: Watch, reader: wire.Reader, end: int) -> None:
    """Let the watch see the last ten minutes before `end`; what it says about them was said before."""
    watch.muted = True
    offset = offset_before(stream, partition, end, KEPT_SECONDS)
    while offset < end:
        messages = stream.read(OBSERVATIONS, partition, offset, min(_READ, end - offset))
        messages = [message for message in messages if message.offset < end]
        if not messages:
            break
        for message in messages:
            offset = message.offset + 1
            try:
                watch.take(reader.read(message.value))
            except WireError:
                continue  # it is in the dead-letter topic already
    watch.muted = False


def open_incidents_and_findings(stream: Stream, partition: int) -> tuple[list[Incident], list[Finding]]:
    """Newest revision of everything that is still open about the jobs of this partition."""
    return _open(stream, partition, INCIDENTS, Incident), _open(stream, partition, FINDINGS, Finding)


def _open(stream: Stream, partition: int, topic: str, noun: type[_Judged]) -> list[_Judged]:
    decoder = msgspec.json.Decoder(noun)
    newest: dict[str, _Judged] = {}
    for each in range(stream.partitions(topic)):
        offset = stream.begin(topic, each)
        while messages := stream.read(topic, each, offset, _READ):
            offset = messages[-1].offset + 1
            for message in messages:
                judged = decoder.decode(message.value)
                if judged.active:
                    newest[judged.id] = judged
                else:
                    newest.pop(judged.id, None)
    return [judged for judged in newest.values() if stream.partition_of(OBSERVATIONS, judged.job) == partition]
