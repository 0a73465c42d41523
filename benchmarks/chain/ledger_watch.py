"""Notes the moment at which an accusation can be read in the ledger: not the time that is written in it."""

import sqlite3
import threading
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from eagle_eye.clock import Clock
from eagle_eye.errors import LedgerError
from eagle_eye.ledger import Ledger
from eagle_eye.types import Incident

LOOK_S = 0.002
LATEST = 20
"""Incidents that are looked at when the ledger has changed."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """An incident that names a culprit, with its cause; a later revision that says the same is none."""

    time: float
    """When it was there to be read, at most LOOK_S and one query late."""
    entity: str
    cause: str
    incident: Incident


class LedgerWatch:
    """A thread that follows the incidents of one job. SQLite tells cheaply whether anybody has committed."""

    def __init__(self, path: Path, job: str, clock: Clock) -> None:
        self._path, self._job, self._clock = path, job, clock
        self._accusations: list[Accusation] = []
        self._known: set[tuple[str, str, str]] = set()
        self._news = threading.Condition()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="ledger watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def count(self) -> int:
        """Accusations so far: a place to look on from."""
        return len(self._accusations)

    def since(self, place: int) -> list[Accusation]:
        """Those after a place."""
        return self._accusations[place:]

    def wait(self, place: int, entity: str, causes: tuple[str, ...], seconds: float) -> Accusation | None:
        """The first one after a place that names this culprit and one of these causes; None if none comes in time."""

        def found() -> Accusation | None:
            return next((each for each in self.since(place) if each.entity == entity and each.cause in causes), None)

        with self._news:
            return self._news.wait_for(found, seconds)

    def _follow(self) -> None:
        ledger, file = self._opened()
        if ledger is None or file is None:
            return
        version = -1
        while not self._over.wait(LOOK_S):
            (now,) = file.execute("PRAGMA data_version").fetchone()
            if now != version:
                version = now
                self._take([kept.incident for kept in ledger.incidents(job=self._job, limit=LATEST)])
        file.close()
        ledger.close()

    def _opened(self) -> tuple[Ledger | None, sqlite3.Connection | None]:
        """The ledger, once a server has made it."""
        while not self._over.wait(LOOK_S * 10):
            try:
                ledger = Ledger.open(self._path, read_only=True)
            except LedgerError:
                continue
            return ledger, sqlite3.connect(f"file:{self._path}?mode=ro", uri=True, timeout=5.0)
        return None, None

    def _take(self, incidents: list[Incident]) -> None:
        time = self._clock.now()
        with self._news:
            for incident in incidents:
                for culprit in incident.culprits:
                    key = (incident.id, culprit.entity.name, incident.cause)
                    if key not in self._known:
                        self._known.add(key)
                        self._accusations.append(Accusation(time, culprit.entity.name, incident.cause, incident))
            self._news.notify_all()
