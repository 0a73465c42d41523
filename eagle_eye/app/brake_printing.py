"""Prints what stands in the way of automatic action: silences, planned work, breakers."""

import time
from typing import TypeVar

import click
import msgspec
from rich.console import Console

from eagle_eye.app.printing import plain_table, print_json
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.types import Breaker, Silence, Window

Brake = TypeVar("Brake", Silence, Window, Breaker)


def standing(config: Config, server: str, name: str, noun: type[Brake]) -> list[Brake]:
    """Those that the server knows of now; `name`: silences, windows or breakers. Raises EagleEyeError."""
    return [msgspec.convert(each, noun) for each in ask(config, server, "status").get(name, ())]


def show(rows: list[Brake], headings: tuple[str, ...], cells: dict[str, str], *, nothing: str, json_lines: bool) -> None:
    """A table of the rows, or one JSON object a line. `cells`: heading → field."""
    if json_lines:
        for row in rows:
            print_json(row)
        return
    if not rows:
        click.echo(nothing)
        return
    table = plain_table(*headings)
    for row in rows:
        table.add_row(*(_text(getattr(row, cells[heading])) for heading in headings))
    Console().print(table)


def _text(value: object) -> str:
    if isinstance(value, float):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return ", ".join(value) if isinstance(value, tuple) else str(value)
