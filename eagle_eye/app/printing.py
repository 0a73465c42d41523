"""How commands print: structs as JSON, and tables that fit the terminal."""

import os
import re
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from eagle_eye.writable_text import printable

GAP = 2
"""Spaces between two columns."""
SHORTEST = 16
"""Characters to which a long name is shortened before a column is dropped."""
NARROWEST = 24
"""Characters of a column of prose before another column is dropped."""
WORKER = re.compile(r"[^\s/]+/([^\s/]+/\d+)\b")
"""Name of a worker: run/node/slot."""
TableCell = str | tuple[str, str]
"""Text, or (text, rich style)."""


@dataclass(frozen=True, slots=True)
class TableColumn:
    """One column of a table. Without any option its cells are neither wrapped nor shortened: ids, dates, numbers."""

    title: str
    drop: int = 0
    """Columns with the highest value are dropped first when the table is wider than the terminal; 0: never dropped."""
    prose: bool = False
    """Cells are sentences: they wrap between words."""
    name: bool = False
    """Cells are names: a long one is shortened in the middle."""
    brief: Callable[[str], str] | None = None
    """A shorter form of a cell with the same meaning (a date without its year), for a terminal that is too narrow."""


def print_json(struct: object) -> None:
    """One line on stdout."""
    click.echo(msgspec.json.encode(struct).decode())


def print_text(console: Console, text: str, *, indent: int = 0) -> None:
    """A sentence, wrapped between words; further lines are indented by two more spaces."""
    width = max(console.width, SHORTEST) if console.is_terminal or "COLUMNS" in os.environ else 10_000
    lines = textwrap.wrap(printable(text), width, initial_indent=" " * indent, subsequent_indent=" " * (indent + 2), break_long_words=False, break_on_hyphens=False)
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def local_time(moment: float, *, zone: bool = False) -> str:
    """Seconds since 1970 as the local date and time, with `zone` also whose; a time that no calendar has is shown as it is."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S" + " %Z" * zone, time.localtime(moment))
    except (ValueError, OverflowError, OSError):
        return f"{moment:.3g} s"


def brief_time(text: str) -> str:
    """A date of `local_time` without its year; other text is left as it is.

    >>> brief_time("2026-11-22 17:09:31"), brief_time("never")
    ('11-22 17:09:31', 'never')
    """
    return text[5:] if text[:4].isdigit() and text[4:5] == "-" else text


def brief_id(text: str) -> str:
    """The beginning of an id, which every command takes for the id.

    >>> brief_id("4f1c9a02e25e4ee8")
    '4f1c9a02'
    """
    return text[:8]


def brief_worker(text: str) -> str:
    """Names of workers (run/node/slot) without their run.

    >>> brief_worker("worker run-1/node-b/0 (87%), node node-a (13%)")
    'worker node-b/0 (87%), node node-a (13%)'
    """
    return WORKER.sub(r"\1", text)


def print_table(console: Console, columns: Sequence[TableColumn], rows: Iterable[Sequence[TableCell]], *, wide: bool = False) -> None:
    """Print a table that is no wider than the terminal; `wide`, or an output that is no terminal: every column in full."""
    in_full = wide or not (console.is_terminal or "COLUMNS" in os.environ)
    for line in table_lines(columns, list(rows), None if in_full else console.width):
        console.print(line, soft_wrap=True, highlight=False)


def table_lines(columns: Sequence[TableColumn], rows: Sequence[Sequence[TableCell]], width: int | None) -> list[Text]:
    """Lines of a table, the titles first. width: characters of the terminal; None: no limit."""
    texts = [[_text(cell) for cell in row] for row in rows]
    if width is not None and _needed(columns, texts) > width:
        texts = [[column.brief(text) if column.brief else text for column, text in zip(columns, row, strict=True)] for row in texts]
    kept = _fitting(columns, texts, width)
    widths = _widths([columns[place] for place in kept], [[row[place] for place in kept] for row in texts], width)
    lines = [_line([columns[place].title for place in kept], ["bold"] * len(kept), widths)]
    for row, cells in zip(texts, rows, strict=True):
        wrapped = [_wrapped(columns[place], row[place], wide) for place, wide in zip(kept, widths, strict=True)]
        styles = [_style(cells[place]) for place in kept]
        lines += [_line([cell[number] if number < len(cell) else "" for cell in wrapped], styles, widths) for number in range(max(map(len, wrapped), default=0))]
    return lines


def shortened(text: str, most: int) -> str:
    """At most so many characters, the middle replaced by an ellipsis.

    >>> shortened("run-20251120-083000/node-a/3", 16)
    'run-202…node-a/3'
    """
    if len(text) <= most:
        return text
    head = (most - 1) // 2
    return f"{text[:head]}…{text[len(text) - (most - 1 - head):]}"


def _fitting(columns: Sequence[TableColumn], texts: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Places of the columns that are shown."""
    kept = list(range(len(columns)))
    while width is not None:
        least = sum(_least(columns[place], [row[place] for row in texts]) for place in kept) + GAP * (len(kept) - 1)
        droppable = max(kept, key=lambda place: columns[place].drop)
        if least <= width or not columns[droppable].drop:
            break
        kept.remove(droppable)
    return kept


