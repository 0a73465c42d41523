"""What stands in the way of automatic action: silences, maintenance windows, breakers; and people's notes."""

from typing import TypeVar

import msgspec
from sqlalchemy import insert, or_, select

from eagle_eye.types import Breaker, IncidentNote, Silence, Window

from .database import Database, put, to_json
from .tables import brakes, notes

Brake = TypeVar("Brake", Silence, Window, Breaker)


class BrakeTable(Database):
    """All that were ever made are kept; one that is ended keeps its row, with the time at which it ended."""

    def save_brake(self, brake: Silence | Window | Breaker) -> None:
        """Write it down; the same id again replaces it."""
        values = {"kind": _kind(type(brake)), "since": brake.since, "until": brake.until, "body": to_json(brake)}
        with self._writing() as connection:
            put(connection, brakes, {"id": brake.id}, values)

    def silences(self, *, at: float | None = None, limit: int = 1000) -> tuple[Silence, ...]:
        """Newest first; with `at` those that are not over then, also those that have yet to begin."""
        return self._brakes(Silence, at, limit)

    def windows(self, *, at: float | None = None, limit: int = 1000) -> tuple[Window, ...]:
        """Of maintenance: newest first; with `at` those that are not over then, also those that have yet to begin."""
        return self._brakes(Window, at, limit)

    def breakers(self, *, at: float | None = None, limit: int = 1000) -> tuple[Breaker, ...]:
        """Newest first; with `at` those that are open then."""
        return self._brakes(Breaker, at, limit)

    def save_note(self, note: IncidentNote) -> None:
        """Keep what a person wrote about an incident."""
        with self._writing() as connection:
            connection.execute(insert(notes).values(incident=note.incident, time=note.time, body=to_json(note)))

    def notes(self, incident: str) -> tuple[IncidentNote, ...]:
        """Of one incident, oldest first."""
        query = select(notes.c.body).where(notes.c.incident == incident).order_by(notes.c.number)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=IncidentNote) for body in connection.execute(query).scalars())

    def _brakes(self, noun: type[Brake], at: float | None, limit: int) -> tuple[Brake, ...]:
        query = select(brakes.c.body).where(brakes.c.kind == _kind(noun)).order_by(brakes.c.since.desc(), brakes.c.id).limit(limit)
        if at is not None:
            query = query.where(or_(brakes.c.until.is_(None), brakes.c.until > at))
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=noun) for body in connection.execute(query).scalars())


def _kind(noun: type[Silence | Window | Breaker]) -> str:
    return noun.__name__.lower()
