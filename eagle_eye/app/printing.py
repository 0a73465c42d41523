"""How commands print: structs as JSON, and tables."""

import click
import msgspec
from rich.table import Table


def print_json(struct: object) -> None:
    """One line on stdout."""
    click.echo(msgspec.json.encode(struct).decode())


def plain_table(*columns: str) -> Table:
    """A table without lines; long cells are folded, but for ids, which people copy."""
    table = Table(box=None, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column == "id")
    return table
