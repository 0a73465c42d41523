"""Pieces of a page as HTML: tables, badges, tiles, empty states. Pure; style.css says how they look.

Every text is escaped but what is `Safe` already, so that nothing that came over a wire becomes markup, nor turns the direction of what stands beside it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal
from urllib.parse import urlencode

Tone = Literal["quiet", "good", "accent", "warning", "alarm"]
SIGNS: Mapping[Tone, str] = {"quiet": "○", "good": "●", "accent": "◐", "warning": "▲", "alarm": "■"}
"""Shapes beside the colours: for readers who see no colours."""
FIRST = "cluster"
NAMED = re.compile(r"(?i)\b(incident )([0-9a-f]{12,32})\b")
QUOTED = re.compile(r"`([^`]+)`")
TURNS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Characters that turn the direction of writing, to the end of the line: a name can show as another one."""


class Safe(str):
    """Markup of ours: it is not escaped again."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column:
    """Of a table. Numbers stand right, so that their digits stand below each other."""

    title: str
    number: bool = False
    wide_only: bool = False
    """Not on a telephone."""
    grows: bool = False
    """Takes the room that is left, and may break its lines."""


def text(value: object) -> Safe:
    """Escaped, unless it is safe.

    >>> text("a < b"), text(Safe("<b>")), text("node-\\u202e1-edon")
    ('a &lt; b', '<b>', 'node-1-edon')
    """
    return value if isinstance(value, Safe) else _escaped(value)


def _escaped(value: object) -> Safe:
    return Safe(escape(TURNS.sub("", str(value))))


def prose(value: object) -> Safe:
    """As `text`; what stands between backticks is code, as in our errors.

    >>> prose("start `eagle-eye server` & look")
    'start <code>eagle-eye server</code> &amp; look'
    """
    return value if isinstance(value, Safe) else Safe(QUOTED.sub(r"<code>\1</code>", _escaped(value)))


def linked(value: object) -> Safe:
    """As `prose`; an incident that is named leads to its page.

    >>> linked("it came back as incident 3336dcb6e25e4ee8; no")
    'it came back as incident <a class="ee-link" href="incident?incident=3336dcb6e25e4ee8" target="_self">3336dcb6e25e4ee8</a>; no'
    """
    return Safe(NAMED.sub(lambda found: f"{found[1]}{link(found[2], 'incident', incident=found[2])}", prose(value)))


def joined(*parts: object) -> Safe:
    """One after the other."""
    return Safe("".join(text(part) for part in parts))


def tagged(name: str, content: object, kind: str = "", **attributes: str) -> Safe:
    """One element; `kind` is its class.

    >>> tagged("p", "a < b", "ee-note", title='"')
    '<p class="ee-note" title="&quot;">a &lt; b</p>'
    """
    given = {"class": kind, **attributes} if kind else attributes
    inside = "".join(f' {key}="{_escaped(value)}"' for key, value in given.items())
    return Safe(f"<{name}{inside}>{text(content)}</{name}>")


def address(page: str, **query: str) -> str:
    """Of a page of ours, relative to any other; the first page has no name.

    >>> address("job", job="team/gpt/run-1"), address("cluster")
    ('job?job=team%2Fgpt%2Frun-1', './')
    """
    path = "./" if page == FIRST else page
    return f"{path}?{urlencode(query)}" if query else path


def link(content: object, page: str, **query: str) -> Safe:
    """To a page of ours; links.js follows it without loading the page anew."""
    return tagged("a", content, "ee-link", href=address(page, **query), target="_self")


def badge(label: object, tone: Tone = "quiet") -> Safe:
    """A state: shape, colour and label."""
    return Safe(f'<span class="ee-badge ee-{tone}"><span class="ee-sign" aria-hidden="true">{SIGNS[tone]}</span>{text(label)}</span>')


def muted(content: object) -> Safe:
    """An explanation, in a muted colour."""
    return tagged("span", content, "ee-muted")


def stacked(first: object, second: object) -> Safe:
    """Two lines in one cell; the second is smaller."""
    return Safe(f'{text(first)}<div class="ee-second">{text(second)}</div>')


def table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, caption: str = "", low: bool = False) -> Safe:
    """Dense; scrolls sideways by itself where it is too wide. `caption` is for who listens to the page; `low`: a long one scrolls downwards, too."""
    heads = "".join(tagged("th", column.title, _kind(column), scope="col") for column in columns)
    body = "".join(f"<tr>{''.join(tagged('td', cell, _kind(column)) for column, cell in zip(columns, row, strict=True))}</tr>" for row in rows)
    spoken = tagged("caption", caption) if caption else ""
    box = 'class="ee-scroll ee-low" tabindex="0"' if low else 'class="ee-scroll"'
    return Safe(f'<div {box}><table class="ee-table">{spoken}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>')


@dataclass(frozen=True, slots=True)
class Tile:
    """One number that is read first."""

    label: str
    value: object
    note: object = ""
    tone: Tone = "quiet"


def tiles(each: Iterable[Tile]) -> Safe:
    """Side by side; below each other where there is no room."""
    return tagged("div", joined(*(_tile(tile) for tile in each)), "ee-tiles")


def empty(title: object, advice: object, *, command: str = "") -> Safe:
    """Where there is nothing yet: what that means, and what to do next."""
    todo = tagged("code", command, "ee-command") if command else ""
    return tagged("div", joined(tagged("div", title, "ee-empty-title"), tagged("div", prose(advice), "ee-muted"), todo), "ee-empty")


def banner(content: object, tone: Tone = "quiet") -> Safe:
    """One line over the page."""
    return tagged("div", prose(content), f"ee-banner ee-{tone}", role="status")


def section(title: object, note: object = "") -> Safe:
    """Heading of a part of a page."""
    return Safe(f'<div class="ee-section"><h2>{text(title)}</h2>{muted(note) if note else ""}</div>')


def _kind(column: Column) -> str:
    found = (("ee-number", column.number), ("ee-wide", column.wide_only), ("ee-grows", column.grows))
    return " ".join(name for name, there in found if there)


def _tile(tile: Tile) -> Safe:
    note = tagged("div", tile.note, "ee-second") if tile.note else ""
    return tagged("div", joined(tagged("div", tile.label, "ee-label"), tagged("div", tile.value, "ee-value"), note), f"ee-tile ee-{tile.tone}")
