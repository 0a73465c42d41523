"""Incidents: every revision, and where each one stands."""

import math

import msgspec
from sqlalchemy import Connection, Row, func, insert, select, update

from eagle_eye.errors import LedgerError, LedgerRefused
from eagle_eye.types import Incident, IncidentState

from .database import Database, patient, to_json
from .incident_states import EDGES, UNDER_WAY
from .records import IncidentRecord, StateChange
from .tables import incident_revisions, incident_states, incidents


class IncidentTable(Database):
    """Revisions and states of incidents."""

    @patient
    def save_incident(self, incident: Incident, state: IncidentState, *, time: float | None = None) -> bool:
        """Keep a revision, and the state if it has changed at `time` (the revision's if it is not given).

        A revision that is not newer than the kept one is no news (at-least-once delivery): it is dropped, and the
        answer is False. LedgerRefused for a state that cannot follow the present one.
        """
        with self._writing() as connection:
            row = connection.execute(
                select(incidents.c.state, incidents.c.revision).where(incidents.c.id == incident.id)
            ).one_or_none()
            news = row is None or incident.revision > row.revision
            when = incident.time if time is None else time
            self._move(connection, incident.id, IncidentState(row.state) if row else None, state, when)
            if row is None:
                connection.execute(insert(incidents), {"id": incident.id, "opened": when, **_columns(incident, state, when)})
            elif news:
                changed = {} if row.state == state else {"changed": when}
                columns = {"job": incident.job, "revision": incident.revision, "body": to_json(incident), "state": state}
                connection.execute(update(incidents).where(incidents.c.id == incident.id), columns | changed)
            elif row.state != state:
                connection.execute(update(incidents).where(incidents.c.id == incident.id), {"state": state, "changed": when})
            if news:
                revision = {"incident": incident.id, "revision": incident.revision, "time": incident.time}
                connection.execute(insert(incident_revisions), {**revision, "body": to_json(incident)})
            return news

    @patient
    def move_incident(self, incident: str, state: IncidentState, time: float) -> None:
        """Change the state alone. LedgerError if there is no such incident, LedgerRefused if the state cannot follow."""
        with self._writing() as connection:
            present = connection.execute(select(incidents.c.state).where(incidents.c.id == incident)).scalar()
            if present is None:
                raise LedgerError(f"there is no incident {incident!r} in {self._name}")
            self._move(connection, incident, IncidentState(present), state, time)
            connection.execute(update(incidents).where(incidents.c.id == incident), {"state": state, "changed": time})

    @patient
    def incidents(
        self, *, open_only: bool = False, job: str = "", beginning: str = "", naming: str = "", since: float = 0.0, until: float = math.inf, limit: int = 100
    ) -> tuple[IncidentRecord, ...]:
        """The last revision of each, newest first. `open_only`: those in which something is still to be done; `beginning`: of their ids;
        `naming`: words that stand anywhere in them; `since`, `until`: when they were opened."""
        query = select(incidents).order_by(incidents.c.opened.desc(), incidents.c.id).limit(limit)
        if open_only:
            query = query.where(incidents.c.state.in_([str(state) for state in UNDER_WAY]))
        if job:
            query = query.where(incidents.c.job == job)
        if beginning:
            query = query.where(func.substr(incidents.c.id, 1, len(beginning)) == beginning)
        if naming:
            query = query.where(incidents.c.body.contains(to_json(naming)[1:-1], autoescape=True))
        if since > 0.0:
            query = query.where(incidents.c.opened >= since)
        if until < math.inf:
            query = query.where(incidents.c.opened <= until)
        with self._reading() as connection:
            return tuple(_record(row) for row in connection.execute(query))

    @patient
    def incident_record(self, incident: str) -> IncidentRecord | None:
        """The last revision and where it stands, None if there is none."""
        with self._reading() as connection:
            row = connection.execute(select(incidents).where(incidents.c.id == incident)).one_or_none()
            return _record(row) if row is not None else None

    @patient
    def incident(self, incident: str) -> tuple[Incident, ...]:
        """All revisions, oldest first; none if there is no such incident."""
        table = incident_revisions
        query = select(table.c.body).where(table.c.incident == incident).order_by(table.c.revision)
        with self._reading() as connection:
            return tuple(msgspec.json.decode(body, type=Incident) for body in connection.execute(query).scalars())

    @patient
    def states(self, incident: str) -> tuple[StateChange, ...]:
        """Its life so far, oldest first."""
        table = incident_states
        query = select(table.c.state, table.c.time).where(table.c.incident == incident).order_by(table.c.number)
        with self._reading() as connection:
            return tuple(StateChange(state=IncidentState(row.state), time=row.time) for row in connection.execute(query))

    def _move(
        self, connection: Connection, incident: str, present: IncidentState | None, state: IncidentState, time: float
    ) -> None:
        if state == present:
            return
        if state not in EDGES[present]:
            possible = ", ".join(sorted(EDGES[present])) or "nothing"
            raise LedgerRefused(f"incident {incident} cannot go from {present or 'nothing'} to {state}: only to {possible}")
        table = incident_states
        number = connection.execute(select(func.count()).select_from(table).where(table.c.incident == incident)).scalar()
        connection.execute(insert(table), {"incident": incident, "number": number, "state": str(state), "time": time})


def _columns(incident: Incident, state: IncidentState, changed: float) -> dict[str, object]:
    return {
        "job": incident.job,
        "state": str(state),
        "revision": incident.revision,
        "changed": changed,
        "body": to_json(incident),
    }


def _record(row: Row[tuple[object, ...]]) -> IncidentRecord:
    return IncidentRecord(
        incident=msgspec.json.decode(row.body, type=Incident),
        state=IncidentState(row.state),
        opened=row.opened,
        changed=row.changed,
    )
