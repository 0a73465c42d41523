"""Changes of nodes and of jobs between runs, as agents and launchers tell them: each once, however many jobs are told of it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from eagle_eye.changes import ObservedChange

from .database import Database, patient, to_json
from .tables import changes

KEPT_OF_ONE = 200
"""Changes of one entity; of more the oldest go: what changes each second fills nothing."""
AT_ONCE = 500
"""Parameters of one statement."""


class ChangeTable(Database):
    """What changed, for people who look for a cause."""

    def save_changes(self, told: Iterable[ObservedChange]) -> None:
        """Keep those that are not known yet."""
        news = {change.id: change for change in told}
        if news and (unknown := self._unknown(list(news))):
            self._insert({key: news[key] for key in unknown})

    @patient
    def changes(self, entities: Sequence[str], since: float, until: float, *, job: str = "") -> tuple[ObservedChange, ...]:
        """First seen within that time, the newest first: of these nodes and jobs (tenant/name), or of any of which a job (tenant/name/run) was told first."""
        found: dict[str, ObservedChange] = {}
        with self._reading() as connection:
            for portion in _portions(entities):
                found |= _matching(connection, changes.c.entity.in_(portion), since, until)
            if job:
                found |= _matching(connection, changes.c.job == job, since, until)
        return tuple(sorted(found.values(), key=lambda change: (-change.seen, change.entity.name, change.what)))

    @patient
    def _unknown(self, ids: Sequence[str]) -> list[str]:
        with self._reading() as connection:
            return _not_in(connection, ids)

    @patient
    def _insert(self, news: Mapping[str, ObservedChange]) -> None:
        """Each once, also where another process was faster."""
        with self._writing() as connection:
            rows = [_row(news[key]) for key in _not_in(connection, list(news))]
            if rows:
                connection.execute(insert(changes), rows)
                _drop_oldest(connection, list(dict.fromkeys(str(row["entity"]) for row in rows)))


def _portions(names: Sequence[str]) -> Iterator[Sequence[str]]:
    return (names[first : first + AT_ONCE] for first in range(0, len(names), AT_ONCE))


def _not_in(connection: Connection, ids: Sequence[str]) -> list[str]:
    known: set[str] = set()
    for portion in _portions(ids):
        known.update(connection.execute(select(changes.c.id).where(changes.c.id.in_(portion))).scalars())
    return [key for key in ids if key not in known]


def _drop_oldest(connection: Connection, entities: Sequence[str]) -> None:
    """Of those that have too many."""
    for portion in _portions(entities):
        many = select(changes.c.entity).where(changes.c.entity.in_(portion)).group_by(changes.c.entity).having(func.count() > KEPT_OF_ONE)
        for entity in list(connection.execute(many).scalars()):
            kept = select(changes.c.id).where(changes.c.entity == entity).order_by(changes.c.time.desc(), changes.c.id).limit(KEPT_OF_ONE)
            connection.execute(delete(changes).where(changes.c.entity == entity, changes.c.id.not_in(list(connection.execute(kept).scalars()))))


def _matching(connection: Connection, condition: ColumnElement[bool], since: float, until: float) -> dict[str, ObservedChange]:
    query = select(changes.c.id, changes.c.body).where(condition, changes.c.time >= since, changes.c.time <= until)
    return {row.id: msgspec.json.decode(row.body, type=ObservedChange) for row in connection.execute(query)}


def _row(change: ObservedChange) -> dict[str, object]:
    return {"id": change.id, "entity": change.entity.name, "job": change.job, "time": change.seen, "body": to_json(change)}
