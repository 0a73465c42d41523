"""Processes that a benchmark has started and that should be gone."""

import contextlib
import os
from pathlib import Path

SHOWN = 160
"""Characters of a command."""


def naming(mark: bytes) -> dict[int, str]:
    """Process → its command, of those, except this one, that have `mark` in their command or environment. One that is dead has neither (proc(5))."""
    found = dict[int, str]()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (directory / "cmdline").read_bytes()
            if mark in command + (directory / "environ").read_bytes() and int(directory.name) != os.getpid():
                found[int(directory.name)] = command.replace(bytes(1), b" ").decode(errors="replace")[:SHOWN]
    return found
