"""Queries for metrics: few columns of many rows; what is open now, and what is new since a time."""

from typing import NamedTuple

import msgspec
from sqlalchemy import Row, select

from eagle_eye.types import IncidentState, Outcome, Verdict

from .database import Database, patient
from .tables import incidents, outcomes, verdicts

NOT_OVER = (IncidentState.OPEN, IncidentState.CONTAINED, IncidentState.HEALING, IncidentState.FAILED)
"""States that somebody should look at: something is under way, or nothing helped."""


class IncidentMetricRow(NamedTuple):
    """What is counted of an incident."""

    id: str
    cause: str
    severity: str
    state: str
    opened: float


class VerdictMetricRow(NamedTuple):
    """What is counted of a guard's verdict."""

    number: int
    """Rises from row to row."""
    guard: str
    verdict: str
    """allow, hold or refuse."""


class _Body(msgspec.Struct):
    """The rest of an incident is not decoded."""

    cause: str
    severity: str


class MetricQueries(Database):
    """Nothing here is decoded further than it is counted."""

    @patient
    def incidents_present(self, limit: int = 1000) -> tuple[IncidentMetricRow, ...]:
        """Those that are not over, newest first."""
        query = select(incidents).where(incidents.c.state.in_([str(state) for state in NOT_OVER]))
        with self._reading() as connection:
            return tuple(_line(row) for row in connection.execute(query.order_by(incidents.c.opened.desc()).limit(limit)))

    @patient
    def incidents_opened(self, since: float, limit: int = 1000) -> tuple[IncidentMetricRow, ...]:
        """Those that were opened then or later, oldest first."""
        query = select(incidents).where(incidents.c.opened >= since).order_by(incidents.c.opened).limit(limit)
        with self._reading() as connection:
            return tuple(_line(row) for row in connection.execute(query))

    @patient
    def outcomes_since(self, since: float, limit: int = 1000) -> tuple[Outcome, ...]:
        """The newest verdict on each plan that was given then or later, oldest first."""
        query = select(outcomes.c.body).where(outcomes.c.time >= since).order_by(outcomes.c.time).limit(limit)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Outcome) for body in connection.execute(query).scalars())

    @patient
    def verdicts_since(self, since: float, *, after: int = 0, limit: int = 1000) -> tuple[VerdictMetricRow, ...]:
        """Said then or later, and after the row of that number; in order."""
        query = select(verdicts.c.number, verdicts.c.body).where(verdicts.c.number > after, verdicts.c.time >= since)
        with self._reading() as connection:
            rows = connection.execute(query.order_by(verdicts.c.number).limit(limit)).all()
            verdicts_of = [(row.number, msgspec.json.decode(row.body, type=Verdict)) for row in rows]
            return tuple(VerdictMetricRow(number, each.guard, type(each).__name__.lower()) for number, each in verdicts_of)


def _line(row: Row[tuple[object, ...]]) -> IncidentMetricRow:
    body = msgspec.json.decode(row.body, type=_Body)
    return IncidentMetricRow(row.id, body.cause, body.severity, row.state, row.opened)
