"""`eagle-eye server`: detection, diagnosis and engine."""

import click

from eagle_eye.app import options
from eagle_eye.app.server import serve
from eagle_eye.config import Config


@click.command(short_help="detect, diagnose, decide and heal")
@click.option("--listen", default="", help="host:port. Default: server.listen of the configuration.")
@options.deployment
def command(config: Config, listen: str) -> None:
    """Run the server. A second one on the same ledger waits as standby and names the holder.

    \b
    Examples:
      eagle-eye server
      eagle-eye server --config /etc/eagle-eye/config.toml
    """
    serve(config, listen)
