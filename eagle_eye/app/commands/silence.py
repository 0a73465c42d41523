"""`eagle-eye silence [list | end]`."""

import click

from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, brief_id, brief_time
from eagle_eye.app.server_client import ask
from eagle_eye.app.suppression_printing import active, print_suppressions
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import SilenceCommand
from eagle_eye.types import Silence

COLUMNS = (
    (TableColumn("id", brief=brief_id), "id"), (TableColumn("job", name=True), "job"), (TableColumn("node", name=True), "node"), (TableColumn("cause", name=True, drop=1), "cause"),
    (TableColumn("until", brief=brief_time), "until"), (TableColumn("by", name=True, drop=2), "person"), (TableColumn("why", prose=True, drop=3), "reason"),
)  # fmt: skip


@click.group(short_help="suspend automatic actions on a job, node or cause for a while", invoke_without_command=True)
@click.option("--job", default="", help="tenant/name, tenant/name/run or a pattern.")
@click.option("--node", default="", help="A node or a pattern.")
@click.option("--cause", default="", help="A cause or a pattern, e.g. 'slow *'.")
@click.option("--for", "seconds", callback=options.duration, default=None, metavar="DURATION", help="45s, 90m, 2h, 1d.")
@click.option("--reason", default="", help="Why; on-call engineers read it.")
@click.option("--ahead", is_flag=True, help="Accept a job or node that is not known yet.")
@options.person
@options.server
@options.deployment
@click.pass_context
def command(context: click.Context, /, config: Config, server: str, seconds: float | None, **order: str | bool) -> None:
    """Hold every plan that matches until the time is over. Self-healing of jobs goes on, and alerts are still sent.

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


@command.command("list", short_help="list active silences")
@options.as_json
@options.wide
@options.server
@options.deployment
def list_(config: Config, server: str, json_lines: bool, wide: bool) -> None:
    """List active silences: what each covers, until when, by whom and why.

    \b
    Example:
      eagle-eye silence list
    """
    print_suppressions(active(config, server, "silences", Silence), COLUMNS, empty="no silence is active", json_lines=json_lines, wide=wide)


@command.command(short_help="end a silence before its time")
@click.argument("silence")
@options.person
@options.server
@options.deployment
def end(config: Config, silence: str, person: str, server: str) -> None:
    """End SILENCE, an id or the beginning of one. Plans that it held are decided again within a second.

    \b
    Example:
      eagle-eye silence end 4f1c9a02
    """
    click.echo(ask(config, server, "silence", SilenceCommand(id=silence, person=person))["message"])
