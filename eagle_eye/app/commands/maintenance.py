"""`eagle-eye maintenance [list | end]`."""

import click

from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, brief_id, brief_time
from eagle_eye.app.server_client import ask
from eagle_eye.app.suppression_printing import active, print_suppressions
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import MaintenanceCommand
from eagle_eye.types import Window

COLUMNS = (
    (TableColumn("id", brief=brief_id), "id"), (TableColumn("nodes", name=True), "nodes"), (TableColumn("jobs", name=True, drop=1), "jobs"), (TableColumn("from", brief=brief_time), "since"),
    (TableColumn("until", brief=brief_time), "until"), (TableColumn("by", name=True, drop=2), "person"), (TableColumn("why", prose=True, drop=3), "reason"),
)  # fmt: skip


@click.group(short_help="announce maintenance windows: faults within them are expected", invoke_without_command=True)
@click.option("--node", "nodes", multiple=True, help="A node or a pattern; may be given several times.")
@click.option("--job", "jobs", multiple=True, help="tenant/name, tenant/name/run or a pattern; may be given several times.")
@click.option("--in", "begins_in", callback=options.duration, default=None, metavar="DURATION", help="Time until the window begins. Default: now.")
@click.option("--for", "seconds", callback=options.duration, default=None, metavar="DURATION", help="Length of the window: 45m, 4h, 2d.")
@click.option("--reason", default="", help="What is done; every alert about it contains it.")
@click.option("--ahead", is_flag=True, help="Accept nodes or jobs that are not known yet.")
@options.person
@options.server
@options.deployment
@click.pass_context
def command(
    context: click.Context, /, config: Config, server: str, nodes: tuple[str, ...], jobs: tuple[str, ...], begins_in: float | None,
    seconds: float | None, reason: str, ahead: bool, person: str,
) -> None:  # fmt: skip
    """Announce a maintenance window. Within it no node is evicted for a fault of these nodes or jobs, and alerts call the
    fault expected; weaker repairs and self-healing go on.

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


@command.command("list", short_help="list active and future windows")
@options.as_json
@options.wide
@options.server
@options.deployment
def list_(config: Config, server: str, json_lines: bool, wide: bool) -> None:
    """List active and future windows: what each covers, when, by whom and why.

    \b
    Example:
      eagle-eye maintenance list
    """
    print_suppressions(active(config, server, "windows", Window), COLUMNS, empty="no maintenance window is planned", json_lines=json_lines, wide=wide)


@command.command(short_help="end or cancel a window")
@click.argument("window")
@options.person
@options.server
@options.deployment
def end(config: Config, window: str, person: str, server: str) -> None:
    """End WINDOW, an id or the beginning of one. Plans that it held are decided again within a second.

    \b
    Example:
      eagle-eye maintenance end 4f1c9a02
    """
    click.echo(ask(config, server, "maintain", MaintenanceCommand(id=window, person=person))["message"])
