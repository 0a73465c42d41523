"""The ledger that a deployment's configuration names."""

from pathlib import Path
from typing import TYPE_CHECKING

from eagle_eye.config import Config

if TYPE_CHECKING:
    from . import Ledger

SERVER_PATIENCE_S = 30.0
"""How long a leader's calls wait for a database that restarts."""


def open_ledger(config: Config, *, read_only: bool = False, patience_s: float = 0.0) -> "Ledger":
    """Open the URL of the configuration, else the file in its state directory; make it or bring it up to date unless `read_only`.

    Raises LedgerError, ConfigError.
    """
    from . import Ledger

    if not config.ledger.url:
        return Ledger.open(ledger_file(config), read_only=read_only, patience_s=patience_s)
    from eagle_eye.access.secret_files import secret_of

    password = secret_of(config.ledger.password_file, "EAGLE_EYE_LEDGER_PASSWORD", "the ledger's password")
    return Ledger.open(config.ledger.url, read_only=read_only, password=password, patience_s=patience_s)


def ledger_file(config: Config) -> Path:
    """The ledger of a deployment whose configuration names no database."""
    return config.state / "ledger.sqlite"
