"""Alerts, and the transactional outbox of their notifications: each is kept until it was delivered or given up, so that a restart loses none."""

from collections.abc import Iterable

from sqlalchemy import Connection, Row, and_, func, insert, or_, select, update

from .database import Database, patient, put
from .records import AlertRecord, Notification
from .tables import alerts, outbox

UNDELIVERED_READ = 5_000
"""Notifications to one receiver that are looked through for the gravest at a time: of more, a grave one waits until the older ones were sent."""


class AlertTable(Database):
    """What was last sent about each incident or storm, one row each. An alert and its notifications are written in one transaction."""

    @patient
    def set_alert_news(self, incident: str, news: str) -> None:
        """News about an incident; its next notification carries it."""
        with self._writing() as connection:
            put(connection, alerts, {"id": incident}, {"news": news})

    @patient
    def save_alert(self, alert: AlertRecord, notifications: Iterable[tuple[str, str]], now: float) -> None:
        """Keep what is sent, and put its notifications, (receiver, body), into the outbox: all of it, or nothing. The news stays."""
        values = {"storm": alert.storm, "number": alert.number, "opened": alert.opened, "changed": alert.changed, "over": alert.over}
        with self._writing() as connection:
            put(connection, alerts, {"id": alert.id}, {**values, "body": alert.body})
            for receiver, body in notifications:
                put_notification(connection, receiver, body, now)

    def alert(self, name: str) -> AlertRecord | None:
        """What is known of an incident or storm."""
        with self._reading() as connection:
            row = connection.execute(select(alerts).where(alerts.c.id == name)).one_or_none()
            return _alert_record(row) if row is not None else None

    def alerts(self) -> tuple[AlertRecord, ...]:
        """Those that were sent and are not over, oldest first."""
        sent = and_(alerts.c.over.is_(None), or_(alerts.c.number > 0, alerts.c.storm != ""))
        with self._reading() as connection:
            return tuple(_alert_record(row) for row in connection.execute(select(alerts).where(sent).order_by(alerts.c.opened, alerts.c.id)))


def _alert_record(row: Row[tuple[object, ...]]) -> AlertRecord:
    return AlertRecord(
        id=row.id, storm=row.storm, number=row.number, opened=row.opened, changed=row.changed, over=row.over, news=row.news, body=row.body
    )


class Outbox(Database):
    """Notifications to webhooks. The sender owns the retries."""

    @patient
    def enqueue(self, name: str, body: str, now: float) -> int:
        """Put a notification for the webhook of that name into the box; returns its id."""
        with self._writing() as connection:
            return put_notification(connection, name, body, now)

    @patient
    def due_notifications(self, now: float, limit: int = 20) -> tuple[Notification, ...]:
        """Notifications whose next try has come, longest waiting first."""
        mine = (outbox.c.done.is_(None), outbox.c.next_try <= now)
        query = select(outbox).where(*mine).order_by(outbox.c.next_try, outbox.c.id).limit(limit)
        with self._reading() as connection:
            return tuple(_notification(row) for row in connection.execute(query))

    def undelivered(self, name: str, limit: int = UNDELIVERED_READ) -> tuple[Notification, ...]:
        """The oldest notifications to one receiver that are still to arrive, in the order in which they were written."""
        query = select(outbox).where(outbox.c.done.is_(None), outbox.c.name == name).order_by(outbox.c.id).limit(limit)
        with self._reading() as connection:
            return tuple(_notification(row) for row in connection.execute(query))

    def undelivered_by_receiver(self) -> dict[str, tuple[int, float, str]]:
        """Receiver → (notifications that are still to arrive, when the oldest was written, why the last try failed)."""
        totals = select(outbox.c.name, func.count(), func.min(outbox.c.made)).where(outbox.c.done.is_(None)).group_by(outbox.c.name)
        failed = select(outbox.c.name, outbox.c.error).where(outbox.c.done.is_(None), outbox.c.error != "").order_by(outbox.c.id)
        with self._reading() as connection:
            errors = {row.name: row.error for row in connection.execute(failed)}
            return {name: (count, oldest, errors.get(name, "")) for name, count, oldest in connection.execute(totals)}

    @patient
    def delivered(self, notification: int, now: float, *, merged: Iterable[int] = ()) -> None:
        """It arrived, and with it the content of the `merged` ones, which are older."""
        older = list(merged)
        with self._writing() as connection:
            _tried(connection, notification, done=now, error="")
            if older:
                connection.execute(update(outbox).where(outbox.c.id.in_(older)).values(done=now, error=f"merged into notification {notification}"))

    @patient
    def failed(self, notification: int, next_try: float, error: str) -> None:
        """It did not arrive; try again then."""
        with self._writing() as connection:
            _tried(connection, notification, next_try=next_try, error=error)

    @patient
    def given_up(self, notification: int, now: float, error: str) -> None:
        """It will never arrive; the error stays."""
        with self._writing() as connection:
            _tried(connection, notification, done=now, error=error)


def put_notification(connection: Connection, name: str, body: str, now: float) -> int:
    """Within a transaction: a notification into the box; returns its id."""
    values = {"name": name, "body": body, "made": now, "attempts": 0, "next_try": now, "error": ""}
    key = connection.execute(insert(outbox), values).inserted_primary_key
    assert key is not None
    return int(key[0])


def _tried(connection: Connection, notification: int, **values: float | str) -> None:
    connection.execute(update(outbox).where(outbox.c.id == notification).values(attempts=outbox.c.attempts + 1, **values))


def _notification(row: Row[tuple[object, ...]]) -> Notification:
    return Notification(id=row.id, name=row.name, body=row.body, made=row.made, attempts=row.attempts, next_try=row.next_try)
