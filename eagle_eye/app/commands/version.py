"""`eagle-eye version`."""

import click

from eagle_eye import __version__
from eagle_eye.types import SCHEMA


@click.command(short_help="print the version")
def command() -> None:
    """Print the version of the program and of its records."""
    click.echo(f"eagle-eye {__version__} (records of schema {SCHEMA})")
