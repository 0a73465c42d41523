"""`eagle-eye alerts test | waiting`."""

import contextlib
import socket
from typing import TYPE_CHECKING

import click
import msgspec
from rich.console import Console

from eagle_eye.app import options, plugin_wiring
from eagle_eye.app.printing import TableColumn, print_json, print_table
from eagle_eye.config import Config
from eagle_eye.errors import ConfigError

if TYPE_CHECKING:
    from remediation.alerts.receiver import Endpoint


@click.group(short_help="test the alert receivers, list undelivered notifications")
def command() -> None:
    """Receivers of alerts: whether they work, and what is not delivered yet.

    \b
    Examples:
      eagle-eye alerts test
      eagle-eye alerts waiting
    """


@command.command(short_help="send a test alert to each receiver")
@click.argument("names", metavar="[RECEIVER]...", nargs=-1)
@options.as_json
@options.deployment
def test(config: Config, names: tuple[str, ...], json_lines: bool) -> None:
    """Send a test alert to each receiver of [actions.notify], or to those that are named, and print each answer.
    Exits with 1 if a receiver did not accept it.

    \b
    Examples:
      eagle-eye alerts test
      eagle-eye alerts test pagerduty --config /etc/eagle-eye/config.toml
    """
    from eagle_eye.clock import SystemClock
    from remediation.alerts.receiver_check import send_test_alerts

    failed = False
    for tried in send_test_alerts(_addresses(config, names), SystemClock(), socket.gethostname()):
        failed = failed or not tried.answer.taken
        if json_lines:
            print_json({"taken": tried.answer.taken, "says": str(tried.answer), **msgspec.to_builtins(tried)})
        else:
            sign = click.style("✓", fg="green") if tried.answer.taken else click.style("✗", fg="red")
            place = f"{tried.receiver} ({tried.kind}, {tried.where})" if tried.receiver != tried.kind else f"{tried.kind} ({tried.where})"
            became = f"answered with {tried.answer}" if tried.answer.status else f"not delivered: {tried.answer},"
            click.echo(f"{sign} {place}: {tried.sent} {became} after {tried.seconds:.2f} s")
    if failed:
        raise SystemExit(1)


@command.command(short_help="list notifications that are not delivered yet")
@options.as_json
@options.wide
@options.deployment
def waiting(config: Config, json_lines: bool, wide: bool) -> None:
    """List the receivers with undelivered notifications, and why the last attempt failed.

    \b
    Examples:
      eagle-eye alerts waiting
      eagle-eye alerts waiting --json
    """
    from eagle_eye.ledger.factory import open_ledger

    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        found = ledger.undelivered_by_receiver()
    if json_lines:
        for name, (count, oldest, error) in found.items():
            print_json({"receiver": name, "waiting": count, "oldest": oldest, "error": error})
        return
    if not found:
        click.echo("every notification was delivered")
        return
    columns = (TableColumn("receiver", name=True), TableColumn("waiting"), TableColumn("last failure", prose=True))
    print_table(Console(), columns, ((name, str(count), error or "not tried yet") for name, (count, _, error) in found.items()), wide=wide)


def _addresses(config: Config, names: tuple[str, ...]) -> "list[Endpoint]":
    from remediation.alerts.receiver import endpoints_of

    found = {address.name: address for address in endpoints_of(plugin_wiring.receivers(config))}
    if not found:
        raise ConfigError("no alert receiver is configured: add [[actions.notify.receivers]] to the configuration; docs/alerts.md has examples")
    for name in names:
        if name not in found:
            raise ConfigError(f"no alert receiver is named {name!r}; configured are: {', '.join(found)}")
    return [found[name] for name in names] if names else list(found.values())
