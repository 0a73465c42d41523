"""Brings an older ledger up to date. Imported only when there is something to do: alembic is slow to load."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection

from eagle_eye.errors import LedgerError

MIGRATIONS = Path(__file__).parent.parent / "migrations"


def upgrade(connection: Connection, name: str, version: str | None) -> None:
    """Upgrade to the newest version inside the caller's transaction."""
    config = configuration()
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if version is not None and version not in known:
        raise LedgerError(
            f"{name} is of version {version}, newer than this program knows ({', '.join(sorted(known))}): "
            "install the version that wrote it, or choose another --state-dir"
        )
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise LedgerError(f"{name} cannot be brought up to date: {error}") from error


def configuration() -> Config:
    """Alembic's configuration; nothing is read from a file."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config
