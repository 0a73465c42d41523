"""How a new owner takes up a partition: what to warm up on, what is open."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from eagle_eye import wire
from eagle_eye.errors import WireError
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Stream
from eagle_eye.stream.seeking import offset_before
from eagle_eye.types import Finding, Incident

from .watch import Watch
from .window import KEPT_SECONDS

_READ = 2048
_Judged = TypeVar("_Judged", Finding, Incident)


def refill(
    stream: Stream, partition: int, watch: Watch, reader: wire.Reader, end: int, stopped: Callable[[], bool]
) -> None:
    """Let the watch see the last ten minutes before `end`; what it says about them was said before."""
    watch.muted = True
    offset = offset_before(stream, OBSERVATIONS, partition, end, KEPT_SECONDS)
    while offset < end and not stopped():
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
    """The highest revision counts, also where a former owner wrote an older one after it."""
    decoder = msgspec.json.Decoder(noun)
    newest: dict[str, _Judged] = {}
    for each in range(stream.partitions(topic)):
        offset = stream.begin(topic, each)
        while messages := stream.read(topic, each, offset, _READ):
            offset = messages[-1].offset + 1
            for message in messages:
                judged = decoder.decode(message.value)
                known = newest.get(judged.id)
                if known is None or judged.revision > known.revision:
                    newest[judged.id] = judged
    ours = [judged for judged in newest.values() if judged.active]
    return [judged for judged in ours if stream.partition_of(OBSERVATIONS, judged.job) == partition]
