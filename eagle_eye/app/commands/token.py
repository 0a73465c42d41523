"""`eagle-eye token add | list | remove`."""

import click
from rich.console import Console

from eagle_eye.access import Role
from eagle_eye.access.tokens import TokenRecord, add_person, read_entries, remove_person, tokens_path
from eagle_eye.app import options
from eagle_eye.app.printing import TableColumn, brief_time, local_time, print_table
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config

RENEW_S = 7 * 86_400.0
"""Before its end a token is listed as expiring soon."""


@click.group(short_help="manage the tokens of operators and viewers")
def command() -> None:
    """Manage tokens. Run it on the server's machine; the file holds hashes only, and servers read it again when it changes.

    \b
    Examples:
      eagle-eye token add ada --role operator --expires 30d
      eagle-eye token list
      eagle-eye token remove ada
    """


@command.command(short_help="create a token and print it, once")
@click.argument("name")
@click.option("--role", type=click.Choice([str(role) for role in Role]), required=True, help="viewer: reads; operator: approves, silences, releases; admin: everything.")
@click.option("--expires", callback=options.duration, default=None, metavar="DURATION", help="Time until it expires: 30d, 12h. Default: never.")
@click.option("--tenant", default="", help="Only the jobs of this tenant. Default: all.")
@options.deployment
def add(config: Config, name: str, role: str, expires: float | None, tenant: str) -> None:
    """Create a token for NAME. It is printed on stdout and stored nowhere: send it over a safe channel.

    \b
    Examples:
      eagle-eye token add ada --role operator --expires 30d
      eagle-eye token add grafana --role viewer
      (umask 077; eagle-eye token add bob --role admin > bob.token)
    """
    now = SystemClock().now()
    token = add_person(tokens_path(config), name, Role(role), now=now, expires=now + expires if expires else None, tenant=tenant)
    click.echo(token)
    click.echo(f"{name} now has the role {role}; the token is shown only once. Commands read it from EAGLE_EYE_TOKEN, or from the file in access.token_file.", err=True)


@command.command("list", short_help="list tokens: names, roles, expiry")
@options.wide
@options.deployment
def list_(config: Config, wide: bool) -> None:
    """List names, roles, tenants and expiry dates; never the tokens themselves.

    \b
    Example:
      eagle-eye token list
    """
    path, now = tokens_path(config), SystemClock().now()
    entries = read_entries(path) if path.exists() else {}
    if not entries:
        click.echo(f"no token exists: create one, and the file {path}, with `eagle-eye token add NAME --role operator`")
        return
    columns = (TableColumn("name", name=True), TableColumn("role"), TableColumn("tenant", name=True), TableColumn("expires", brief=brief_time), TableColumn("note"))
    rows = []
    for name, entry in sorted(entries.items()):
        ends = local_time(entry.expires.timestamp())[:16] if entry.expires else "never"
        rows.append((name, str(entry.role), entry.tenant or "all", ends, _warning(entry, now)))
    print_table(Console(), columns, rows, wide=wide)


@command.command(short_help="revoke a token")
@click.argument("name")
@options.deployment
def remove(config: Config, name: str) -> None:
    """Revoke NAME's token: it is refused from the next request on.

    \b
    Example:
      eagle-eye token remove ada
    """
    remove_person(tokens_path(config), name)
    click.echo(f"the token of {name} is revoked")


def _warning(entry: TokenRecord, now: float) -> str:
    if entry.expired(now):
        return "expired"
    return "expires soon" if entry.expires and entry.expires.timestamp() - now < RENEW_S else ""
