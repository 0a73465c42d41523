"""`eagle-eye agent`: collects what this node can tell."""

import click

from eagle_eye.app import options
from eagle_eye.app.parts import run_agent
from eagle_eye.config import Config


@click.command(short_help="collect and send this node's numbers and events")
@click.option("--node", default="", help="Name of this node. Default: the host name.")
@click.option("--server", default="", help="host:port of the server. Default: server.listen of the configuration.")
@options.deployment
def command(config: Config, node: str, server: str) -> None:
    """Run one agent per node. It never touches the training processes: it reads their rings.

    \b
    Examples:
      eagle-eye agent
      eagle-eye agent --node node-7 --server head:7467
    """
    run_agent(config, node, server)
