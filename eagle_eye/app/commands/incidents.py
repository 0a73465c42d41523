"""`eagle-eye incidents [ID]`."""

import contextlib

import click
from rich.console import Console

from eagle_eye.app import options
from eagle_eye.app.incident_printing import print_incident, print_incidents
from eagle_eye.config import Config
from eagle_eye.ledger.factory import open_ledger
from eagle_eye.ledger.incident_list import newest_incidents


@click.command(short_help="list incidents, or show one with evidence and timeline")
@click.argument("incident", default="")
@click.option("--open", "open_only", is_flag=True, help="Only open incidents.")
@click.option("--job", default="", help="Only incidents of one job.")
@click.option("--limit", default=50, type=click.IntRange(min=1), show_default=True, help="At most so many incidents, the newest first.")
@click.option("--stacks", is_flag=True, help="With an INCIDENT: print the stacks that were dumped of its workers, in groups; with --wide as they were dumped.")
@options.as_json
@options.wide
@options.deployment
def command(config: Config, incident: str, open_only: bool, job: str, limit: int, stacks: bool, json_lines: bool, wide: bool) -> None:
    """List incidents, or show one with its evidence, rival causes, timeline and plans. INCIDENT: an id, or the beginning of one.

    \b
    Examples:
      eagle-eye incidents
      eagle-eye incidents --open --json
      eagle-eye incidents 4f1c9a02
      eagle-eye incidents 4f1c9a02 --stacks
    """
    if stacks and not incident:
        raise click.UsageError("--stacks shows the stacks of one incident: name its id, which `eagle-eye incidents` lists")
    console = Console()
    if not incident:
        print_incidents(console, newest_incidents(config, open_only=open_only, job=job, limit=limit), open_only=open_only, json_lines=json_lines, wide=wide)
        return
    with contextlib.closing(open_ledger(config, read_only=True)) as ledger:
        print_incident(console, ledger, incident, cost=config.cost, json_lines=json_lines, stacks=stacks, wide=wide)
