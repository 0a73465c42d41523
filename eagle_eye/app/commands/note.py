"""`eagle-eye note`."""

import click

from eagle_eye.app import options
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.rpc.control_messages import NoteCommand


@click.command(short_help="add a note to an incident")
@click.argument("incident")
@click.argument("text")
@options.person
@options.server
@options.deployment
def command(config: Config, incident: str, text: str, person: str, server: str) -> None:
    """Add TEXT to the timeline of INCIDENT, an id or the beginning of one; `eagle-eye incidents ID` shows it.

    \b
    Example:
      eagle-eye note 4f1c9a02 "the cable was loose, replaced"
    """
    click.echo(ask(config, server, "note", NoteCommand(incident=incident, person=person, text=text))["message"])
