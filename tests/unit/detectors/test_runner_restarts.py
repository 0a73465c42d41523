"""A runner that takes over: after a restart, from a former owner, and where the stream has begun anew."""

import threading
from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from detectors.exits import Exits
from detectors.runtime import catch_up, open_record_offsets
from detectors.runtime.mark_writer import BOOTSTRAP_TICKS
from detectors.runtime.open_findings import DOUBTED
from detectors.runtime.runner import Runner
from eagle_eye.stream import FINDINGS, INCIDENTS, OBSERVATIONS, RUNNER_GROUP
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.types import ConfigChange, Entity, Event, Incident, Kind, Layout, RankPlacement, SchemaRecord
from fakes.runner_partition import JOB, Exited, Hot, World, settle


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def test_a_restarted_runner_goes_on_with_warm_detectors_and_the_open_findings(world: World) -> None:
    runner = world.runner(Hot())
    for _ in range(5):
        world.second(runner, 90.0)
    [opened] = world.findings
    told = len(world.incidents)
    again = world.runner(Hot(), generation=2)
    assert world.incidents[told:] == world.incidents[:told]  # those that are open are told once more
    assert again.evaluator.open_findings() == (opened,)
    assert len(world.stream.read(FINDINGS, 0, 0)) == 1
    world.second(again, 90.0)
    assert len(world.findings) == 1
    world.second(again, 20.0)
    assert [(finding.id, finding.revision, finding.active) for finding in world.findings[1:]] == [(opened.id, 2, False)]
    assert world.runner(Hot(), generation=3).evaluator.open_findings() == ()
    assert again.evaluator.jobs[JOB].window.past(Kind.NODE, "temperature_celsius", 600.0).shape == (7, 1)


def test_what_was_read_but_not_judged_before_a_crash_is_judged_after_it(world: World) -> None:
    runner = world.runner(Exited())
    world.second(runner)
    world.exit()
    runner.step()  # reads the event and appends the cut; then the process is killed
    world.runner(Exited(), generation=2)
    assert [incident.cause for incident in world.incidents] == ["worker.exited"]


def test_a_crash_between_writing_and_committing_makes_no_second_finding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = world.runner(Exited())
    world.exit()
    monkeypatch.setattr(world.stream, "commit", lambda *_: None)
    settle(runner)
    monkeypatch.undo()
    world.runner(Exited(), generation=2)
    assert len(world.stream.read(FINDINGS, 0, 0)) == 1
    assert {incident.id for incident in world.incidents} == {world.incidents[0].id}


def test_an_owner_below_what_the_stream_has_seen_is_over_before_it_says_anything(world: World) -> None:
    runner = world.runner(Exited(), generation=7)
    world.second(runner)
    late = world.runner(Exited(), generation=3)
    world.second(late)
    assert (late.superseded_by, len(world.marks())) == (7, 1)


def test_an_older_revision_that_a_former_owner_writes_late_opens_nothing(world: World) -> None:
    runner = world.runner(Exited())
    world.exit()
    settle(runner)
    [incident] = world.incidents
    over = msgspec.structs.replace(incident, revision=2, active=False)
    for revision in (over, incident):
        world.stream.append(INCIDENTS, [(JOB, msgspec.json.encode(revision))])
    assert world.runner(Exited(), generation=2).evaluator.incidents == {}


def test_a_stream_that_begins_anew_gets_what_stands_open_and_the_standing_records() -> None:
    log = MemoryLog()
    world = World(MemoryStream(log))
    runner = world.runner(Exited(), config=ConfigChange(digest="d", text=""))
    world.second(runner)
    world.exit()
    settle(runner)
    log.topics.clear()
    log.committed.clear()
    settle(runner)
    assert "stream.reset" in world.notices
    assert len(world.stream.read(FINDINGS, 0, 0)) == len(world.stream.read(INCIDENTS, 0, 0)) == 1
    world.second(runner)
    assert {ConfigChange, SchemaRecord} <= {type(record) for record in world.records()}
    world.exit("r/n/1")
    settle(runner)
    assert len(world.incidents) == 2
    assert world.stream.committed(RUNNER_GROUP, OBSERVATIONS, 0) == world.stream.end(OBSERVATIONS, 0)


def test_what_is_open_is_written_again_by_a_new_owner(world: World) -> None:
    runner = world.runner(Exited())
    world.exit()
    settle(runner)
    world.runner(Exited(), generation=2)
    written = [msgspec.json.decode(message.value, type=Incident) for message in world.stream.read(INCIDENTS, 0, 0)]
    assert written == [world.incidents[0]] * 2, "whoever leads may have lost it"


