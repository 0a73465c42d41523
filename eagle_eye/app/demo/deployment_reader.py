"""Reads what a deployment writes down, from outside: the stream's steps and the ledger's incidents."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from eagle_eye import wire
from eagle_eye.clock import Clock
from eagle_eye.errors import LedgerError, WireError
from eagle_eye.ledger import IncidentRecord, Ledger
from eagle_eye.stream import OBSERVATIONS
from eagle_eye.stream.embedded import EmbeddedStream
from eagle_eye.types import Incident, IncidentState, SchemaRecord

from .fault_verdict import FaultRecords
from .step_trace import StepTrace

OVER = {IncidentState.HEALED, IncidentState.CLOSED}
MOST = 10_000


@dataclass(slots=True)
class DeploymentReader:
    """Follows one job. Reads only; the ledger may come into being after this."""

    trace: StepTrace
    _ledger_file: Path
    _stream: EmbeddedStream
    _clock: Clock
    _schemas: wire.Schemas = field(default_factory=wire.Schemas)
    _offsets: dict[int, int] = field(default_factory=dict)
    _ledger: Ledger | None = None
    _kept: tuple[IncidentRecord, ...] = ()
    _seen: dict[tuple[str, bool], float] = field(default_factory=dict)
    """(incident, whether it blames somebody) → when a look first showed it. Its own time is that of a mark, which on a busy machine is written
    after faults that come later; and what was slow before a fault may become the incident of that fault."""
    _closed: bool = False

    @classmethod
    def open(cls, state_dir: Path, job: str, clock: Clock) -> "DeploymentReader":
        """`job`: the full name, tenant/name/run."""
        return cls(StepTrace(job), state_dir / "ledger.sqlite", EmbeddedStream(state_dir / "stream", clock=clock), clock)

    @property
    def latest(self) -> list[Incident]:
        """Latest revision of each incident, as of the last look."""
        return [kept.incident for kept in self._kept]

    @property
    def kept(self) -> tuple[IncidentRecord, ...]:
        """The same with their states and the times at which they were written down."""
        return self._kept

    def look(self) -> None:
        """Take in what is new."""
        if self._closed:
            return
        for partition in range(self._stream.partitions(OBSERVATIONS)):
            while messages := self._stream.read(OBSERVATIONS, partition, self._offsets.get(partition, 0)):
                self._offsets[partition] = messages[-1].offset + 1
                for message in messages:
                    self._take(message.value)
        self._look_at_ledger()

    def seen_since(self, moment: float) -> list[IncidentRecord]:
        """Incidents that were first seen, or first seen to blame somebody, then or later; oldest first."""
        return [kept for kept in reversed(self._kept) if self._seen_at(kept) >= moment]

    def settled(self, since: float) -> bool:
        """The latest incident since then that blames somebody is healed or closed; an earlier one may have asked for more."""
        about = [kept for kept in self.seen_since(since) if kept.incident.culprits]
        return bool(about) and max(about, key=self._seen_at).state in OVER

    def evidence(self, since: float, before: float, until: float) -> FaultRecords:
        """Everything that was written down between two faults."""
        ledger = self._opened()
        if ledger is None:
            return FaultRecords(first=(), latest=(), outcomes=(), notices=(), until=until)
        about = [kept for kept in self.seen_since(since) if self._seen_at(kept) < before]
        revisions = [ledger.incident(kept.incident.id) for kept in about]
        accusing = [next((revision for revision in each if revision.culprits), each[0]) for each in revisions]
        outcomes = [outcome for kept in about for outcome in ledger.outcomes(incident=kept.incident.id)]
        notices = [notice for notice in ledger.notices(since=since, limit=MOST) if notice.time < before]
        return FaultRecords(first=accusing, latest=[kept.incident for kept in about], outcomes=outcomes, notices=notices, until=until)

    def close(self) -> None:
        """Stop following; what was read stays, and so does the ledger."""
        if not self._closed:
            self._closed = True
            self._stream.close()

    def _take(self, value: bytes) -> None:
        with contextlib.suppress(WireError):
            record = wire.decode(value, self._schemas)
            if isinstance(record, SchemaRecord):
                self._schemas.add(record)
            self.trace.feed([record])

    def _look_at_ledger(self) -> None:
        ledger = self._opened()
        if ledger is not None:
            self._kept = ledger.incidents(job=self.trace.job, limit=MOST)
            for kept in self._kept:
                self._seen.setdefault((kept.incident.id, bool(kept.incident.culprits)), self._clock.now())

    def _seen_at(self, kept: IncidentRecord) -> float:
        blamed = self._seen.get((kept.incident.id, True))
        return blamed if blamed is not None else self._seen[kept.incident.id, False]

    def _opened(self) -> Ledger | None:
        if self._ledger is None and self._ledger_file.exists():
            with contextlib.suppress(LedgerError):  # it is being made at this moment
                self._ledger = Ledger.open(self._ledger_file, read_only=True)
        return self._ledger
