"""What is old goes: ended incidents with everything about them, findings that are over, notices, notifications, changes of nodes and jobs."""

from typing import Any

from sqlalchemy import BigInteger, Column, ColumnElement, Select, Table, cast, delete, func, select

from . import tables
from .database import Database, patient
from .incident_states import UNDER_WAY

AT_ONCE = 500
"""Rows of one transaction: nobody waits long for its turn."""


class Retention(Database):
    """Keeps the ledger from growing for ever. What is open, cordoned or unsent stays, however old."""

    def delete_ended(self, before: float) -> int:
        """Remove what ended before that time; returns how many rows went."""
        return self._delete_incidents(before) + sum(self._until_done(*each) for each in _single_rows(before))

    def times_kept(self) -> list[float]:
        """Of what is kept: of each minute the first and the last one, for a RetentionClock."""
        with self._reading() as connection:
            found: list[float] = []
            for column in _times():
                each_minute = select(func.min(column), func.max(column)).where(column.is_not(None)).group_by(cast(column / 60, BigInteger))
                found.extend(time for row in connection.execute(each_minute) for time in row)
            return found

    def _delete_incidents(self, before: float) -> int:
        gone = 0
        while True:
            removed, more = self._delete_some_incidents(before)
            gone += removed
            if not more:
                return gone

    @patient
    def _delete_some_incidents(self, before: float) -> tuple[int, bool]:
        """An incident goes together with everything that is kept about it."""
        kept = tables.incidents
        ended = (kept.c.state.not_in([str(state) for state in UNDER_WAY]), kept.c.changed < before)
        with self._writing() as connection:
            ids = list(connection.execute(select(kept.c.id).where(*ended).limit(AT_ONCE)).scalars())
            plans = list(connection.execute(select(tables.plans.c.id).where(tables.plans.c.incident.in_(ids))).scalars())
            removals: list[tuple[Table, Column[str], list[str]]] = [
                (tables.progress, tables.progress.c.plan, plans),
                *((table, table.c.incident, ids) for table in (tables.outcomes, tables.verdicts, tables.plans, tables.notes)),
                *((table, table.c.incident, ids) for table in (tables.incident_revisions, tables.incident_states)),
                (tables.alerts, tables.alerts.c.id, ids),
                (kept, kept.c.id, ids),
            ]
            gone = sum(connection.execute(delete(table).where(column.in_(values))).rowcount for table, column, values in removals)
            return gone, len(ids) == AT_ONCE

    def _until_done(self, table: Table, key: Column[str], over: ColumnElement[bool]) -> int:
        gone = 0
        while removed := self._remove_some(table, key, select(key).where(over).limit(AT_ONCE)):
            gone += removed
        return gone

    @patient
    def _remove_some(self, table: Table, key: Column[str], query: Select[Any]) -> int:
        with self._writing() as connection:
            keys = list(connection.execute(query).scalars())
            return connection.execute(delete(table).where(key.in_(keys))).rowcount if keys else 0


def _times() -> list[Column[float]]:
    incidents, notices, owners = tables.incidents, tables.notices, tables.job_owners
    return [incidents.c.changed, tables.findings.c.time, notices.c.time, tables.changes.c.time, owners.c.changed, tables.safe_checkpoints.c.time, tables.outbox.c.done]


def _single_rows(before: float) -> list[tuple[Table, Column[str], ColumnElement[bool]]]:
    """(table, key, what is over) of rows that belong to nothing else."""
    findings, notices, outbox, approvals, suppressions = tables.findings, tables.notices, tables.outbox, tables.approvals, tables.suppressions
    approval_links, alerts, owners, safe = tables.approval_links, tables.alerts, tables.job_owners, tables.safe_checkpoints
    return [
        (alerts, alerts.c.id, alerts.c.over.is_not(None) & (alerts.c.over < before)),
        (findings, findings.c.id, findings.c.active.is_(False) & (findings.c.time < before)),
        (notices, notices.c.number, notices.c.time < before),
        (tables.changes, tables.changes.c.id, tables.changes.c.time < before),
        (outbox, outbox.c.id, outbox.c.done.is_not(None) & (outbox.c.done < before)),
        (approvals, approvals.c.number, approvals.c.expires < before),
        (approval_links, approval_links.c.hash, approval_links.c.expires < before),
        (owners, owners.c.job, owners.c.job.not_in(select(tables.jobs.c.job)) & (owners.c.changed < before)),
        (safe, safe.c.job, safe.c.job.not_in(select(tables.jobs.c.job)) & (safe.c.time < before)),
        (suppressions, suppressions.c.id, suppressions.c.until.is_not(None) & (suppressions.c.until < before)),
    ]
