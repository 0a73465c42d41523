"""Webhook calls that are to be made: kept until one succeeded, so that a restart loses none."""

from sqlalchemy import insert, select, update

from .store import Store, patient
from .tables import outbox
from .values import Letter


class Outbox(Store):
    """Letters to webhooks. The sender owns the retries."""

    @patient
    def post(self, name: str, body: str, now: float) -> int:
        """Put a letter for the webhook of that name into the box; returns its id."""
        values = {"name": name, "body": body, "made": now, "attempts": 0, "next_try": now, "error": ""}
        with self._writing() as connection:
            key = connection.execute(insert(outbox).values(**values)).inserted_primary_key
            assert key is not None
            return int(key[0])

    @patient
    def due(self, now: float, limit: int = 20) -> tuple[Letter, ...]:
        """Letters whose next try has come, longest waiting first."""
        mine = (outbox.c.done.is_(None), outbox.c.next_try <= now)
        query = select(outbox).where(*mine).order_by(outbox.c.next_try, outbox.c.id).limit(limit)
        with self._reading() as connection:
            return tuple(
                Letter(
                    id=row.id, name=row.name, body=row.body, made=row.made, attempts=row.attempts, next_try=row.next_try
                )
                for row in connection.execute(query)
            )

    @patient
    def delivered(self, letter: int, now: float) -> None:
        """It arrived."""
        self._tried(letter, done=now, error="")

    @patient
    def failed(self, letter: int, next_try: float, error: str) -> None:
        """It did not arrive; try again then."""
        self._tried(letter, next_try=next_try, error=error)

    @patient
    def given_up(self, letter: int, now: float, error: str) -> None:
        """It will never arrive; the error stays."""
        self._tried(letter, done=now, error=error)

    def _tried(self, letter: int, **values: float | str) -> None:
        attempts = outbox.c.attempts + 1
        with self._writing() as connection:
            connection.execute(update(outbox).where(outbox.c.id == letter).values(attempts=attempts, **values))