# --- a past that is too long to be seen at once --------------------------------------------------------------------------


GO = threading.Event()


@pytest.fixture
def little_at_once(monkeypatch: pytest.MonkeyPatch, slow_to_follow: None) -> None:
    """Little is read at once."""
    monkeypatch.setattr(catch_up, "AT_ONCE", 40)


@pytest.fixture
def slow_to_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second evaluator begins when a test lets it, not when the machine has time for its thread."""
    monkeypatch.setattr(catch_up, "HANDOVER_RECORDS", 4)
    run = catch_up.BackgroundCatchUp._run

    def held(background: catch_up.BackgroundCatchUp) -> None:
        while not GO.wait(0.001) and not background._stop.is_set():
            pass
        run(background)

    monkeypatch.setattr(catch_up.BackgroundCatchUp, "_run", held)
    GO.clear()


def until_deep(runner: Runner) -> None:
    """The second watch works in a thread of its own."""
    background = runner._background
    assert background is not None
    GO.set()
    background._thread.join(30)
    settle(runner)
    assert runner._background is None


def past_of(runner: Runner) -> int:
    """Ticks in the window of the job."""
    return len(runner.evaluator.jobs[JOB].window.past(Kind.NODE, "temperature_celsius", 600.0))


def test_judging_begins_with_the_newest_part_of_the_past_and_the_whole_of_it_follows(world: World, little_at_once: None) -> None:
    runner = world.runner(Exited(), Hot())
    for _ in range(100):
        world.second(runner, 90.0)
    again = world.runner(Exited(), Hot(), generation=2)
    assert past_of(again) < 25
    world.exit()
    settle(again)
    assert [incident.cause for incident in world.incidents[-1:]] == ["worker.exited"], "before the past was seen whole"
    opened = again.evaluator.incidents, set(again.evaluator.open_findings())
    until_deep(again)
    assert past_of(again) == 100
    assert (again.evaluator.incidents, set(again.evaluator.open_findings())) == opened
    told = len(world.findings)
    world.second(again, 90.0)
    assert len(world.findings) == told, "what is open stays what it is"
    world.second(again, 20.0)
    assert [(finding.kind, finding.active) for finding in world.findings[told:]] == [("node.hot", False)]


@pytest.mark.parametrize("since_bootstrap", [2, 20, 45])
def test_the_newest_part_is_half_a_minute_however_few_its_records_are(world: World, slow_to_follow: None, since_bootstrap: int) -> None:
    """Ten minutes of a small job are few records, and seconds of work for the detectors."""
    seconds, runner = 2 * BOOTSTRAP_TICKS + since_bootstrap, world.runner(Hot())
    for _ in range(seconds):
        world.second(runner, 90.0)
    again = world.runner(Hot(), generation=2)
    assert past_of(again) in (30, 31)
    assert [finding.kind for finding in again.evaluator.open_findings()] == ["node.hot"]
    world.second(again, 90.0)
    until_deep(again)
    assert past_of(again) == seconds + 1


def test_twin_a_past_that_is_shorter_is_read_at_once(world: World) -> None:
    runner = world.runner(Hot())
    for _ in range(20):
        world.second(runner, 90.0)
    again = world.runner(Hot(), generation=2)
    assert again._background is None
    assert past_of(again) == 20


def long_open(world: World, **killed: object) -> Runner:
    """A runner that takes over when the newest part of its past does not show the end of a worker any more that is open."""
    runner = world.runner(Exits())
    world.second(runner)
    world.put(cry(world, **killed))
    for _ in range(2 * BOOTSTRAP_TICKS):
        world.second(runner)
    again = world.runner(Exits(), generation=2)
    assert [finding.kind for finding in again.evaluator.open_findings()] == ["worker.exited"]
    return again


def cry(world: World, name: str = "exit", kind: Kind = Kind.WORKER, **attributes: object) -> Event:
    world.number += 1
    entity = Entity(kind=kind, name="r/n/0" if kind is Kind.WORKER else JOB)
    told = {key: str(value) for key, value in attributes.items()}
    return Event(name=name, job=JOB, entity=entity, time=world.clock.now(), node="n", incarnation="b", number=world.number, attributes=told)


@pytest.mark.parametrize("followed", [False, True], ids=["by what has seen the newest part", "by what has seen all"])
def test_what_an_earlier_owner_had_found_of_a_worker_ends_with_its_epoch(world: World, slow_to_follow: None, followed: bool) -> None:
    again = long_open(world, epoch=1, code=-9, signal="SIGKILL")
    if followed:
        world.second(again)
        until_deep(again)
    world.put(cry(world, "epoch.started", Kind.JOB, epoch=2, reason="death"))
    world.second(again)
    assert again.evaluator.open_findings() == ()
    if not followed:
        until_deep(again)
    world.second(again)
    assert again.evaluator.open_findings() == ()
    (over,) = [finding for finding in world.findings if not finding.active]
    assert over.evidence[-1].text == "over: epoch 2 has begun"


def test_twin_what_its_own_detectors_have_claimed_is_theirs_to_withdraw(world: World) -> None:
    runner = world.runner(Hot(), Exited())
    world.exit()
    for _ in range(5):
        world.second(runner, 90.0)
    again = world.runner(Hot(), Exited(), generation=2)
    world.put(cry(world, "epoch.started", Kind.JOB, epoch=2, reason="death"))
    world.second(again, 90.0)
    assert {finding.kind for finding in again.evaluator.open_findings()} == {"node.hot", "worker.exited"}
    assert all(finding.active for finding in world.findings)


def test_what_only_the_newest_part_seemed_to_show_is_withdrawn_when_all_has_been_seen(world: World, slow_to_follow: None) -> None:
    """The end of a worker of an epoch that is long over."""
    runner = world.runner(Exits())
    world.second(runner)
    world.put(cry(world, code=-9, signal="SIGKILL", epoch=1))
    world.put(cry(world, "epoch.started", Kind.JOB, epoch=2, reason="death"))
    for _ in range(2 * BOOTSTRAP_TICKS):
        world.second(runner)
    told = len(world.findings)
    again = world.runner(Exits(), generation=2)
    world.put(cry(world, code=1, signal="", epoch=1))
    world.second(again)
    assert [finding.active for finding in world.findings[told:]] == [True]
    until_deep(again)
    world.second(again)
    assert again.evaluator.open_findings() == ()
    assert world.findings[-1].evidence[-1].text == DOUBTED


def test_the_newest_part_is_read_with_the_standing_records_of_before(world: World, little_at_once: None) -> None:
    runner = world.runner(Exited())
    place = RankPlacement(worker="r/n/0", node="n", rank=0, local_rank=0)
    world.put(Layout(job=JOB, epoch=1, time=1.0, coordinator="n", launchers={}, placements=(place,)))
    for _ in range(BOOTSTRAP_TICKS + 50):
        world.second(runner)
    again = world.runner(Exited(), generation=2)
    world.second(again)
    assert world.frames[-1].layout is not None
    assert not np.isnan(world.frames[-1].metrics[Kind.NODE]["temperature_celsius"]).any(), "its schema is known"


def test_one_that_ends_before_it_has_seen_everything_leaves_nothing_behind(world: World, little_at_once: None) -> None:
    runner = world.runner(Hot())
    for _ in range(100):
        world.second(runner)
    again = world.runner(Hot(), generation=2)
    again.close()
    assert not any(thread.name.startswith("catch-up") for thread in threading.enumerate())


# --- what is open, and where it lies -------------------------------------------------------------------------------------


def test_an_owner_looks_for_what_is_open_no_further_back_than_the_last_snapshot(world: World) -> None:
    runner = world.runner(Exited(), Hot())
    for _ in range(3):
        for celsius in (90, 90, 90, 20):  # opened and withdrawn
            world.second(runner, celsius)
    for _ in range(BOOTSTRAP_TICKS):
        world.second(runner)
    end = world.stream.end(FINDINGS, 0)
    assert (end, world.stream.committed("eagle-eye.open.0", FINDINGS, 0)) == (6, end)
    world.exit()
    settle(runner)
    for _ in range(BOOTSTRAP_TICKS):
        world.second(runner)
    assert world.stream.committed("eagle-eye.open.0", FINDINGS, 0) == end, "where the open one lies"
    [opened] = world.runner(Exited(), Hot(), generation=2).evaluator.open_findings()
    assert opened.kind == "worker.exited"


def test_what_lies_far_back_is_written_again_so_that_nobody_goes_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_record_offsets, "FAR", 5)
    runner = world.runner(Exited(), Hot())
    world.exit()
    for _ in range(4):
        for celsius in (90, 90, 90, 20):
            world.second(runner, celsius)
    for _ in range(2 * BOOTSTRAP_TICKS):
        world.second(runner)
    first = world.stream.read(FINDINGS, 0, 0)[0].value
    copies = [message.offset for message in world.stream.read(FINDINGS, 0, 0) if message.value == first]
    assert len(copies) == 2
    assert world.stream.committed("eagle-eye.open.0", FINDINGS, 0) == copies[1]
    assert [finding.kind for finding in world.runner(Exited(), Hot(), generation=2).evaluator.open_findings()] == ["worker.exited"]
