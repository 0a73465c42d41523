"""`eagle-eye server`: detection, diagnosis and engine."""

import click

from ...config import Config
from .. import options
from ..server import serve


@click.command(short_help="detect, diagnose, decide and heal")
@options.deployment
def command(config: Config) -> None:
    """Run the server. A second one on the same ledger waits as standby and names the holder.

    \b
    Examples:
      eagle-eye server
      eagle-eye server --config /etc/eagle-eye/config.toml
    """
    serve(config)
