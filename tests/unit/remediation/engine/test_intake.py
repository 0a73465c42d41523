"""What a leader reads: everything once, in order, also where a leader died in the middle."""

import threading

import msgspec
import pytest

from eagle_eye.changes import NODE_CHANGED, ValueDifference, change_attributes
from eagle_eye.clock import FakeClock
from eagle_eye.dead_letters import dead_letters
from eagle_eye.errors import LedgerUnavailable, StreamUnavailable
from eagle_eye.ledger import Ledger
from eagle_eye.stream import FINDINGS, INCIDENTS, JOB_SNAPSHOTS
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.types import Entity, Event, Incident, IncidentState, JobSnapshot, Kind
from fakes.sample_values import JOB, a_finding, an_incident
from remediation.engine.intake import GROUP, Intake

OTHER = "tenant/other/run9"


class Judge:
    """Writes incidents down, as the engine does, and remembers the order of everything."""

    def __init__(self, ledger: Ledger) -> None:
        self.heard: list[str] = []
        self._ledger = ledger

    def receive_incidents(self, incidents: list[Incident]) -> None:
        for incident in incidents:
            self._ledger.save_incident(incident, IncidentState.OPEN)
            self.heard.append(f"{incident.id} {incident.revision}")

    def receive_snapshot(self, snapshot: JobSnapshot) -> None:
        self.heard.append(f"snapshot {snapshot.generation} {snapshot.number}")

    def replay_snapshot(self, snapshot: JobSnapshot) -> None:
        self.heard.append(f"recalled {snapshot.generation} {snapshot.number}")


class IntakeHarness:
    """A stream, a ledger, and leaders that come and go."""

    def __init__(self, ledger: Ledger) -> None:
        self.clock = FakeClock()
        self.log = MemoryLog(partitions=2, clock=self.clock)
        self.stream = MemoryStream(self.log)
        self.ledger = ledger
        self.intake, self.judge = self.leader()

    def leader(self) -> tuple[Intake, Judge]:
        judge = Judge(self.ledger)
        return Intake(self.stream, self.ledger, judge, self.clock), judge

    def next_leader(self) -> list[str]:
        self.intake, self.judge = self.leader()
        return self.read()

    def read(self) -> list[str]:
        """What the present leader hears; a second passes."""
        self.judge.heard.clear()
        self.clock.advance(1.0)
        while self.intake.step():
            pass
        return list(self.judge.heard)

    def incident(self, revision: int = 1, **changes: object) -> None:
        self.write(INCIDENTS, an_incident(revision, **changes))

    def snapshot(self, number: int, generation: int = 1, job: str = JOB) -> None:
        now = self.clock.now()
        self.write(JOB_SNAPSHOTS, JobSnapshot(job=job, generation=generation, number=number, time=now, tick=True))

    def write(self, topic: str, noun: object) -> None:
        self.stream.append(topic, [(noun.job, msgspec.json.encode(noun))])


@pytest.fixture
def harness(ledger: Ledger) -> IntakeHarness:
    return IntakeHarness(ledger)


def test_an_incident_comes_before_the_snapshot_that_was_written_after_it(harness):
    harness.incident()
    harness.snapshot(1)
    assert harness.read() == ["incident-1 1", "snapshot 1 1"]


def test_findings_are_in_the_ledger_before_anything_is_committed(harness):
    harness.write(FINDINGS, a_finding())
    harness.read()
    assert harness.ledger.findings() == (a_finding(),)
    assert sum(harness.stream.committed(GROUP, FINDINGS, partition) or 0 for partition in range(2)) == 1


def test_every_partition_is_read(harness):
    for number in range(8):
        harness.incident(id=f"i{number}", job=f"t/n/{number}")
    assert sorted(harness.read()) == [f"i{number} 1" for number in range(8)]


