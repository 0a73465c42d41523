"""`eagle-eye server`: detection, diagnosis and engine."""

from typing import Literal

import click
import msgspec

from eagle_eye import config as configuration
from eagle_eye.app import options
from eagle_eye.config import Config


@click.command(short_help="detect and diagnose faults, plan and run repairs")
@click.option("--role", type=click.Choice(["all", "detect", "lead"]), default=None, help="detect: judge a share of the stream's partitions; lead: decide and command; all: both. Default: server.role of the configuration.")
@click.option("--listen", default="", callback=options.address, help="host:port. Default: server.listen of the configuration.")
@click.option("--http", default=None, callback=options.address, help="host:port of /metrics, /healthz and the hooks; '' for none. Default: server.http of the configuration.")
@options.deployment
def command(config: Config, listen: str, http: str | None, role: Literal["all", "detect", "lead"] | None) -> None:
    """Run the server. Of several servers on one ledger one leads and the others are standbys; those that detect share the
    partitions of the stream. See docs/roles.md.

    \b
    Examples:
      eagle-eye server
      eagle-eye server --role detect --http 127.0.0.1:7469
      eagle-eye server --role lead --listen 10.0.0.5:7467
      eagle-eye server --config /etc/eagle-eye/config.toml
    """
    from eagle_eye.app.serving.server_process import serve

    if role is not None:
        config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, role=role))
    if http is not None:
        config = msgspec.structs.replace(config, server=msgspec.structs.replace(config.server, http=http))
        configuration.check(config, "--http")
    serve(config, listen)
