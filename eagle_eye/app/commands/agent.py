"""`eagle-eye agent`: collects the metrics and events of one node."""

import click

from eagle_eye.app import options
from eagle_eye.app.agent_process import serve
from eagle_eye.config import Config


@click.command(short_help="collect and send this node's metrics and events")
@click.option("--node", default="", help="Name of this node. Default: the host name.")
@options.server
@options.deployment
def command(config: Config, node: str, server: str) -> None:
    """Run one agent per node. It does not touch the training processes: it reads their ring buffers.

    \b
    Examples:
      eagle-eye agent
      eagle-eye agent --node node-7 --server head:7467
    """
    serve(config, node, server)