def test_what_comes_twice_or_late_is_heard_once(harness):
    for revision in (1, 2, 2, 1):
        harness.incident(revision)
    for number, generation in ((1, 1), (2, 1), (2, 1), (3, 2), (4, 1), (4, 2)):  # (4, 1): of an owner that was superseded
        harness.snapshot(number, generation)
    heard = harness.read()
    assert heard == ["incident-1 1", "incident-1 2", "snapshot 1 1", "snapshot 1 2", "snapshot 2 3", "snapshot 2 4"]


def test_a_job_that_moved_to_another_partition_is_heard_under_a_lower_generation(harness):
    harness.snapshot(7, generation=9)
    harness.read()
    harness.clock.advance(61.0)
    harness.snapshot(1, generation=2)
    harness.snapshot(2, generation=2)
    assert harness.read() == ["snapshot 2 1", "snapshot 2 2"]


def test_the_next_leader_goes_on_where_the_last_one_stopped(harness):
    harness.incident()
    harness.read()
    harness.incident(2)
    assert harness.next_leader() == ["incident-1 2"]


def test_a_leader_that_dies_before_it_commits_loses_and_doubles_nothing(harness, monkeypatch):
    harness.incident()
    harness.incident(2)
    monkeypatch.setattr(harness.stream, "commit", lambda *_: None)
    harness.read()  # it is written down; then the process is killed
    monkeypatch.undo()
    harness.incident(3)
    assert harness.next_leader() == ["incident-1 2", "incident-1 3"], "the newest of before once more: it may not have been answered"
    assert [revision.revision for revision in harness.ledger.incident("incident-1")] == [1, 2, 3]


def test_a_new_leader_recalls_what_it_may_know_of_jobs_and_answers_nothing_of_it(harness):
    for number in range(1, 1201):
        harness.snapshot(number)
        harness.clock.advance(1.0)
    harness.read()
    harness.read()
    harness.snapshot(1201)
    heard = harness.next_leader()
    assert heard[-1] == "snapshot 1 1201"
    assert {word.split()[0] for word in heard[:-1]} == {"recalled"}
    assert 595 <= len(heard) - 1 <= 605, "ten minutes of them"


def test_what_was_recalled_is_not_followed_again(harness):
    harness.snapshot(1)
    harness.read()
    assert harness.next_leader() == ["recalled 1 1"]
    harness.snapshot(1)
    assert harness.read() == []


def test_a_stream_that_is_away_is_waited_for(harness):
    harness.incident()
    harness.stream.away = True
    assert harness.read() == []
    harness.stream.away = False
    assert harness.read() == ["incident-1 1"]


def away_in(harness, monkeypatch, *, topic: str, partition: int):
    """One partition does not answer, as that of a broker that is down; the others do."""
    read = harness.stream.read

    def answered(*asked):
        if asked[:2] == (topic, partition):
            raise StreamUnavailable("its broker is down")
        return read(*asked)

    monkeypatch.setattr(harness.stream, "read", answered)


@pytest.mark.parametrize("topic", [INCIDENTS, FINDINGS])
@pytest.mark.parametrize("partition", [0, 1])
def test_a_partition_that_is_away_loses_nothing_of_the_others(harness, monkeypatch, topic, partition):
    harness.read()
    for number in range(4):
        harness.incident(id=f"i{number}", job=f"t/n/{number}")
        harness.snapshot(1, job=f"t/n/{number}")
    away_in(harness, monkeypatch, topic=topic, partition=partition)
    for _ in range(3):
        assert harness.read() == []
    monkeypatch.undo()
    heard = harness.read()
    assert sorted(heard) == [*(f"i{number} 1" for number in range(4)), *["snapshot 1 1"] * 4]
    assert heard.index("snapshot 1 1") == 4, "the incidents first"
    assert harness.next_leader() == ["recalled 1 1"] * 4


