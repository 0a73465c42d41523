"""Stacks in the form that py-spy prints for a person: `Thread 4711 (idle): "MainThread"`, then `    step (train.py:33)`, the innermost frame first."""

import re
from collections.abc import Hashable

from .python_stacks import MAIN_THREAD, StackFrame, ThreadStack

PROCESS = re.compile(r"Process (\d+):")
THREAD = re.compile(r'Thread (?:0x)?([0-9A-Fa-f]+) \((?P<states>[^)]*)\)(?:: "(?P<name>.*)")?\s*')
DIGITS = re.compile(r"[0-9]{1,9}")
NUMBER = re.compile(r"\d+")
LARGEST = 1 << 20
"""Characters that are read."""


def parse_text(text: str) -> tuple[ThreadStack, ...]:
    """What `py-spy dump` printed, the main thread first; () if it is not that. A text that was cut ends in its last whole line."""
    process, threads = "", list[tuple[int, str, bool, list[StackFrame]]]()
    for line in text[:LARGEST].splitlines():
        if not threads and (found := PROCESS.match(line)):
            process = found[1]
        elif found := THREAD.fullmatch(line):
            number = int(found[1]) if DIGITS.fullmatch(found[1]) else 0
            threads.append((number, found["name"] or "", "gil" in found["states"], []))
        elif threads and (frame := _frame(line)) is not None:
            threads[-1][3].append(frame)
    stacks = (ThreadStack(number, name, holds, tuple(frames)) for number, name, holds, frames in threads)
    return tuple(sorted(stacks, key=lambda each: (str(each.thread) != process, each.name != MAIN_THREAD)))


def _frame(line: str) -> StackFrame | None:
    """None for another line. A file without a line is a library of native code."""
    function, bracket, rest = line.strip().partition(" (")
    if not line.startswith(" ") or not bracket or not rest.endswith(")"):
        return None
    file, colon, number = rest[:-1].rpartition(":")
    return StackFrame(file, int(number), function) if colon and DIGITS.fullmatch(number) else StackFrame(rest[:-1], 0, function)


def place_key(text: str) -> Hashable:
    """Equal for two texts whose threads are at the same places: without numbers of processes and threads, and whatever the order of the others. The text itself where it is no dump."""
    stacks = parse_text(text)
    if not stacks:
        return text
    main, *others = ((NUMBER.sub("N", stack.name), stack.holds_interpreter, stack.frames) for stack in stacks)
    return main, frozenset(others)
