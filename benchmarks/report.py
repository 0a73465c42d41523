"""How every benchmark prints what it measured: one table, or the same rows as JSON."""

import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table


class Row(NamedTuple):
    """One figure beside its goal and beside what a peer does on the same work in the same run."""

    what: str
    figure: str
    goal: str = ""
    met: bool | None = None
    """None: there is no goal to meet."""
    peer: str = ""
    ratio: str = ""


def report(rows: Sequence[Row], json: bool = False, title: str = "") -> int:
    """Print the rows; returns the exit status: 1 when a goal was missed."""
    if json:
        _print_json(rows, title)
    else:
        _print_table(rows, title)
    return int(any(row.met is False for row in rows))


def _print_json(rows: Sequence[Row], title: str) -> None:
    sys.stdout.write(json.dumps({"title": title, "rows": [row._asdict() for row in rows]}, indent=2) + "\n")


def _print_table(rows: Sequence[Row], title: str) -> None:
    table = Table(title=title or None, title_justify="left")
    for heading in ("what", "figure", "goal", "met", "peer", "ratio"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        met = {None: "", True: "[green]yes[/]", False: "[red]no[/]"}[row.met]
        table.add_row(*map(escape, (row.what, row.figure, row.goal)), met, *map(escape, (row.peer, row.ratio)))
    Console().print(table)
