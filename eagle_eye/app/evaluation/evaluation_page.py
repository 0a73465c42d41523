"""Figures as one HTML file that opens without a network."""

import os
from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from eagle_eye.errors import ConfigError

from .figures import Figure

STYLE = """body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1b1f24; background: #fff }
table { border-collapse: collapse; width: 100%; margin-bottom: 1.5rem } th, td { text-align: left; vertical-align: top; padding: .4rem .6rem; border-bottom: 1px solid #d8dee4 }
.yes { color: #12703a } .no { color: #b3261e; font-weight: 600 } .reason { color: #57606a; font-size: .9em; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) { body { color: #e6edf3; background: #0d1117 } th, td { border-color: #30363d } .yes { color: #56d364 } .no { color: #ff7b72 } .reason { color: #9198a1 } }"""
HEADINGS = ("What", "Figure", "Goal", "Met", "Others")


def check_page_path(path: Path) -> None:
    """Raises ConfigError where the page cannot be written: asked before the evaluation, not after it."""
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ConfigError(f"--html {path}: cannot be written; name a file in a folder that is there and yours")


def write_page(path: Path, figures: Sequence[Figure], command: str) -> None:
    """Whole or not at all. Raises ConfigError where it cannot be written."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(page_of(figures, command), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"--html {path}: cannot be written: {error.strerror}") from error


def page_of(figures: Sequence[Figure], command: str) -> str:
    """A summary and one table for each data set. `command`: what was typed, so that somebody else gets the same figures."""
    asked = [each for each in figures if each.met is not None]
    met = sum(bool(each.met) for each in asked)
    tables = "".join(_table(name, list(rows)) for name, rows in groupby(figures, key=lambda each: each.data_set))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Eagle Eye: evaluation</title><style>{STYLE}</style></head>'
        f"<body><h1>Evaluation</h1><p>{met} of {len(asked)} goals are met. A goal that is missed has its reason below the figure.</p><p><code>{escape(command)}</code></p>{tables}</body></html>\n"
    )


def _table(name: str, figures: Sequence[Figure]) -> str:
    head = "".join(f"<th scope='col'>{heading}</th>" for heading in HEADINGS)
    return f"<h2>{escape(name)}</h2><table><thead><tr>{head}</tr></thead><tbody>{''.join(map(_row, figures))}</tbody></table>"


def _row(each: Figure) -> str:
    reason = f"<div class='reason'>{escape(each.reason)}</div>" if each.reason else ""
    met = {None: "", True: "<span class='yes'>yes</span>", False: "<span class='no'>no</span>"}[each.met]
    cells = (escape(each.what), escape(each.figure) + reason, escape(each.goal), met, escape(each.others))
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
