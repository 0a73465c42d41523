"""Signed records: whose they are is known, and what nobody of ours wrote is refused, told and kept aside."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from detectors.diagnosis import Diagnosis
from detectors.exits import Exits
from detectors.runtime.runner import Runner
from eagle_eye import wire
from eagle_eye.access.certificates import CertificateKind, Identity
from eagle_eye.access.stream_keys import StreamKeys, stream_key
from eagle_eye.clock import FakeClock
from eagle_eye.config import AccessConfig
from eagle_eye.dead_letters import dead_letters
from eagle_eye.errors import RecordRefused
from eagle_eye.record_writer import read_record
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, OBSERVATIONS, Message, Stream, refusal
from eagle_eye.stream.memory import MemoryLog, MemoryStream
from eagle_eye.stream.signed_stream import SignedStream
from eagle_eye.stream.spool_file import SpooledRecord
from eagle_eye.stream.uncommitted_records import UncommittedRecords
from eagle_eye.types import Baseline, ConfigChange, Entity, Event, Incident, Kind, Mark, Notice, SchemaRecord
from fakes.synthetic_frames import layout_of

HOUR_S, DAY_S = 3600.0, 86_400.0
JOB = "team-a/run/1"
RECORD = b"a record"
SERVER, NODE = CertificateKind.SERVER, CertificateKind.NODE


class Cluster:
    """A stream, and a process of each of its writers."""

    def __init__(self, directory: Path, clock: FakeClock) -> None:
        self.clock = clock
        self.log = MemoryLog(clock=clock)
        self.plain = MemoryStream(self.log)
        self._directory = directory
        self.server = self.process(SERVER, "head")

    def process(self, kind: CertificateKind, name: str, *tenants: str, authority: str = "ours", ahead_s: float = 0.0, days: float = 30.0, **settings: bool) -> SignedStream:
        """`authority`: whose root its key is derived from."""
        keys = StreamKeys(self._directory / authority)
        keys.make()
        file = keys.issue(Identity(kind=kind, name=name, tenants=tenants), ends=self.clock.now() + days * DAY_S, out=self._directory)
        access = AccessConfig(stream_key_file=str(file), **settings)
        key = stream_key(access, self.clock)
        assert key is not None
        own = FakeClock(self.clock.now() + ahead_s)
        return SignedStream(MemoryStream(self.log), key, access, own if ahead_s else self.clock)

    def read(self, topic: str = OBSERVATIONS) -> list[Message]:
        return self.server.read(topic, 0, 0)

    def refused(self, topic: str = OBSERVATIONS) -> str:
        """Why the only record is."""
        (message,) = self.read(topic)
        return refusal(message.value)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, FakeClock())


def test_a_record_comes_with_its_writer(cluster: Cluster) -> None:
    cluster.process(NODE, "node-a", "team-a").append(OBSERVATIONS, [(JOB, RECORD), (JOB, b"")])
    cluster.server.append(OBSERVATIONS, [(JOB, RECORD)])
    assert [(message.value, str(message.writer)) for message in cluster.read()] == [
        (RECORD, "node node-a (of team-a)"), (b"", "node node-a (of team-a)"), (RECORD, "server head"),
    ]  # fmt: skip
    assert cluster.server.refused == 0


@pytest.mark.parametrize("ahead_s", [HOUR_S, -300.0])
def test_a_wrong_clock_costs_no_record(cluster: Cluster, ahead_s: float) -> None:
    cluster.process(NODE, "node-a", ahead_s=ahead_s).append(OBSERVATIONS, [(JOB, RECORD)])
    assert not cluster.refused()


def test_what_waited_in_a_spool_for_a_day_is_signed_when_it_is_sent(cluster: Cluster) -> None:
    node = cluster.process(NODE, "node-a")
    cluster.clock.advance(DAY_S)
    node.append(OBSERVATIONS, [(JOB, RECORD)])
    cluster.clock.advance(DAY_S)  # and it is read a day later
    assert not cluster.refused()


def test_a_record_that_is_sent_twice_is_taken_twice_and_known_by_its_own_identity(cluster: Cluster) -> None:
    node = cluster.process(NODE, "node-a")
    for _ in range(2):
        node.append(OBSERVATIONS, [(JOB, RECORD)])
    assert [refusal(message.value) for message in cluster.read()] == ["", ""]


Forgery = Callable[[Cluster], object]


def _changed(cluster: Cluster) -> None:
    signed = _signed(cluster)
    cluster.plain.append(OBSERVATIONS, [(JOB, b"b" + signed[1:])])


def _signed(cluster: Cluster, topic: str = OBSERVATIONS) -> bytes:
    """Bytes that somebody recorded."""
    elsewhere = MemoryStream(clock=cluster.clock)
    process = cluster.process(NODE, "node-a")
    process.stream = elsewhere
    process.append(topic, [(JOB, RECORD)])
    return elsewhere.read(topic, 0, 0)[0].value


def _late(cluster: Cluster) -> None:
    signed = _signed(cluster)
    cluster.clock.advance(HOUR_S)
    cluster.plain.append(OBSERVATIONS, [(JOB, signed)])


def _ended(cluster: Cluster) -> None:
    node = cluster.process(NODE, "node-a", days=1.0)
    cluster.clock.advance(2 * DAY_S)
    node.append(OBSERVATIONS, [(JOB, RECORD)])


@pytest.mark.parametrize(("forge", "why"), [
    (lambda cluster: cluster.plain.append(OBSERVATIONS, [(JOB, RECORD)]), "carries no signature"),
    (lambda cluster: cluster.plain.append(OBSERVATIONS, [(JOB, b"")]), "carries no signature"),
    (lambda cluster: cluster.process(NODE, "node-a", authority="theirs").append(OBSERVATIONS, [(JOB, RECORD)]), "not that of node node-a"),
    (lambda cluster: cluster.process(SERVER, "head", authority="theirs").append(OBSERVATIONS, [(JOB, RECORD)]), "not that of server head"),
    (_changed, "not that of node node-a"),
    (lambda cluster: cluster.plain.append(OBSERVATIONS, [("team-b/run/1", _signed(cluster))]), "of another topic or key"),
    (lambda cluster: cluster.plain.append(OBSERVATIONS, [(JOB, _signed(cluster, FINDINGS))]), "of another topic or key"),
    (lambda cluster: cluster.plain.append(OBSERVATIONS, [(JOB, _signed(cluster)[-60:])]), "names no writer"),
    (lambda cluster: cluster.plain.append(OBSERVATIONS, [(JOB, _signed(cluster).replace(b"node-a", b"node-b"))]), "not that of node node-b"),
    (_late, "written again"),
    (_ended, "has ended"),
], ids=["unsigned", "empty", "another root", "another root's server", "changed", "another job", "another topic", "torn", "another name", "recorded", "ended"])  # fmt: skip
def test_what_nobody_of_ours_wrote_now_is_refused(cluster: Cluster, forge: Forgery, why: str) -> None:
    forge(cluster)
    assert why in cluster.refused()
    assert cluster.server.refused == 1


def test_a_node_writes_no_judgements(cluster: Cluster) -> None:
    cluster.process(NODE, "node-a").append(FINDINGS, [(JOB, RECORD)])
    assert "servers alone" in cluster.refused(FINDINGS)
    assert not refusal(RECORD)


def test_unsigned_records_are_taken_as_long_as_the_operator_says_so(cluster: Cluster) -> None:
    cluster.server = cluster.process(SERVER, "head", stream_unsigned=True)
    cluster.plain.append(OBSERVATIONS, [(JOB, RECORD)])
    cluster.process(NODE, "node-a", authority="theirs").append(OBSERVATIONS, [(JOB, RECORD)])
    taken, forged = cluster.read()
    assert (taken.value, taken.writer) == (RECORD, None)
    assert refusal(forged.value)


def test_a_node_finds_its_records_as_it_wrote_them(cluster: Cluster) -> None:
    node = cluster.process(NODE, "node-a")
    records = UncommittedRecords(node, {OBSERVATIONS: "group"})
    record = SpooledRecord(OBSERVATIONS, JOB, RECORD, 0.0)
    records.keep(OBSERVATIONS, [record], node.append(OBSERVATIONS, [(JOB, RECORD)]))
    assert records.check() == []
    assert len(records) == 1


# --- who may write what --------------------------------------------------------------------------------------------

LAYOUT = msgspec.structs.replace(layout_of(2, 1), job=JOB)
EVENT = Event(name="exit", job=JOB, entity=Entity(kind=Kind.WORKER, name=LAYOUT.workers[1]), time=1.0, node="node-a", incarnation="i", number=1, attributes={"code": "-9"})


def taken(writer: Identity | None, record: object) -> str:
    """'' or why it is refused."""
    value = wire.encode(record)  # type: ignore[arg-type]
    try:
        read_record(wire.RecordReader(), Message(OBSERVATIONS, 0, 0, JOB, value, 1.0, writer))
    except RecordRefused as error:
        return str(error)
    return ""


OURS = Identity(kind=NODE, name="node-a", tenants=("team-a",))


@pytest.mark.parametrize(("record", "why"), [
    (EVENT, ""),
    (msgspec.structs.replace(EVENT, node="node-b"), "speaks for node node-b"),
    (msgspec.structs.replace(EVENT, job="team-b/run/1"), "may not speak for team-b/run/1"),
    (msgspec.structs.replace(EVENT, job="idle/node-a"), ""),
    (msgspec.structs.replace(EVENT, job="idle/node-b"), "may not speak for idle/node-b"),
    (msgspec.structs.replace(LAYOUT, coordinator="node-a"), ""),
    (msgspec.structs.replace(LAYOUT, coordinator="node-b"), "speaks for node node-b"),
    (SchemaRecord(id="s", source="host", kind=Kind.NODE, names=("load",), steps=False), ""),
    (Baseline(name="straggler", job=JOB, digest="d", fitted=1.0, data=b""), "servers alone"),
    (ConfigChange(digest="d", text=""), "servers alone"),
])  # fmt: skip
def test_a_node_speaks_for_itself_and_its_tenants(record: object, why: str) -> None:
    assert (why in taken(OURS, record)) if why else not taken(OURS, record)
    assert not taken(Identity(kind=SERVER, name="head"), record)
    assert not taken(None, record), "where nothing is signed nothing is known of the writer"


# --- the runner ------------------------------------------------------------------------------------------------------


class Watched:
    """A runner on a signed stream, and what it told."""

    def __init__(self, stream: Stream, clock: FakeClock) -> None:
        self.incidents: list[Incident] = []
        self.notices: list[Notice] = []
        self.runner = Runner(
            stream, 0, [("exits", Exits())], Diagnosis(), clock=clock, generation=1, on_incidents=self.incidents.extend, on_notice=self.notices.append, tick_s=1.0
        )  # fmt: skip

    def go_on(self, clock: FakeClock) -> None:
        for _ in range(5):
            self.runner.step()
            clock.advance(1.0)


def test_a_forged_exit_accuses_nobody_and_is_told_and_kept_aside_and_a_true_one_is_found(cluster: Cluster) -> None:
    watched = Watched(cluster.server, cluster.clock)
    node, liar = cluster.process(NODE, "node-0"), cluster.process(NODE, "node-1")
    layout = msgspec.structs.replace(LAYOUT, coordinator="node-0")
    event = msgspec.structs.replace(EVENT, node="node-0", attributes={"code": "-9", "signal": "SIGKILL", "epoch": "1"}, time=cluster.clock.now())
    node.append(OBSERVATIONS, [(JOB, wire.encode(layout))])
    liar.append(OBSERVATIONS, [(JOB, wire.encode(event))])
    cluster.plain.append(OBSERVATIONS, [(JOB, wire.encode(event))])
    watched.go_on(cluster.clock)
    assert not watched.incidents
    assert sorted(notice.message.partition(": ")[2] for notice in watched.notices if notice.name == "record.refused") == [
        "the record is refused: it carries no signature", "the record is signed by node node-1, and speaks for node node-0",
    ]  # fmt: skip
    assert len(list(dead_letters(cluster.server))) == 2
    node.append(OBSERVATIONS, [(JOB, wire.encode(event))])
    watched.go_on(cluster.clock)
    assert {incident.culprits[0].entity.name for incident in watched.incidents} == {LAYOUT.workers[1]}
    assert cluster.server.end(DEAD_LETTERS, 0) == 2


def test_a_mark_of_a_node_moves_nothing(cluster: Cluster) -> None:
    watched = Watched(cluster.server, cluster.clock)
    watched.go_on(cluster.clock)
    mark = Mark(mark="tick", number=10**6, time=cluster.clock.now() + DAY_S, generation=2**40)
    cluster.process(NODE, "node-a").append(OBSERVATIONS, [(JOB, wire.encode(mark))])
    watched.go_on(cluster.clock)
    assert not watched.runner.superseded
