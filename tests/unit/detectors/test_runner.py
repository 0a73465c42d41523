"""The one loop: marks, order, isolation of detectors, outages, restarts; with a stream in memory and a fake clock."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from detectors.runtime import evaluator
from detectors.runtime.incident_recorder import read_records, record_path
from detectors.runtime.mark_writer import BOOTSTRAP_TICKS, mark_key
from eagle_eye import wire
from eagle_eye.errors import ConfigError
from eagle_eye.frames import Frame
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, OBSERVATIONS, RUNNER_GROUP
from eagle_eye.stream.memory import MemoryStream
from eagle_eye.types import (
    LARGEST,
    Baseline,
    Claim,
    ConfigChange,
    Evidence,
    Finding,
    Incident,
    Layout,
    Mark,
    RankPlacement,
    SchemaRecord,
)
from fakes.runner_partition import JOB, NODE, Exited, Hot, World, settle


@dataclass
class Broken:
    """Raises, like a detector with a mistake."""

    def update(self, frame: Frame, /) -> Iterable[Claim]:
        raise RuntimeError("a mistake")


@dataclass
class Counting:
    """Says at which frames it was asked."""

    every: ClassVar[int] = 5

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        proof = Evidence(text=f"{frame.number} {frame.tick}")
        yield Claim(entity=NODE, kind="asked", score=1.0, since=0.0, evidence=(proof,))


@dataclass
class Third:
    """Claims when it is asked for the third time."""

    asked: int = 0

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        self.asked += 1
        if self.asked == 3:
            yield Claim(entity=NODE, kind="third", score=1.0, since=0.0, evidence=(Evidence(text=frame.job),))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


# --- marks -------------------------------------------------------------------------------------------------------


def test_a_tick_each_second_and_a_cut_as_soon_as_an_event_was_read(world: World) -> None:
    runner = world.runner(Exited())
    assert world.marks() == []
    world.exit()
    settle(runner)
    assert [mark.mark for mark in world.marks()] == ["cut"]
    for _ in range(3):
        world.second(runner)
    marks = [(mark.mark, mark.number, mark.generation) for mark in world.marks()]
    assert marks == [("cut", 1, 1), ("tick", 2, 1), ("tick", 3, 1), ("tick", 4, 1)]
    assert [(frame.number, frame.tick) for frame in world.frames] == [(1, False), (2, True), (3, True), (4, True)]


@pytest.mark.parametrize("limit", [1, 100])
def test_events_already_waiting_share_one_cut(world: World, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("detectors.runtime.runner.READ_LIMIT", limit)
    runner = world.runner(Exited())
    for worker in range(5):
        world.exit(f"r/n/{worker}")
    settle(runner)
    settle(runner)
    assert [mark.mark for mark in world.marks()] == ["cut"]
    assert [len(frame.events) for frame in world.frames] == [5]
    assert len(world.incidents) == 5


def test_an_event_that_comes_after_the_mark_was_written_gets_its_own(world: World) -> None:
    runner = world.runner(Exited())
    world.exit()
    runner.step()  # reads the event, appends the cut
    world.exit("r/n/1")  # behind the cut
    settle(runner)
    assert [len(frame.events) for frame in world.frames] == [1, 1]


def test_marks_of_an_owner_that_was_superseded_are_skipped_and_end_it(world: World) -> None:
    old, new = world.runner(Exited(), generation=1), world.runner(Exited(), generation=2)
    world.second(new)
    world.put(Mark(mark="tick", generation=1, number=99, time=world.clock.now()))  # the old one had not noticed yet
    settle(new)
    assert ([frame.generation for frame in world.frames], new.superseded) == ([2], False)
    settle(old)
    assert old.superseded
    assert "runner.superseded" in world.notices


def test_ticks_that_a_paused_process_missed_are_not_made_up(world: World) -> None:
    runner = world.runner(Exited())
    world.clock.advance(30.0)
    settle(runner)
    settle(runner)
    assert len(world.marks()) == 1


def test_standing_records_come_again_as_a_snapshot(world: World) -> None:
    change = ConfigChange(digest="d", text="")
    runner = world.runner(Exited(), config=change)
    place = RankPlacement(worker="r/n/0", node="n", rank=0, local_rank=0)
    layout = Layout(job=JOB, epoch=1, time=1.0, coordinator="n", launchers={}, placements=(place,))
    world.put(layout)
    world.put(Baseline(name="forest", job=JOB, digest="b", fitted=1.0, data=b"x"))
    for _ in range(BOOTSTRAP_TICKS + 2):
        world.second(runner)
    records = world.records()
    latest = {type(record) for record in records[-len(records) // 3 :]}
    assert {SchemaRecord, Layout, Baseline, ConfigChange} <= latest


# --- detectors ---------------------------------------------------------------------------------------------------


def test_a_finding_is_opened_revised_and_withdrawn_under_one_id(world: World) -> None:
    runner = world.runner(Hot())
    for celsius in (20, 90, 91, 92, 93, 94, 20):
        world.second(runner, celsius)
    told = [(finding.revision, finding.active) for finding in world.findings]
    assert told == [(1, True), (2, True), (3, True), (4, False)]
    assert len({finding.id for finding in world.findings}) == 1
    [last] = [incident for incident in world.incidents if not incident.active]
    assert last.revision == len(world.incidents)


def test_a_claim_that_says_nothing_new_is_no_revision(world: World) -> None:
    runner = world.runner(Hot())
    for _ in range(8):
        world.second(runner, 90.0)
    assert [finding.revision for finding in world.findings] == [1]


def test_findings_and_incidents_are_written_as_json_before_the_offset_is_committed(world: World) -> None:
    runner = world.runner(Exited())
    world.exit()
    settle(runner)
    [finding] = world.stream.read(FINDINGS, 0, 0)
    [incident] = world.stream.read(INCIDENTS, 0, 0)
    assert msgspec.json.decode(finding.value, type=Finding) == world.findings[0]
    assert msgspec.json.decode(incident.value, type=Incident) == world.incidents[0]
    assert world.stream.committed(RUNNER_GROUP, OBSERVATIONS, 0) == world.stream.end(OBSERVATIONS, 0)


def test_a_detector_that_raises_is_told_and_muted_after_three_and_the_others_go_on(world: World) -> None:
    runner = world.runner(Broken(), Exited())
    for _ in range(6):
        world.second(runner)
    world.exit()
    settle(runner)
    assert world.notices.count("detector.failing") == 3
    assert world.notices.count("detector.muted") == 1
    assert [finding.kind for finding in world.findings] == ["worker.exited"]


def test_each_job_has_its_own_detectors(world: World) -> None:
    runner = world.runner(Third())
    for _ in range(4):
        world.batch(90.0, job="t/other/r")
        world.second(runner, 20.0)
    assert {finding.job for finding in world.findings} == {JOB, "t/other/r"}


def test_every_counts_ticks_and_cuts_always_come(world: World) -> None:
    runner = world.runner(Counting())
    for second in range(10):
        world.second(runner)
        if second == 6:
            world.exit()
            settle(runner)
    asked = [finding.evidence[0].text for finding in world.findings]
    assert asked == ["5 True", "8 False", "11 True"]


def test_a_job_that_has_fallen_silent_is_forgotten_and_its_findings_withdrawn(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluator, "RETIRE_TICKS", 5)
    runner = world.runner(Exited())
    world.exit()
    for _ in range(8):
        world.second(runner, None)
    assert runner.evaluator.jobs == {}
    assert [finding.active for finding in world.findings] == [True, False]


# --- bad input, outages ------------------------------------------------------------------------------------------


def test_what_cannot_be_read_goes_to_the_dead_letters(world: World) -> None:
    runner = world.runner(Exited())
    newer = bytearray(wire.encode(ConfigChange(digest="", text="")))
    newer[2] += 1
    world.stream.append(OBSERVATIONS, [(JOB, b"garbage"), (JOB, bytes(newer))])
    world.exit()
    settle(runner)
    letters = [msgspec.json.decode(message.value) for message in world.stream.read(DEAD_LETTERS, 0, 0)]
    assert ["begins with" in letters[0]["reason"], "schema version" in letters[1]["reason"]] == [True, True]
    assert runner.counts.dead_letters == 2
    assert len(world.incidents) == 1


@pytest.mark.parametrize("absurd", [2**40, LARGEST, 2**62, 2**63 - 1, 2**64 - 1, -(2**63)])
@pytest.mark.parametrize("field", ["number", "generation"])
def test_a_mark_that_no_owner_has_written_is_kept_aside_and_detection_goes_on(world: World, field: str, absurd: int) -> None:
    runner = world.runner(Exited(), generation=3)
    world.second(runner)
    forged = {"mark": "tick", "generation": 3, "number": 10, "time": 5.0, "noun": "mark", "schema": 1, field: absurd}
    world.stream.append(OBSERVATIONS, [(JOB, b"EE\x01" + wire.MARK + msgspec.msgpack.encode(forged))])
    ticks = len(world.frames)
    world.second(runner)
    world.exit()
    world.second(runner)
    assert len(world.frames) > ticks
    assert [incident.cause for incident in world.incidents] == ["worker.exited"]
    assert (runner.counts.dead_letters, runner.superseded) == (1, False)


def test_a_job_whose_records_cannot_be_evaluated_begins_anew_and_the_others_go_on(world: World) -> None:
    runner = world.runner(Exited())
    world.batch(20.0, job="t/other/r")
    world.second(runner)

    def fails(_mark: Mark) -> Frame:
        raise OverflowError("int too large to convert to float")

    runner.evaluator.jobs["t/other/r"].builder.tick = fails  # type: ignore[method-assign]
    before = len(world.frames)
    world.second(runner)
    assert {frame.job for frame in world.frames[before:]} == {JOB}
    assert "evaluation.failing" in world.notices
    world.batch(20.0, job="t/other/r")
    world.second(runner)
    assert "t/other/r" in {frame.job for frame in world.frames[before:]}


def test_while_the_stream_is_away_nothing_is_judged_and_no_tick_is_made_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detectors.runtime.runner.RETRY_S", 0.0)
    runner = world.runner(Hot(), Exited())
    for _ in range(3):
        world.second(runner)
    frames = len(world.frames)
    world.stream.away = True
    for _ in range(30):
        world.clock.advance(1.0)
        settle(runner)
    assert len(world.frames) == frames
    world.stream.away = False
    settle(runner)
    assert [notice for notice in world.notices if notice.startswith("stream")] == ["stream.away", "stream.recovered"]
    for _ in range(20):
        world.batch(20.0)  # what was spooled
    settle(runner)
    assert len([frame for frame in world.frames if frame.tick]) == frames
    world.second(runner)
    ticks = [frame for frame in world.frames if frame.tick]
    assert len(ticks) == frames + 1
    assert ticks[-1].time - ticks[-2].time > 30.0
    assert ticks[-1].reporting["n"] == world.clock.now()
    assert world.findings == []


def test_findings_that_could_not_be_written_are_written_when_the_stream_is_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("detectors.runtime.runner.RETRY_S", 0.0)
    runner = world.runner(Exited())
    world.exit()
    runner.step()
    append = world.stream.append

    def refuse(topic: str, items: Sequence[tuple[str, bytes]]) -> None:
        world.stream.away = True
        append(topic, items)

    monkeypatch.setattr(world.stream, "append", refuse)
    runner.step()
    assert len(world.incidents) == 1  # told at once: whoever heals need not wait for the record
    monkeypatch.undo()
    world.stream.away = False
    settle(runner)
    assert len(world.stream.read(FINDINGS, 0, 0)) == len(world.stream.read(INCIDENTS, 0, 0)) == 1


def test_a_listener_that_fails_does_not_end_the_watch(world: World) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no room in the ledger")

    runner = world.runner(Exited(), on_incidents=fail)
    world.exit()
    settle(runner)
    assert len(world.stream.read(INCIDENTS, 0, 0)) == 1


# --- configuration -----------------------------------------------------------------------------------------------


def test_a_config_change_takes_effect_at_the_next_tick_and_an_invalid_one_not_at_all(world: World) -> None:
    def configure(change: ConfigChange) -> list[tuple[str, Hot]]:
        if change.text == "nonsense":
            raise ConfigError("unknown key")
        return [("hot", Hot(limit=float(change.text)))]

    runner = world.runner(Hot(), configure=configure)
    for _ in range(3):
        world.second(runner, 50.0)
    world.put(ConfigChange(digest="1", text="nonsense"))
    world.second(runner, 50.0)
    assert world.notices == ["config.refused"]
    assert world.findings == []
    world.put(ConfigChange(digest="2", text="40"))
    settle(runner)
    assert world.findings == []
    world.second(runner, 50.0)
    assert len(world.findings) == 1


# --- the rest ----------------------------------------------------------------------------------------------------


def test_records_around_an_incident_are_kept(world: World, tmp_path: Path) -> None:
    runner = world.runner(Exited(), records=tmp_path)
    world.second(runner)
    world.exit()
    world.second(runner)
    runner.close()
    messages = list(read_records(record_path(tmp_path, world.incidents[0].id)))
    assert {message.topic for message in messages} == {OBSERVATIONS, FINDINGS, INCIDENTS}


def test_marks_of_a_partition_go_to_that_partition() -> None:
    stream = MemoryStream(partitions=7)
    assert [stream.partition_of(OBSERVATIONS, mark_key(stream, number)) for number in range(7)] == list(range(7))
