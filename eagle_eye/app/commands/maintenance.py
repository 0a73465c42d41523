"""`eagle-eye maintenance [list | end]`."""

import click

from eagle_eye.app import options
from eagle_eye.app.brake_printing import show, standing
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import MaintenanceCommand
from eagle_eye.types import Window

CELLS = {"id": "id", "nodes": "nodes", "jobs": "jobs", "from": "since", "until": "until", "by": "person", "why": "reason"}


@click.group(short_help="planned work on nodes or jobs: their faults are expected", invoke_without_command=True)
@click.option("--node", "nodes", multiple=True, help="A node or a pattern; may be given several times.")
@click.option("--job", "jobs", multiple=True, help="tenant/name, tenant/name/run or a pattern; may be given several times.")
@click.option("--in", "begins_in", callback=options.duration, default=None, metavar="DURATION", help="It begins after so long. Default: now.")
@click.option("--for", "seconds", callback=options.duration, default=None, metavar="DURATION", help="45m, 4h, 2d.")
@click.option("--reason", default="", help="What is done; stands in every alert about it.")
@click.option("--ahead", is_flag=True, help="The nodes or jobs may not be known yet.")
@options.person
@options.server
@options.deployment
@click.pass_context
def command(
    context: click.Context, /, config: Config, server: str, nodes: tuple[str, ...], jobs: tuple[str, ...], begins_in: float | None,
    seconds: float | None, reason: str, ahead: bool, person: str,
) -> None:  # fmt: skip
    """Announce planned work. Within it nobody is isolated for a fault of these nodes, and alerts call it expected;
    weaker repairs, and what a job does to itself, go on.

    \b
    Examples:
      eagle-eye maintenance --node 'rack-7-*' --for 4h --reason "new cables"
      eagle-eye maintenance --job team/gpt --in 2h --for 30m --reason "switch upgrade"
      eagle-eye maintenance list
      eagle-eye maintenance end 4f1c9a02
    """
    if context.invoked_subcommand is None:
        order = MaintenanceCommand(
            person=person, nodes=nodes, jobs=jobs, begins_in_s=begins_in or 0.0, seconds=seconds or 0.0, reason=reason, ahead=ahead
        )
        click.echo(ask(config, server, "maintain", order)["message"])


@command.command("list", short_help="work that is under way or planned")
@options.as_json
@options.server
@options.deployment
def list_(config: Config, server: str, json_lines: bool) -> None:
    """Who works on what, when and why.

    \b
    Example:
      eagle-eye maintenance list
    """
    found = standing(config, server, "windows", Window)
    show(found, tuple(CELLS), CELLS, nothing="no work is planned", json_lines=json_lines)


@command.command(short_help="the work is done, or will not be")
@click.argument("window")
@options.person
@options.server
@options.deployment
def end(config: Config, window: str, person: str, server: str) -> None:
    """End WINDOW, an id or the beginning of one. What it held is looked at again within a second.

    \b
    Example:
      eagle-eye maintenance end 4f1c9a02
    """
    click.echo(ask(config, server, "maintain", MaintenanceCommand(id=window, person=person))["message"])
