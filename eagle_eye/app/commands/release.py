"""`eagle-eye release`."""

import getpass

import click

from eagle_eye.app import options
from eagle_eye.config import Config
from eagle_eye.rpc.client import call
from eagle_eye.rpc.messages import Release


@click.command(short_help="let a node that was left take part again")
@click.argument("node")
@click.option("--as", "person", default=getpass.getuser, help="Who decides. Default: your login.")
@click.option("--server", default="", help="host:port of the server. Default: server.listen of the configuration.")
@options.deployment
def command(config: Config, node: str, person: str, server: str) -> None:
    """Release NODE after its repair. Its jobs take it back with a restart from the newest checkpoint.

    \b
    Example:
      eagle-eye release node-7
    """
    answer = call(server or config.server.listen, "release", Release(node=node, person=person))
    click.echo(answer.get("message", f"{node} is released"))
