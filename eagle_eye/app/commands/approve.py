"""`eagle-eye approve`."""

import click

from eagle_eye.app import options
from eagle_eye.config import Config
from eagle_eye.rpc.client import call
from eagle_eye.rpc.messages import Decision


@click.command(short_help="approve a plan that waits for a person")
@options.decision
@options.deployment
def command(config: Config, plan: str, person: str, note: str, server: str) -> None:
    """Approve PLAN, the id of a plan or of its incident. The word counts for exactly what the plan says now: if action
    or targets change, it is asked for again.

    \b
    Examples:
      eagle-eye approve 4f1c9a02
      eagle-eye approve 4f1c9a02 --note "talked to the team"
    """
    answer = call(server or config.server.listen, "approve", Decision(plan=plan, person=person, note=note))
    click.echo(answer.get("message", "approved"))
