"""Alerts: what was last sent about each incident. An alert and its notifications are written in one transaction."""

from collections.abc import Iterable

from sqlalchemy import Row, and_, or_, select

from .database import Database, patient, put
from .outbox import put_notification
from .records import AlertRecord
from .tables import alerts


class AlertTable(Database):
    """One row an incident or storm."""

    @patient
    def set_alert_news(self, incident: str, news: str) -> None:
        """News about an incident; its next notification carries it."""
        with self._writing() as connection:
            put(connection, alerts, {"id": incident}, {"news": news})

    @patient
    def save_alert(self, alert: AlertRecord, notifications: Iterable[tuple[str, str]], now: float) -> None:
        """Keep what is said, and put its notifications, (receiver, body), into the outbox: all of it, or nothing. The news stays."""
        values = {"storm": alert.storm, "number": alert.number, "opened": alert.opened, "changed": alert.changed, "over": alert.over}
        with self._writing() as connection:
            put(connection, alerts, {"id": alert.id}, {**values, "body": alert.body})
            for receiver, body in notifications:
                put_notification(connection, receiver, body, now)

    def alert(self, name: str) -> AlertRecord | None:
        """What is known of an incident or storm."""
        with self._reading() as connection:
            row = connection.execute(select(alerts).where(alerts.c.id == name)).one_or_none()
            return _record(row) if row is not None else None

    def alerts(self) -> tuple[AlertRecord, ...]:
        """Those that were said and are not over, oldest first."""
        said = and_(alerts.c.over.is_(None), or_(alerts.c.number > 0, alerts.c.storm != ""))
        with self._reading() as connection:
            return tuple(_record(row) for row in connection.execute(select(alerts).where(said).order_by(alerts.c.opened, alerts.c.id)))


def _record(row: Row[tuple[object, ...]]) -> AlertRecord:
    return AlertRecord(
        id=row.id, storm=row.storm, number=row.number, opened=row.opened, changed=row.changed, over=row.over, news=row.news, body=row.body
    )