def _widths(columns: Sequence[TableColumn], texts: Sequence[Sequence[str]], width: int | None) -> list[int]:
    """Characters of each column: in full if there is room, else prose and then names are made narrower, the widest first."""
    cells = [[row[place] for row in texts] for place in range(len(columns))]
    widths = [_full(column, each) for column, each in zip(columns, cells, strict=True)]
    least = [_least(column, each) for column, each in zip(columns, cells, strict=True)]
    while width is not None and sum(widths) + GAP * (len(widths) - 1) > width:
        narrower = [place for place in range(len(widths)) if widths[place] > least[place]]
        if not narrower:
            break
        widths[max(narrower, key=lambda place: (columns[place].prose, widths[place]))] -= 1
    _make_room_for_words(columns, cells, widths)
    return widths


def _make_room_for_words(columns: Sequence[TableColumn], cells: Sequence[Sequence[str]], widths: list[int]) -> None:
    """A column of prose whose longest word (a key to be typed) has no room takes it from one with room to spare: `widths` is changed."""
    words = {place: max((cell_len(word) for text in cells[place] for word in text.split()), default=0) for place in range(len(columns)) if columns[place].prose}
    while True:
        short = [place for place in words if widths[place] < words[place]]
        spare = [place for place in words if widths[place] > max(words[place], SHORTEST, cell_len(columns[place].title))]
        if not (short and spare):
            return
        widths[min(short, key=lambda place: words[place] - widths[place])] += 1
        widths[max(spare, key=lambda place: widths[place])] -= 1


def _needed(columns: Sequence[TableColumn], texts: Sequence[Sequence[str]]) -> int:
    return sum(_full(column, [row[place] for row in texts]) for place, column in enumerate(columns)) + GAP * (len(columns) - 1)


def _full(column: TableColumn, cells: Sequence[str]) -> int:
    return max(cell_len(text) for text in (column.title, *cells))


def _least(column: TableColumn, cells: Sequence[str]) -> int:
    most = NARROWEST if column.prose else SHORTEST if column.name else None
    full = _full(column, cells)
    return full if most is None else min(full, max(most, cell_len(column.title)))


def _wrapped(column: TableColumn, text: str, width: int) -> list[str]:
    """Lines of a cell."""
    if column.name:
        return [shortened(text, width)]
    if column.prose and cell_len(text) > width:
        words = " ".join(shortened(word, width) for word in text.split())
        return textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False)
    return [text]


def _line(cells: Sequence[str], styles: Sequence[str], widths: Sequence[int]) -> Text:
    line = Text()
    for place, (cell, style, width) in enumerate(zip(cells, styles, widths, strict=True)):
        line.append(cell, style)
        if place < len(cells) - 1:
            line.append(" " * (width - cell_len(cell) + GAP))
    line.rstrip()
    return line


def _text(cell: TableCell) -> str:
    return " ".join(printable(cell if isinstance(cell, str) else cell[0]).split())


def _style(cell: TableCell) -> str:
    return "" if isinstance(cell, str) else cell[1]
