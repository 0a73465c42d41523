"""What the leader reads: incidents, findings and snapshots of all partitions, each once, in order, also over a change of leaders.

    snapshots, incidents, findings ─► ledger (findings, changes, safe checkpoints) ─► engine (incidents, which it writes down; snapshots) ─► committed offset

What was read but not committed when a leader died is read again by the next one; an incident or finding is known by its
revision, a snapshot by (generation, number). Snapshots of the ten minutes before are read once more at the beginning: they
tell the new engine what it could know of each job (steps, throughput, checkpoints), and nothing is answered to them.
"""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from eagle_eye.changes import ObservedChange, change_told
from eagle_eye.checkpoint_safety import NodeSafety, safety_told
from eagle_eye.clock import Clock
from eagle_eye.dead_letters import dead_letter
from eagle_eye.errors import UNREADABLE, StreamError
from eagle_eye.job_snapshots import decode_snapshot
from eagle_eye.ledger import IncidentRecord
from eagle_eye.stream import DEAD_LETTERS, FINDINGS, INCIDENTS, JOB_SNAPSHOTS, Message, Stream, refusal
from eagle_eye.stream.start_offset import offset_before, resume_at
from eagle_eye.stream.tailer import Tailer
from eagle_eye.types import Finding, Incident, JobSnapshot, Notice

from .handler_failures import ends_term

GROUP = "eagle-eye.leader"
TOPICS = (JOB_SNAPSHOTS, INCIDENTS, FINDINGS)
"""In the order in which they are read: the incidents of a snapshot were written before it."""
READ_LIMIT = 1000
COMMIT_S = 1.0
"""Between two commits: what comes twice is dropped, so there is no hurry."""
RECALLED_S = 600.0
RECALLED_MOST = 20_000
"""Records of one partition that are read again at most."""
REVISIONS_KEPT = 10_000
JOBS_KEPT = 10_000
MOVED_S = 60.0
"""No owner that was superseded judges marks for so long; whose snapshots are so much later owns another partition."""
RETRY_S = 0.5
WAIT_S = 1.0
TURN_S = 0.02
"""In which each of several partitions is asked once."""
PAUSE_S = 0.005
_INCIDENT = msgspec.json.Decoder(Incident).decode
_FINDING = msgspec.json.Decoder(Finding).decode
_Noun = TypeVar("_Noun", Incident, Finding, JobSnapshot)
_Saved = TypeVar("_Saved", Finding, ObservedChange, NodeSafety)
_log = logging.getLogger(__name__)


class SnapshotReceiver(Protocol):
    """The engine's part."""

    def receive_incidents(self, incidents: Sequence[Incident]) -> None: ...
    def receive_snapshot(self, snapshot: JobSnapshot) -> None: ...
    def replay_snapshot(self, snapshot: JobSnapshot) -> None: ...


class FindingLedger(Protocol):
    """The ledger's part."""

    def save_findings(self, findings: Sequence[Finding]) -> None: ...
    def save_changes(self, told: Sequence[ObservedChange]) -> None: ...
    def save_safety(self, told: Sequence[NodeSafety]) -> None: ...
    def incident_record(self, incident: str) -> IncidentRecord | None: ...


