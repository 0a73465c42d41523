"""The same record gives the same findings and incidents, byte for byte; another one others."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from detectors.runtime.incident_recorder import read_records, record_path, write_records
from detectors.runtime.replay import ReplayResult, recorded_messages, replay
from detectors.runtime.runner import Runner
from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.errors import WireError
from eagle_eye.frames import Frame
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, Message
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import (
    Batch,
    Block,
    Claim,
    ConfigChange,
    Culprit,
    Entity,
    Event,
    Evidence,
    Finding,
    Incident,
    Kind,
    Reading,
    Severity,
    Topology,
)

JOB = "t/n/r"


@dataclass
class Hot:
    """Claims each node whose mean over five ticks is too high; tells the mean."""

    past_s: ClassVar[float] = 5.0
    limit: float = 60.0

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        if not frame.tick or Kind.NODE not in frame.entities:
            return
        means = np.nanmean(frame.past(Kind.NODE, "temperature_celsius", 5.0), axis=0)
        for node, mean in zip(frame.entities[Kind.NODE], means.tolist(), strict=True):
            proof = Evidence(text=f"{mean:.3f}", value=mean)
            entity = Entity(kind=Kind.NODE, name=node)
            yield Claim(
                entity=entity,
                kind="node.hot",
                score=0.9,
                since=frame.time,
                evidence=(proof,),
                active=mean > self.limit,
            )


@dataclass
class Exited:
    """Claims every exit event."""

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            proof = Evidence(text=event.message, event=event.id)
            yield Claim(entity=event.entity, kind="worker.exited", score=1.0, since=event.time, evidence=(proof,))


class Folded:
    """One incident per job, revised by every finding."""

    def diagnose(self, opened: list[Incident], findings: list[Finding], topology: Topology, /) -> Iterator[Incident]:
        before = {incident.job: incident for incident in opened}
        for job in dict.fromkeys(finding.job for finding in findings):
            mine = [finding for finding in findings if finding.job == job]
            known = before.get(job)
            yield Incident(
                id=known.id if known else "incident-" + mine[0].id,
                revision=known.revision + 1 if known else 1,
                job=job,
                cause="heat",
                culprits=(Culprit(entity=mine[0].entity, confidence=0.5),),
                severity=Severity.INFO,
                findings=tuple(finding.id for finding in mine),
                evidence=mine[0].evidence,
                since=mine[0].since,
                time=mine[0].time,
                active=any(finding.active for finding in mine),
            )


DETECTORS = [("hot", Hot()), ("exited", Exited())]


def record(seconds: int = 40, records: Path | None = None, changed_at: int = -1) -> MemoryStream:
    """A live run: nodes whose temperature wanders, workers that exit, a new configuration in between."""
    clock, rng = FakeClock(5000.0), np.random.default_rng(3)
    stream = MemoryStream(clock=clock)

    def configure(change: ConfigChange) -> list[tuple[str, object]]:
        return [("hot", Hot(limit=float(change.text))), ("exited", Exited())]

    runner = Runner(stream, 0, DETECTORS, Folded(), clock=clock, generation=1, configure=configure, records=records)  # type: ignore[arg-type]
    schemas, heat = wire.Schemas(), 50.0
    for second in range(seconds):
        clock.advance(1.0)
        heat += 6.0 * float(np.sin(second / 3.0)) + float(rng.normal(0, 1))
        for node in ("a", "b"):
            celsius = heat + (0.01 if second == changed_at and node == "a" else 0.0)
            matrix = np.array([[celsius]], dtype=np.float32)
            names = ("temperature_celsius",)
            reading = Reading(
                source="host", kind=Kind.NODE, entities=(node,), names=names, matrix=matrix, time=clock.now()
            )
            schema = schemas.schema_of(reading)
            block = Block(schema_id=schema.id, reading=reading)
            batch = Batch(node=node, incarnation="b", job=JOB, number=second, time=clock.now(), blocks=(block,))
            stream.append(OBSERVATIONS, [(JOB, wire.encode(schema)), (JOB, wire.encode(batch))])
        if second % 13 == 5:
            entity = Entity(kind=Kind.WORKER, name=f"r/a/{second}")
            event = Event(name="exit", job=JOB, entity=entity, time=clock.now(), node="a", incarnation="b", number=second)
            stream.append(OBSERVATIONS, [(JOB, wire.encode(event))])
        if second == 20:
            stream.append(OBSERVATIONS, [("-", wire.encode(ConfigChange(digest="2", text="55")))])
        for _ in range(4):
            runner.step()
    return stream


def again(messages: list[Message], *, from_start: bool = False) -> ReplayResult:
    def configure(change: ConfigChange) -> list[tuple[str, object]]:
        return [("hot", Hot(limit=float(change.text))), ("exited", Exited())]

    return replay(messages, DETECTORS, Folded(), configure=configure, from_start=from_start)  # type: ignore[arg-type]


def topic(stream: MemoryStream, name: str) -> list[bytes]:
    return [message.value for message in stream.read(name, 0, 0, 10_000)]


def test_the_same_record_gives_the_same_findings_and_incidents_byte_for_byte() -> None:
    stream = record()
    replayed = again(list(recorded_messages(stream)), from_start=True)
    assert replayed.differences == ()
    assert replayed.compared == len(topic(stream, FINDINGS)) + len(topic(stream, INCIDENTS)) > 20
    assert "byte for byte" in replayed.summary


def test_two_live_runs_of_the_same_world_write_the_same_bytes() -> None:
    one, two = record(), record()
    assert topic(one, FINDINGS) == topic(two, FINDINGS)
    assert topic(one, INCIDENTS) == topic(two, INCIDENTS)
    assert topic(one, FINDINGS) != topic(record(changed_at=12), FINDINGS)


def test_one_changed_reading_is_found() -> None:
    messages = list(recorded_messages(record()))
    changed = [message for message in recorded_messages(record(changed_at=12)) if message.topic == OBSERVATIONS]
    replayed = again(changed + [message for message in messages if message.topic != OBSERVATIONS])
    assert {difference.what for difference in replayed.differences} == {"different"}
    difference = replayed.differences[0]
    assert (difference.recorded, difference.replayed) != ("", "")
    assert difference.recorded != difference.replayed
    assert str(difference).startswith("different: ")
    assert "differ from the record" in replayed.summary


def test_what_is_new_before_the_first_recorded_judgement_counts_where_the_record_is_whole() -> None:
    messages = list(recorded_messages(record()))
    first = min(
        msgspec.json.decode(message.value)["time"] for message in messages if message.topic in (FINDINGS, INCIDENTS)
    )
    entity = Entity(kind=Kind.WORKER, name="r/a/0")
    early = Event(name="exit", job=JOB, entity=entity, time=first - 1.0, node="a", incarnation="c", number=0)
    at = next(position for position, message in enumerate(messages) if message.key == JOB)
    messages.insert(at + 1, messages[at]._replace(value=wire.encode(early)))
    assert "new" not in {difference.what for difference in again(messages).differences if early.id in difference.replayed}
    assert "new" in {
        difference.what for difference in again(messages, from_start=True).differences if early.id in difference.replayed
    }


def test_other_detectors_leave_findings_missing_or_new() -> None:
    messages = list(recorded_messages(record()))
    missing = replay(messages, [("exited", Exited())], Folded())  # type: ignore[list-item]
    assert any(difference.what == "missing" and difference.noun == "finding" for difference in missing.differences)
    one_less = [message for message in messages if message.topic != FINDINGS]
    new = again(one_less)
    assert all(difference.what == "new" for difference in new.differences)
    assert new.differences


def test_what_was_written_twice_counts_once() -> None:
    messages = list(recorded_messages(record()))
    findings = [message for message in messages if message.topic == FINDINGS]
    assert again(messages + findings).differences == ()


def test_the_file_around_an_incident_replays_as_well(tmp_path: Path) -> None:
    stream = record(records=tmp_path, seconds=60)
    first = next(message for message in recorded_messages(stream) if message.topic == INCIDENTS)
    incident = first.value.split(b'"id":"')[1].split(b'"')[0].decode()
    replayed = again(list(read_records(record_path(tmp_path, incident))))
    assert replayed.differences == ()
    assert replayed.compared > 3


def test_a_record_of_several_partitions_is_judged_partition_by_partition() -> None:
    messages = list(recorded_messages(record()))
    moved = [message._replace(partition=3) if message.topic == OBSERVATIONS else message for message in messages]
    assert again(moved).differences == ()


def test_records_survive_a_file_and_a_torn_end_is_left_out(tmp_path: Path) -> None:
    messages = list(recorded_messages(record(5)))
    path = tmp_path / "some.records"
    write_records(path, messages)
    assert list(read_records(path)) == messages
    path.write_bytes(path.read_bytes()[:-3])
    assert list(read_records(path)) == messages[:-1]
    path.write_bytes(b"something else")
    with pytest.raises(WireError, match="does not begin as a file of records does"):
        list(read_records(path))
