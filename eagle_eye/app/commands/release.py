"""`eagle-eye release`."""

import click

from eagle_eye.app import options
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import ReleaseNodeCommand


@click.command(short_help="take an evicted node back into its job")
@click.argument("node")
@options.person
@options.server
@options.deployment
def command(config: Config, node: str, person: str, server: str) -> None:
    """Release NODE after its repair: its cordon is removed, and its jobs take it back with a restart from the newest checkpoint.

    Elastic jobs get the workers that they lost there back when the planner assigns them.

    \b
    Example:
      eagle-eye release node-7
    """
    answer = ask(config, server, "release", ReleaseNodeCommand(node=node, person=person))
    click.echo(answer.get("message", f"{node} is released"))
