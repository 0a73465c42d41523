"""`eagle-eye approve` and `eagle-eye refuse`: show the plan, ask, and send the digest of what was shown."""

import sys
from typing import Any

import click

from eagle_eye.app import options
from eagle_eye.app.server_client import ask
from eagle_eye.clock import SystemClock
from eagle_eye.config import Config
from eagle_eye.errors import ControlError
from eagle_eye.plan_text import plan_of, plan_rows
from eagle_eye.rpc.control_messages import Decision, PendingPlansQuery

HELP = """{verb} PLAN, the id of a plan or of its incident; without PLAN the only pending one. Shows the
plan and asks for confirmation. The decision is valid for exactly that plan: if its action or targets change, a new one is needed.

\b
Examples:
  eagle-eye {name}
  eagle-eye {name} 4f1c9a02
  eagle-eye {name} 4f1c9a02 --yes --note "talked to the team"
"""


def decision_command(name: str, *, approved: bool, short_help: str) -> click.Command:
    """The command of that name."""

    @click.command(name, short_help=short_help, help=HELP.format(verb=name.capitalize(), name=name))
    @click.argument("plan", default="")
    @options.person
    @click.option("--note", default="", help="Why; recorded in the ledger.")
    @click.option("--digest", default="", help="Digest of the plan that you saw elsewhere; no other plan is decided.")
    @click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    @options.server
    @options.deployment
    def command(config: Config, plan: str, person: str, note: str, digest: str, yes: bool, server: str) -> None:
        shown = _waiting(config, server, plan)
        found = plan_of(shown)
        for what, text in plan_rows(shown, SystemClock().now()):
            click.echo(f"{what:>10}  {text}")
        if not yes:
            _confirm(name)
        decision = Decision(plan=found.id, person=person, digest=digest or found.digest, note=note)
        answer = ask(config, server, "approve" if approved else "refuse", decision)
        click.echo(answer["message"])

    return command


def _waiting(config: Config, server: str, plan: str) -> dict[str, Any]:
    plans: list[dict[str, Any]] = ask(config, server, "pending_plans", PendingPlansQuery(plan=plan))["plans"]
    if len(plans) == 1:
        return plans[0]
    if not plans:
        raise ControlError("no plan waits for approval")
    listed = "; ".join(f"{shown['plan']['id']} ({shown['plan']['action']} for {shown['job']})" for shown in plans)
    raise ControlError(f"{len(plans)} plans wait for approval, name one: {listed}")


def _confirm(name: str) -> None:
    if not sys.stdin.isatty():
        raise ControlError(f"the input is not a terminal: add --yes to {name} the plan that is shown")
    click.confirm(f"{name.capitalize()} this plan?", abort=True)
