"""The ledger of a deployment, as its configuration says."""

from eagle_eye.config import Config

from . import Ledger


def open_ledger(config: Config, *, read_only: bool = False) -> Ledger:
    """Open it, and make it or bring it up to date unless `read_only`. Raises LedgerError."""
    return Ledger.open(config.state / "ledger.sqlite", read_only=read_only)
