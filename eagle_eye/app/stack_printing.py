"""Prints groups of stacks, and open files, as text and as JSON."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console

from eagle_eye.activity.open_files import OpenFile
from eagle_eye.activity.python_stacks import StackFrame
from eagle_eye.activity.stack_facts import ProcessFact, ProcessReport
from eagle_eye.activity.stack_groups import StackGroup
from eagle_eye.activity.stack_text import group_lines, members_text
from eagle_eye.app.printing import SHORTEST, TableColumn, print_table, print_text, shortened

COLUMNS = (TableColumn("fd"), TableColumn("kind"), TableColumn("use", drop=2), TableColumn("at byte", drop=1), TableColumn("what", prose=True))


def print_groups(console: Console, groups: Sequence[StackGroup], word: str, facts: Mapping[str, Sequence[ProcessFact]] | None = None, *, wide: bool) -> None:
    """Each group: a heading, what is known of it, and its stack. `facts`: of each member."""
    for line in group_lines(groups, word, facts, full=wide):
        if line.heading:
            console.print()
        narrow = not wide and (console.is_terminal or "COLUMNS" in os.environ)
        print_text(console, _fitting(line.text, console.width - line.indent - 2) if narrow else line.text, indent=line.indent)


def print_open_files(console: Console, files: Mapping[str, Sequence[OpenFile]], word: str, *, wide: bool) -> None:
    """A table for each process."""
    for name, found in files.items():
        console.print()
        print_text(console, f"{members_text([name], word)}: {len(found)} open file{'s' * (len(found) != 1)}")
        rows = ((str(file.descriptor), file.kind, file.access, "" if file.position is None else str(file.position), file.target) for file in found)
        print_table(console, COLUMNS, rows, wide=wide)


def _fitting(text: str, width: int) -> str:
    """Without words that are longer than a line."""
    return " ".join(shortened(word, max(width, SHORTEST)) for word in text.split(" "))


def groups_json(groups: Iterable[StackGroup]) -> list[dict[str, Any]]:
    """Each group as an object, its frames whole and the outermost first."""
    return [
        {
            "members": group.members, "motion": group.motion, "awaits_peers": group.awaits_peers, "place": _place(group.place),
            "frames": [_place(frame) for frame in group.frames], "like": group.like, "shared": group.shared,
            "places": [{"place": _place(place), "seen": seen} for place, seen in group.places],
            "holders": [{"thread": each.thread, "place": _place(each.place), "members": each.members} for each in group.holders],
            "threads": [{"name": each.name, "place": _place(each.place), "members": each.members} for each in group.threads],
            "helpers": group.helpers,
        }
        for group in groups
    ]  # fmt: skip


def process_json(name: str, pid: int, found: ProcessReport, files: Sequence[OpenFile] | None) -> dict[str, Any]:
    """One process as an object."""
    told = {
        "name": name, "pid": pid, "motion": found.process.motion, "state": found.state, "wchan": found.wchan, "waits_for": found.waits_for,
        "activity": found.activity.kind if found.activity is not None else "", "looks": len(found.process.samples), "facts": [fact.text for fact in found.facts],
    }  # fmt: skip
    return told if files is None else told | {"open_files": [file._asdict() | {"ends": file.ends and file.ends._asdict()} for file in files]}


def _place(frame: StackFrame | None) -> dict[str, Any] | None:
    return None if frame is None else frame._asdict()
