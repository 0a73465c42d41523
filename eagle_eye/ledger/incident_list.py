"""The newest incidents of a deployment; those of one SQLite file are read with the standard library alone: a list is wanted in a moment, also beside a loaded job."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import msgspec

from eagle_eye.config import Config
from eagle_eye.errors import UNREADABLE
from eagle_eye.types import Incident, IncidentState

from .factory import ledger_file, open_ledger
from .incident_states import UNDER_WAY
from .records import IncidentRecord
from .table_version import VERSION

BUSY_S = 5.0
"""How long it is waited for a process that holds the file: readers do not wait for the writer but while it recovers or moves its log."""
STATES = msgspec.json.encode(UNDER_WAY).decode()
LISTED = """
SELECT body, state, opened, changed FROM incidents
WHERE (:job = '' OR job = :job) AND (NOT :open_only OR state IN (SELECT value FROM json_each(:states)))
ORDER BY opened DESC, id LIMIT :limit
"""


def newest_incidents(config: Config, *, open_only: bool = False, job: str = "", limit: int = 100) -> tuple[IncidentRecord, ...]:
    """As `Ledger.incidents`, at once: of one file without SQLAlchemy, whose import takes longer than everything else. Raises LedgerError, ConfigError."""
    if not config.ledger.url:
        try:
            listed = _read(ledger_file(config), open_only=open_only, job=job, limit=limit)
        except (sqlite3.Error, *UNREADABLE):
            listed = None  # the ledger itself says what is wrong, and the remedy
        if listed is not None:
            return listed
    with closing(open_ledger(config, read_only=True)) as ledger:
        return ledger.incidents(open_only=open_only, job=job, limit=limit)


def _read(path: Path, *, open_only: bool, job: str, limit: int) -> tuple[IncidentRecord, ...] | None:
    """As `IncidentTable.incidents`; None for a ledger of another version. Raises sqlite3.Error, msgspec.MsgspecError."""
    with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)) as connection:
        connection.execute("BEGIN")  # one state of the ledger for both questions
        if connection.execute("SELECT version_num FROM alembic_version").fetchone() != (VERSION,):
            return None
        rows = connection.execute(LISTED, {"job": job, "open_only": open_only, "states": STATES, "limit": limit}).fetchall()
    return tuple(_record(*row) for row in rows)


def _record(body: str, state: str, opened: float, changed: float) -> IncidentRecord:
    return IncidentRecord(incident=msgspec.json.decode(body, type=Incident), state=IncidentState(state), opened=opened, changed=changed)
