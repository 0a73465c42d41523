"""`eagle-eye token add | list | remove`."""

import time

import click
from rich.console import Console

from eagle_eye.access import Role
from eagle_eye.access.tokens import TokenRecord, add_person, read_entries, remove_person, tokens_path
from eagle_eye.app import options
from eagle_eye.app.printing import plain_table
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config

RENEW_S = 7 * 86_400.0
"""Time to ask for a new one."""


@click.group(short_help="who may approve, release, silence: people and their tokens")
def command() -> None:
    """Tokens of people. Run it on the server's machine; the file holds hashes only and is read again when it changes.

    \b
    Examples:
      eagle-eye token add ada --role operator --expires 30d
      eagle-eye token list
      eagle-eye token remove ada
    """


@command.command(short_help="make a person's token and print it, once")
@click.argument("name")
@click.option("--role", type=click.Choice([str(role) for role in Role]), required=True, help="viewer reads; operator decides; admin configures.")
@click.option("--expires", callback=options.duration, default=None, metavar="DURATION", help="After how long: 30d, 12h. Default: never.")
@click.option("--tenant", default="", help="Only the jobs of this tenant. Default: all.")
@options.deployment
def add(config: Config, name: str, role: str, expires: float | None, tenant: str) -> None:
    """Give NAME a token. It is printed on stdout and kept nowhere: hand it over by a safe way.

    \b
    Examples:
      eagle-eye token add ada --role operator --expires 30d
      eagle-eye token add grafana --role viewer
      (umask 077; eagle-eye token add bob --role admin > bob.token)
    """
    now = SystemClock().now()
    token = add_person(tokens_path(config), name, Role(role), now=now, expires=now + expires if expires else None, tenant=tenant)
    click.echo(token)
    click.echo(f"{name} is {role} now; shown this once. Commands take it from EAGLE_EYE_TOKEN, or from a file named in access.token_file.", err=True)


@command.command("list", short_help="who has a token")
@options.deployment
def list_(config: Config) -> None:
    """Names, roles and ends; never tokens.

    \b
    Example:
      eagle-eye token list
    """
    path, now = tokens_path(config), SystemClock().now()
    entries = read_entries(path) if path.exists() else {}
    if not entries:
        click.echo(f"nobody has a token: `eagle-eye token add NAME --role operator` makes {path}")
        return
    table = plain_table("name", "role", "tenant", "expires", "")
    for name, entry in sorted(entries.items()):
        ends = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.expires.timestamp())) if entry.expires else "never"
        table.add_row(name, entry.role, entry.tenant or "all", ends, _warning(entry, now))
    Console().print(table)


@command.command(short_help="take a person's token away")
@click.argument("name")
@options.deployment
def remove(config: Config, name: str) -> None:
    """NAME's token counts no more from the next question on.

    \b
    Example:
      eagle-eye token remove ada
    """
    remove_person(tokens_path(config), name)
    click.echo(f"{name} has no token any more")


def _warning(entry: TokenRecord, now: float) -> str:
    if entry.expired(now):
        return "expired"
    return "expires soon" if entry.expires and entry.expires.timestamp() - now < RENEW_S else ""
