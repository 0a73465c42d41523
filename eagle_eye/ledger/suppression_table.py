"""What suppresses automatic action: silences, maintenance windows, breakers; and operators' notes on incidents."""

from typing import TypeVar

import msgspec
from sqlalchemy import Connection, insert, or_, select

from eagle_eye.types import Breaker, IncidentNote, Silence, Window

from .database import Database, put, to_json
from .tables import notes, suppressions

Suppression = TypeVar("Suppression", Silence, Window, Breaker)


class SuppressionTable(Database):
    """All that were ever made are kept; one that is ended keeps its row, with the time at which it ended."""

    def save_suppression(self, suppression: Silence | Window | Breaker) -> None:
        """Keep a suppression; one with the same id replaces it."""
        values = {"kind": _kind(type(suppression)), "since": suppression.since, "until": suppression.until, "body": to_json(suppression)}
        with self._writing() as connection:
            put(connection, suppressions, {"id": suppression.id}, values)

    def silences(self, *, at: float | None = None, limit: int = 1000) -> tuple[Silence, ...]:
        """Newest first; with `at` those that are not over then, also those that have yet to begin."""
        return self._suppressions(Silence, at, limit)

    def windows(self, *, at: float | None = None, limit: int = 1000) -> tuple[Window, ...]:
        """Of maintenance: newest first; with `at` those that are not over then, also those that have yet to begin."""
        return self._suppressions(Window, at, limit)

    def breakers(self, *, at: float | None = None, limit: int = 1000) -> tuple[Breaker, ...]:
        """Newest first; with `at` those that are open then."""
        return self._suppressions(Breaker, at, limit)

    def save_note(self, note: IncidentNote) -> None:
        """Keep an operator's note on an incident."""
        with self._writing() as connection:
            insert_note(connection, note)

    def notes(self, incident: str) -> tuple[IncidentNote, ...]:
        """Of one incident, oldest first."""
        query = select(notes.c.body).where(notes.c.incident == incident).order_by(notes.c.number)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=IncidentNote) for body in connection.execute(query).scalars())

    def _suppressions(self, noun: type[Suppression], at: float | None, limit: int) -> tuple[Suppression, ...]:
        query = select(suppressions.c.body).where(suppressions.c.kind == _kind(noun)).order_by(suppressions.c.since.desc(), suppressions.c.id).limit(limit)
        if at is not None:
            query = query.where(or_(suppressions.c.until.is_(None), suppressions.c.until > at))
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=noun) for body in connection.execute(query).scalars())


def _kind(noun: type[Silence | Window | Breaker]) -> str:
    return noun.__name__.lower()


def insert_note(connection: Connection, note: IncidentNote) -> None:
    """Within the transaction of what it is about."""
    connection.execute(insert(notes), {"incident": note.incident, "time": note.time, "body": to_json(note)})