def test_a_stream_that_begins_anew_while_a_partition_is_away_is_read_from_its_beginning(harness, monkeypatch):
    for number in range(1, 6):
        harness.snapshot(number)
    harness.read()
    harness.log.topics.clear()
    harness.log.committed.clear()
    harness.snapshot(1, generation=2)
    away_in(harness, monkeypatch, topic=FINDINGS, partition=1)
    assert harness.read() == []
    monkeypatch.undo()
    assert harness.read() == ["snapshot 2 1"]


def test_a_stream_that_begins_anew_is_read_from_its_beginning(harness):
    for number in range(1, 6):
        harness.snapshot(number)
    harness.read()
    harness.log.topics.clear()
    harness.log.committed.clear()
    harness.incident()
    harness.snapshot(1, generation=2)
    assert harness.read() == ["incident-1 1", "snapshot 2 1"]
    harness.incident(2)
    assert harness.next_leader() == ["recalled 2 1", "incident-1 2"]


def test_what_the_ledger_did_not_take_is_not_committed(harness, monkeypatch):
    harness.incident()
    monkeypatch.setattr(harness.ledger, "save_incident", lambda *_: (_ for _ in ()).throw(LedgerUnavailable("it is away")))
    with pytest.raises(LedgerUnavailable):
        harness.read()
    monkeypatch.undo()
    assert harness.next_leader() == ["incident-1 1"]


def test_what_cannot_be_read_is_passed_over_and_kept_aside(harness):
    garbage = (b"garbage", b'{"noun": "incident"}', b'{"id": "\xff"}', b"[" * 100_000)
    for topic in (INCIDENTS, FINDINGS, JOB_SNAPSHOTS):
        harness.stream.append(topic, [(JOB, value) for value in garbage])
    harness.incident()
    assert harness.read() == ["incident-1 1"]
    letters = [letter for _, key, letter in dead_letters(harness.stream) if key == JOB]
    assert {(letter.topic, letter.offset, letter.record) for letter in letters} == {
        (topic, offset, value) for topic in (INCIDENTS, FINDINGS, JOB_SNAPSHOTS) for offset, value in enumerate(garbage)
    }


@pytest.mark.parametrize("absurd", [2**63 - 1, 2**63, 2**64 - 1, -(2**63)])
def test_a_number_that_no_owner_writes_is_passed_over(harness, absurd):
    harness.stream.append(INCIDENTS, [(JOB, msgspec.json.encode(an_incident(absurd)))])
    harness.incident()
    assert harness.read() == ["incident-1 1"]


def test_the_nudge_comes_with_each_news_and_not_before(harness):
    harness.intake.step()
    nudge, stop = threading.Event(), threading.Event()
    thread = threading.Thread(target=harness.intake.look, args=(JOB_SNAPSHOTS, nudge, stop))
    thread.start()
    try:
        for number, job in ((1, JOB), (2, OTHER)):
            assert not nudge.is_set()
            harness.snapshot(number, job=job)
            assert nudge.wait(30)
            assert harness.read() == [f"snapshot 1 {number}"]
            nudge.clear()
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()


def test_changes_of_a_nodes_own_agent_are_kept_once_also_where_the_leader_died(harness: IntakeHarness) -> None:
    now = harness.clock.now()
    told = change_attributes(ValueDifference("kernel", "6.1", "6.8"), known=now, seen=now)

    def event(node: str, writer: str, job: str = JOB) -> Event:
        return Event(name=NODE_CHANGED, job=job, entity=Entity(kind=Kind.NODE, name=node), time=now, node=writer, incarnation="i", number=1, attributes=told)

    events = (event("node-a", "node-a"), event("node-b", "node-a"), event("node-c", "node-c", OTHER))
    for number in (1, 2):
        harness.write(JOB_SNAPSHOTS, JobSnapshot(job=JOB, generation=1, number=number, time=now, tick=False, events=events))
    assert len(harness.read()) == 2
    assert [change.entity.name for change in harness.ledger.changes(["node-a", "node-b", "node-c"], 0.0, now)] == ["node-a"]
    harness.next_leader()
    assert len(harness.ledger.changes(["node-a"], 0.0, now)) == 1
