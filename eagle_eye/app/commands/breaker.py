"""`eagle-eye breaker list | close`."""

import click

from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, brief_id, brief_time
from eagle_eye.app.server_client import ask
from eagle_eye.app.suppression_printing import active, print_suppressions
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import BreakerCommand
from eagle_eye.types import Breaker

COLUMNS = (
    (TableColumn("id", brief=brief_id), "id"), (TableColumn("job", name=True), "job"), (TableColumn("action", name=True), "action"), (TableColumn("since", brief=brief_time, drop=1), "since"),
    (TableColumn("incident", brief=brief_id, drop=2), "incident"), (TableColumn("why", prose=True), "reason"),
)  # fmt: skip


@click.group(short_help="list and close circuit breakers: actions that did not help a job")
def command() -> None:
    """An action that did not help a job opens a circuit breaker: the action is refused for that job until an operator
    closes the breaker.

    \b
    Examples:
      eagle-eye breaker list
      eagle-eye breaker close 4f1c9a02
    """


@command.command("list", short_help="list open breakers")
@options.as_json
@options.wide
@options.server
@options.deployment
def list_(config: Config, server: str, json_lines: bool, wide: bool) -> None:
    """List open breakers: the action, the job, and why the action failed the last time.

    \b
    Example:
      eagle-eye breaker list
    """
    print_suppressions(active(config, server, "breakers", Breaker), COLUMNS, empty="no breaker is open", json_lines=json_lines, wide=wide)


@command.command(short_help="close a breaker, so that its action is allowed again")
@click.argument("breaker")
@options.person
@options.server
@options.deployment
def close(config: Config, breaker: str, person: str, server: str) -> None:
    """Close BREAKER, an id or the beginning of one. Plans that it refused are made again if their fault still lasts.

    \b
    Example:
      eagle-eye breaker close 4f1c9a02
    """
    click.echo(ask(config, server, "close_breaker", BreakerCommand(id=breaker, person=person))["message"])
