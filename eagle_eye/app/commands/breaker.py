"""`eagle-eye breaker list | close`."""

import click

from eagle_eye.app import options
from eagle_eye.app.brake_printing import show, standing
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import BreakerCommand
from eagle_eye.types import Breaker

CELLS = {"id": "id", "job": "job", "action": "action", "since": "since", "incident": "incident", "why": "reason"}


@click.group(short_help="actions that did not help and are not tried again")
def command() -> None:
    """An action that did not help a job opens its breaker: it is not tried on that job again until a person closes it.

    \b
    Examples:
      eagle-eye breaker list
      eagle-eye breaker close 4f1c9a02
    """


@command.command("list", short_help="breakers that are open")
@options.as_json
@options.server
@options.deployment
def list_(config: Config, server: str, json_lines: bool) -> None:
    """Which action is not tried on which job, and what came of it the last time.

    \b
    Example:
      eagle-eye breaker list
    """
    found = standing(config, server, "breakers", Breaker)
    show(found, tuple(CELLS), CELLS, nothing="no breaker is open", json_lines=json_lines)


@command.command(short_help="let an action be tried again")
@click.argument("breaker")
@options.person
@options.server
@options.deployment
def close(config: Config, breaker: str, person: str, server: str) -> None:
    """Close BREAKER, an id or the beginning of one. Plans that it refused are made anew, if their fault still lasts.

    \b
    Example:
      eagle-eye breaker close 4f1c9a02
    """
    click.echo(ask(config, server, "close_breaker", BreakerCommand(id=breaker, person=person))["message"])
