"""Who leads: one holder at a time, and a term that rises with each change of the holder."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Row, delete, select, update

from .database import Database, put
from .records import Lease, LeaseHolder
from .tables import leases

UNRENEWED = 10.0
"""Times the length of our own lease: another that nobody has renewed for so long is over, whenever it says that it runs out. Its holder's clock was ahead, and
has been set right since it was killed; who holds one renews it four times within its length."""
SEEN_KEPT = 1000


class LeaseTable(Database):
    """Leases by name, e.g. `leader`. The caller's `now` counts where all holders share a machine (SQLite), else the database's."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._length_s = 0.0
        """Of our own leases; 0: we have asked for none."""
        self._seen: dict[str, tuple[tuple[int, float], float]] = {}
        """Lease → its term and end as they were when we looked last, and since when they have been so, by the monotonic clock."""

    def acquire(self, name: str, holder: LeaseHolder, seconds: float, now: float, *, above: int = 0) -> int | None:
        """The term, if the lease was free, run out or ours; None while another has it: `holder_of` names it.

        `above`: the new term is higher than this too (a peer has seen it from a ledger that was lost).
        """
        self._length_s = seconds
        with self._writing(fenced=False) as connection:
            now = self._dialect.now(connection, now)
            last = connection.execute(select(leases).where(leases.c.name == name).with_for_update()).one_or_none()
            ours = last is not None and _lease(last).holder == holder
            if last is not None and not ours and self._lives(last, now):
                return None
            term: int = last.term if last is not None else 0
            if not ours or term <= above:
                term = max(term, above) + 1
            values = {"term": term, "host": holder.host, "pid": holder.pid, "incarnation": holder.incarnation, "until": now + seconds}
            since = {} if ours else {"since": now}
            put(connection, leases, {"name": name}, values | since)
            return term

    def renew(self, name: str, holder: LeaseHolder, term: int, seconds: float, now: float) -> bool:
        """Hold it for so long from now; False if another has taken it: stop acting at once."""
        mine = (leases.c.name == name, leases.c.term == term, leases.c.incarnation == holder.incarnation)
        with self._writing(fenced=False) as connection:
            now = self._dialect.now(connection, now)
            return connection.execute(update(leases).where(*mine).values(until=now + seconds)).rowcount == 1

    def renew_all(self, names: Collection[str], holder: LeaseHolder, seconds: float, now: float) -> frozenset[str]:
        """The same for several at once: returns the names of those that are still ours."""
        mine = (leases.c.name.in_(list(names)), leases.c.incarnation == holder.incarnation)
        with self._writing(fenced=False) as connection:
            until = self._dialect.now(connection, now) + seconds
            ours = frozenset(connection.execute(select(leases.c.name).where(*mine)).scalars())
            connection.execute(update(leases).where(*mine).values(until=until))
            return ours

    def resign(self, name: str, holder: LeaseHolder, now: float) -> None:
        """Give it up, so that the next one need not wait; nothing happens if it is another's."""
        with self._writing(fenced=False) as connection:
            now = self._dialect.now(connection, now)
            mine = (leases.c.name == name, leases.c.incarnation == holder.incarnation, leases.c.until > now)
            connection.execute(update(leases).where(*mine).values(until=now))

    def holder_of(self, name: str) -> Lease | None:
        """The last holder, also of a lease that has expired (see `until`). None if there never was one."""
        with self._reading() as connection:
            row = connection.execute(select(leases).where(leases.c.name == name)).one_or_none()
        return _lease(row) if row is not None else None

    def living(self, prefix: str, now: float) -> tuple[Lease, ...]:
        """Leases that have not run out and whose names begin so, by name."""
        with self._reading() as connection:
            now = self._dialect.now(connection, now)
            alive = (leases.c.name.startswith(prefix, autoescape=True), leases.c.until > now)
            rows = connection.execute(select(leases).where(*alive).order_by(leases.c.name)).all()
            return tuple(_lease(row) for row in rows if self._lives(row, now))

    def forget(self, prefix: str, seconds: float, now: float) -> int:
        """Remove leases that ran out so many seconds ago, with their terms: for names that never come again."""
        with self._writing(fenced=False) as connection:
            before = self._dialect.now(connection, now) - seconds
            old = (leases.c.name.startswith(prefix, autoescape=True), leases.c.until < before)
            return connection.execute(delete(leases).where(*old)).rowcount

    def _lives(self, row: Row[Any], now: float) -> bool:
        """Whether a lease has not run out, by its own word and by what we have seen of it."""
        if row.until <= now:
            return False
        at, mark = self._clock.monotonic(), (row.term, row.until)
        known, since = self._seen.get(row.name, (mark, at))
        if known != mark:
            since = at
        self._seen[row.name] = mark, since
        while len(self._seen) > SEEN_KEPT:
            self._seen.pop(next(iter(self._seen)), None)
        return not self._length_s or at - since <= UNRENEWED * self._length_s


def _lease(row: Row[tuple[object, ...]]) -> Lease:
    holder = LeaseHolder(host=row.host, pid=row.pid, incarnation=row.incarnation)
    return Lease(name=row.name, term=row.term, holder=holder, since=row.since, until=row.until)