class Intake:
    """Reads for one leader. `step` is called by one thread."""

    def __init__(
        self, stream: Stream, ledger: FindingLedger, engine: SnapshotReceiver, clock: Clock, notify: Callable[[Notice], None] = lambda _: None
    ) -> None:
        """`notify`: told of the first record that cannot be used; returns at once."""
        self.bad_records = 0
        self._bad_told: set[str] = set()
        """Records that could not be used and are kept aside."""
        self._stream = stream
        self._ledger = ledger
        self._engine = engine
        self._clock = clock
        self._notify = notify
        self._followers: dict[str, list[Tailer]] = {}
        self._revisions: OrderedDict[str, int] = OrderedDict()
        self._newest: OrderedDict[str, JobSnapshot] = OrderedDict()
        """Of each job; the one that was silent for longest first."""
        self._committed: dict[tuple[str, int], int] = {}
        self._commit_at = -math.inf
        self._away = False
        self.caught_up = False
        """Everything that was there at the beginning has been read."""

    def step(self) -> bool:
        """Read and hand over what there is; True if there may be more. A stream that is away is asked again later.

        Raises LedgerError or Stale where no leader can go on: then nothing was committed.
        """
        try:
            if not self._followers:
                self._begin()
            read = self._read_all()
        except StreamError as error:
            self._told_away(str(error))
            return False
        self._away = False
        self._hand_over(read)
        more = any(read.values())
        self.caught_up = self.caught_up or not more
        if self._clock.monotonic() >= self._commit_at:
            self.commit()
        return more

    def commit(self) -> None:
        """Remember what has been handed over."""
        self._commit_at = self._clock.monotonic() + COMMIT_S
        try:
            for topic, followers in self._followers.items():
                for partition, follower in enumerate(followers):
                    if self._committed.get((topic, partition)) != follower.offset:
                        self._stream.commit(GROUP, topic, partition, follower.offset)
                        self._committed[topic, partition] = follower.offset
        except StreamError as error:
            self._told_away(str(error))

    def look(self, topic: str, nudge: threading.Event, stop: threading.Event) -> None:
        """Set `nudge` whenever there is something to read in a topic, until `stop`: in a thread of its own."""
        reported: list[int] = []
        while not stop.is_set():
            places = [follower.offset for follower in self._followers.get(topic, ())]
            try:
                if not places or places == reported:  # nothing has been read since
                    stop.wait(PAUSE_S)
                elif self._waits(topic, places):
                    reported = places
                    nudge.set()
            except StreamError:
                stop.wait(RETRY_S)

    # --- inside --------------------------------------------------------------------------------------------------

    def _waits(self, topic: str, places: Sequence[int]) -> bool:
        """One partition is waited for; of several each is asked in turn."""
        if len(places) == 1:
            return self._stream.wait(topic, 0, places[0], WAIT_S)
        pause = TURN_S / len(places)
        return any(self._stream.wait(topic, partition, offset, pause) for partition, offset in enumerate(places))

    def _begin(self) -> None:
        followers = {
            topic: [Tailer(self._stream, topic, partition, resume_at(self._stream, GROUP, topic, partition)) for partition in range(self._stream.partitions(topic))]
            for topic in TOPICS
        }
        for partition, follower in enumerate(followers[JOB_SNAPSHOTS]):
            self._recall(partition, follower.offset)
        self._followers = followers

    def _recall(self, partition: int, end: int) -> None:
        offset = max(offset_before(self._stream, JOB_SNAPSHOTS, partition, end, RECALLED_S), end - RECALLED_MOST)
        while offset < end:
            messages = self._stream.read(JOB_SNAPSHOTS, partition, offset, min(READ_LIMIT, end - offset))
            for message in messages:
                if message.offset < end:
                    self._recall_one(message)
            if not messages:
                break
            offset = messages[-1].offset + 1

    def _recall_one(self, message: Message) -> None:
        try:
            snapshot = decode_snapshot(message.value)
            if self._is_next(snapshot):
                self._engine.replay_snapshot(snapshot)
        except Exception as error:  # boundary: it was kept aside when it came
            if ends_term(error):
                raise

    def _read_all(self) -> dict[str, list[Message]]:
        """What follows in each topic. Raises StreamError: what one partition gave before another did not answer is read again, or it would be passed over."""
        read: dict[str, list[Message]] = {topic: [] for topic in TOPICS}
        begun: list[tuple[Tailer, int]] = []
        try:
            for topic in TOPICS:
                for partition, follower in enumerate(self._followers[topic]):
                    begun.append((follower, follower.offset))
                    found = follower.read(READ_LIMIT)
                    if found is None:
                        _log.warning("%s/%d has begun anew: reading on at its beginning", topic, partition)
                        begun.append((follower, follower.offset))
                        found = follower.read(READ_LIMIT) or []
                    read[topic] += found
        except StreamError:
            for follower, offset in dict(begun).items():
                follower.rewind(offset)
            raise
        return read

    def _hand_over(self, read: dict[str, list[Message]]) -> None:
        self._save(self._ledger.save_findings, [(message, [finding]) for message, finding in self._decoded(read[FINDINGS], _FINDING)])
        for message, incident in self._decoded(read[INCIDENTS], _INCIDENT):
            self._each(message, partial(self._receive_incident, incident))
        snapshots = list(self._decoded(read[JOB_SNAPSHOTS], decode_snapshot))
        self._save(self._ledger.save_changes, [(message, changes) for message, snapshot in snapshots if (changes := _changes_in(snapshot))])
        self._save(self._ledger.save_safety, [(message, told) for message, snapshot in snapshots if (told := _safety_in(snapshot))])
        for message, snapshot in snapshots:
            self._each(message, partial(self._receive_snapshot, snapshot))

    def _save(self, save: Callable[[Sequence[_Saved]], None], found: Sequence[tuple[Message, Sequence[_Saved]]]) -> None:
        """What several records hold, in one transaction."""
        try:
            if found:
                save([each for _, part in found for each in part])
        except Exception as error:  # boundary: one by one, so that only the bad one is kept aside
            if ends_term(error):
                raise
            for message, part in found:
                self._each(message, partial(save, part))

    def _receive_incident(self, incident: Incident) -> None:
        if self._is_news(incident):
            self._engine.receive_incidents([incident])

    def _receive_snapshot(self, snapshot: JobSnapshot) -> None:
        if self._is_next(snapshot):
            self._engine.receive_snapshot(snapshot)

    def _each(self, message: Message, hand_over: Callable[[], None]) -> None:
        """What one record leads to must not end the leader, nor the next one, which reads it again."""
        try:
            hand_over()
        except Exception as error:  # boundary: whatever it is, the other records go on
            if ends_term(error):
                raise
            _log.exception("%s/%d at offset %d cannot be used", message.topic, message.partition, message.offset)
            self._keep_aside(message, f"{type(error).__name__}: {error}")

    def _decoded(self, messages: Sequence[Message], decode: Callable[[bytes], _Noun]) -> Iterator[tuple[Message, _Noun]]:
        """Without what cannot be read, a newer version's or not ours: that is kept aside."""
        for message in messages:
            try:
                noun = decode(message.value)
            except UNREADABLE as error:
                self._keep_aside(message, refusal(message.value) or str(error))
            else:
                yield message, noun

    def _keep_aside(self, message: Message, reason: str) -> None:
        """Count a record that cannot be used, and keep it in the topic of dead letters; the first one is told, and the first that was refused."""
        self.bad_records += 1
        name = "record.refused" if refusal(message.value) else "record.unreadable"
        if name not in self._bad_told:
            self._bad_told.add(name)
            text = f"{message.topic}/{message.partition} at offset {message.offset} cannot be used and is passed over: {reason}. See: eagle-eye history bad-records"
            _log.warning(text)
            self._notify(Notice(name=name, time=self._clock.now(), message=text))
        with suppress(StreamError):  # it is counted all the same
            self._stream.append(DEAD_LETTERS, [dead_letter(message, reason)])

    def _is_news(self, incident: Incident) -> bool:
        known = self._revisions.get(incident.id)
        if known is None:  # the leader before may have written it down and done no more about it: once more does no harm
            record = self._ledger.incident_record(incident.id)
            known = record.incident.revision - 1 if record is not None else 0
        self._revisions[incident.id] = max(known, incident.revision)
        self._revisions.move_to_end(incident.id)
        if len(self._revisions) > REVISIONS_KEPT:
            self._revisions.popitem(last=False)
        return incident.revision > known

    def _is_next(self, snapshot: JobSnapshot) -> bool:
        """False for one that came twice, or of an owner that had been superseded; a job that has moved to another partition begins again."""
        newest = self._newest.get(snapshot.job)
        if newest is not None:
            behind = (snapshot.generation, snapshot.number) <= (newest.generation, newest.number)
            if behind and snapshot.time <= newest.time + MOVED_S:
                return False
        self._newest[snapshot.job] = msgspec.structs.replace(snapshot, steps=(), events=(), layout=None)
        self._newest.move_to_end(snapshot.job)
        if len(self._newest) > JOBS_KEPT:
            self._newest.popitem(last=False)
        return True

    def _told_away(self, reason: str) -> None:
        if not self._away:
            _log.warning("the stream is away: nothing new is decided meanwhile: %s", reason)
        self._away = True


def _changes_in(snapshot: JobSnapshot) -> list[ObservedChange]:
    """Of nodes and of the job, as far as those speak who may."""
    found = (change_told(event) for event in snapshot.events if event.job == snapshot.job)
    return [change for change in found if change is not None]


def _safety_in(snapshot: JobSnapshot) -> list[NodeSafety]:
    found = (safety_told(event) for event in snapshot.events if event.job == snapshot.job)
    return [told for told in found if told is not None]
