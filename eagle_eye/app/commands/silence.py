"""`eagle-eye silence [list | end]`."""

import click

from eagle_eye.app import options
from eagle_eye.app.brake_printing import show, standing
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import SilenceCommand
from eagle_eye.types import Silence

CELLS = {"id": "id", "job": "job", "node": "node", "cause": "cause", "until": "until", "by": "person", "why": "reason"}


@click.group(short_help="no automatic action on a job, node or cause for a while", invoke_without_command=True)
@click.option("--job", default="", help="tenant/name, tenant/name/run or a pattern.")
@click.option("--node", default="", help="A node or a pattern.")
@click.option("--cause", default="", help="A cause or a pattern, e.g. 'slow *'.")
@click.option("--for", "seconds", callback=options.duration, default=None, metavar="DURATION", help="45s, 90m, 2h, 1d.")
@click.option("--reason", default="", help="Why; whoever is woken at night will read it.")
@click.option("--ahead", is_flag=True, help="The job or node may not be known yet.")
@options.person
@options.server
@options.deployment
@click.pass_context
def command(context: click.Context, /, config: Config, server: str, seconds: float | None, **order: str | bool) -> None:
    """Hold every plan that matches until the time is over. What a job does to itself goes on, and so do alerts.

    \b
    Examples:
      eagle-eye silence --job team/gpt --for 2h --reason "benchmark"
      eagle-eye silence --node 'rack-7-*' --cause 'slow *' --for 1d --reason "new cooling"
      eagle-eye silence list
      eagle-eye silence end 4f1c9a02
    """
    if context.invoked_subcommand is None:
        answer = ask(config, server, "silence", SilenceCommand(seconds=seconds or 0.0, **order))  # type: ignore[arg-type]  # click's own types
        click.echo(answer["message"])


@command.command("list", short_help="silences that are in force")
@options.as_json
@options.server
@options.deployment
def list_(config: Config, server: str, json_lines: bool) -> None:
    """Who wants silence about what, until when and why.

    \b
    Example:
      eagle-eye silence list
    """
    found = standing(config, server, "silences", Silence)
    show(found, tuple(CELLS), CELLS, nothing="no silence is in force", json_lines=json_lines)


@command.command(short_help="end a silence before its time")
@click.argument("silence")
@options.person
@options.server
@options.deployment
def end(config: Config, silence: str, person: str, server: str) -> None:
    """End SILENCE, an id or the beginning of one. What it held is looked at again within a second.

    \b
    Example:
      eagle-eye silence end 4f1c9a02
    """
    click.echo(ask(config, server, "silence", SilenceCommand(id=silence, person=person))["message"])
