"""Lists of what holds back automatic actions: silences, maintenance windows, breakers."""

from collections.abc import Sequence
from typing import TypeVar

import click
import msgspec
from rich.console import Console

from eagle_eye.app.printing import TableColumn, local_time, print_json, print_table
from eagle_eye.app.server_client import ask
from eagle_eye.config import Config
from eagle_eye.types import Breaker, Silence, Window

Suppression = TypeVar("Suppression", Silence, Window, Breaker)


def active(config: Config, server: str, name: str, kind: type[Suppression]) -> list[Suppression]:
    """Those that the server has now; `name`: silences, windows or breakers. Raises EagleEyeError."""
    return [msgspec.convert(each, kind) for each in ask(config, server, "status").get(name, ())]


def print_suppressions(rows: list[Suppression], columns: Sequence[tuple[TableColumn, str]], *, empty: str, json_lines: bool, wide: bool) -> None:
    """A table of the rows, or one JSON object a line. columns: (column, field of a row); empty: the line without any row."""
    if json_lines:
        for row in rows:
            print_json(row)
    elif rows:
        print_table(Console(), [column for column, _ in columns], ([_text(getattr(row, field)) for _, field in columns] for row in rows), wide=wide)
    else:
        click.echo(empty)


def _text(value: object) -> str:
    if isinstance(value, float):
        return local_time(value)
    return ", ".join(value) if isinstance(value, tuple) else str(value)
