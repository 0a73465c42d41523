"""Replay of a recorded stream: which findings and incidents follow from it, and how they differ from the recorded ones.

The same runner as in the live system reads the recording from a stream in memory, with the recorded marks; it sends no
command and writes nothing. With the same detectors the findings and incidents are the same, byte for byte. (If the
recording begins in the middle of a stream, or its owner was restarted, detectors may have other state than the original
ones; so nothing before the first recorded finding is compared, unless the recording begins where its stream began.)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.errors import UNREADABLE, WireError
from eagle_eye.protocols import Diagnoser
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Message, Stream
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import Finding, Incident, Mark, Topology

from .evaluator import Configure, Prototypes
from .runner import Runner

_READ = 2048
_NOUNS = {FINDINGS: Finding, INCIDENTS: Incident}
_SINGULAR = {FINDINGS: "finding", INCIDENTS: "incident"}


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One revision of a finding or an incident that differs between recording and replay."""

    what: str
    """missing: only in the recording; new: only in the replay; different: other bytes; order: other sequence."""
    noun: str
    id: str
    revision: int
    recorded: str = ""
    """JSON, empty if it is not there."""
    replayed: str = ""

    @property
    def json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        text = f"{self.what}: {self.noun} {self.id}, revision {self.revision}"
        sides = (("recorded", self.recorded), ("replayed", self.replayed))
        return "\n".join([text, *(f"  {side}: {line}" for side, line in sides if line)])


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """The result of a replay."""

    findings: tuple[Finding, ...]
    incidents: tuple[Incident, ...]
    records: int
    """Records of the topic of observations that were read."""
    compared: int
    """Recorded findings and incidents that could be compared."""
    differences: tuple[Difference, ...]

    @property
    def summary(self) -> str:
        found = f"{self.records} records, {len(self.findings)} findings, {len(self.incidents)} incidents"
        if not self.differences:
            return f"{found}: all {self.compared} recorded ones are the same, byte for byte"
        return f"{found}: {len(self.differences)} differ from the record ({self.compared} compared)"


def recorded_messages(stream: Stream) -> Iterator[Message]:
    """Everything that the topics of observations, findings and incidents hold at this moment."""
    for topic in (OBSERVATIONS, INCIDENTS, FINDINGS):
        for partition in range(stream.partitions(topic)):
            offset, end = stream.begin(topic, partition), stream.end(topic, partition)
            while offset < end:
                messages = stream.read(topic, partition, offset, min(_READ, end - offset))
                if not messages:
                    break
                yield from messages
                offset = messages[-1].offset + 1


def replay(
    messages: Iterable[Message],
    detectors: Prototypes,
    diagnoser: Diagnoser,
    *,
    topology: Topology | None = None,
    configure: Configure | None = None,
    from_start: bool = False,
) -> ReplayResult:
    """Evaluate recorded messages again: `recorded_messages(stream)` or `incident_recorder.read_records(path)`.

    from_start: the recording begins where its stream began, so that all of it can be compared.
    """
    streams: dict[int, MemoryStream] = {}
    recorded: list[tuple[str, bytes]] = []
    clock = FakeClock()
    until = float("-inf")
    records = 0
    for message in messages:
        if message.topic == OBSERVATIONS:
            stream = streams.setdefault(message.partition, MemoryStream(clock=clock))
            stream.append(OBSERVATIONS, [(message.key, message.value)])
            until = max(until, _time_of_mark(message.value))
            records += 1
        elif message.topic in _NOUNS:
            recorded.append((message.topic, message.value))
    again: list[tuple[str, bytes]] = []
    for _, stream in sorted(streams.items()):
        runner = Runner(
            stream, 0, detectors, diagnoser, clock=clock, generation=0, topology=topology, configure=configure, marks=False
        )
        while runner.offset < stream.end(OBSERVATIONS, 0):
            runner.step()
        runner.step()
        again += [(topic, message.value) for topic in _NOUNS for message in _all(stream, topic)]
    return _compared(recorded, again, (float("-inf") if from_start else None, until), records)


def _all(stream: Stream, topic: str) -> list[Message]:
    return stream.read(topic, 0, 0, stream.end(topic, 0))


def _time_of_mark(value: bytes) -> float:
    try:
        record = wire.RecordReader().read(value) if value[3:4] == wire.MARK else None
    except WireError:
        return float("-inf")
    return record.time if isinstance(record, Mark) else float("-inf")


_Key = tuple[str, str, int]


def _compared(
    recorded: list[tuple[str, bytes]], again: list[tuple[str, bytes]], span: tuple[float | None, float], records: int
) -> ReplayResult:
    """`span`: times from (None: the first recorded finding) and until which is compared."""
    before, after = _keyed(recorded), _keyed(again)
    begin, until = span
    if begin is None:
        begin = min((noun.time for noun, _ in before.values()), default=float("-inf"))
    before = {key: each for key, each in before.items() if each[0].time <= until}
    shared = {key: each for key, each in after.items() if each[0].time >= begin}
    differences = [_difference(key, before.get(key), shared.get(key)) for key in {**before, **shared}]
    found = [difference for difference in differences if difference is not None]
    return ReplayResult(
        findings=tuple(noun for noun, _ in after.values() if isinstance(noun, Finding)),
        incidents=tuple(noun for noun, _ in after.values() if isinstance(noun, Incident)),
        records=records,
        compared=len(before),
        differences=tuple(found or _order(list(before), list(shared))),
    )


def _keyed(recorded: list[tuple[str, bytes]]) -> dict[_Key, tuple[Finding | Incident, bytes]]:
    """By topic, id and revision; written twice with the same bytes (at least once) counts once."""
    result: dict[_Key, tuple[Finding | Incident, bytes]] = {}
    for topic, value in recorded:
        try:
            noun: Finding | Incident = msgspec.json.decode(value, type=_NOUNS[topic])
        except UNREADABLE:
            continue  # nobody has read it
        result.setdefault((topic, noun.id, noun.revision), (noun, value))
    return result


def _difference(
    key: _Key, before: tuple[Finding | Incident, bytes] | None, after: tuple[Finding | Incident, bytes] | None
) -> Difference | None:
    if before is not None and after is not None and before[1] == after[1]:
        return None
    what = "missing" if after is None else "new" if before is None else "different"
    return Difference(
        what=what,
        noun=_SINGULAR[key[0]],
        id=key[1],
        revision=key[2],
        recorded=before[1].decode(errors="replace") if before else "",
        replayed=after[1].decode(errors="replace") if after else "",
    )


def _order(before: list[_Key], after: list[_Key]) -> list[Difference]:
    """The first difference in order within each topic."""
    found = []
    for topic, noun in _SINGULAR.items():
        pairs = zip([key for key in before if key[0] == topic], [key for key in after if key[0] == topic], strict=True)
        other = next(((one, two) for one, two in pairs if one != two), None)
        if other is not None:
            found.append(Difference(what="order", noun=noun, id=other[0][1], revision=other[0][2], replayed=other[1][1]))
    return found
