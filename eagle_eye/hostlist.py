"""Hostlists, as Slurm writes many names in one expression.

>>> hosts_of("node[008-010,12]-ib, login")
('node008-ib', 'node009-ib', 'node010-ib', 'node12-ib', 'login')
>>> hosts_of("r[1-2]n[0-1]")
('r1n0', 'r1n1', 'r2n0', 'r2n1')
"""

import re
from collections.abc import Iterator
from itertools import product

MOST_HOSTS = 100_000
"""Names that one expression may stand for."""
LONGEST = 1 << 20
"""Characters of an expression."""
LONGEST_NAME = 400
"""Characters of a name; a host's has at most 253 (RFC 1035)."""
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_EXAMPLE = "write it as node[01-16,20]"


class HostlistError(ValueError):
    """An expression that is no hostlist; the message says what is wrong and how to write it."""


def hosts_of(expression: str) -> tuple[str, ...]:
    """Every name that an expression stands for, in its order, each once. A range is as wide as its first number is written.

    Raises HostlistError.
    """
    if len(expression) > LONGEST:
        raise HostlistError(f"it has {len(expression)} characters, more than {LONGEST}: use several")
    hosts: list[str] = []
    for element in _elements(expression):
        hosts += _names(element)
        if len(hosts) > MOST_HOSTS:
            raise HostlistError(f"{_shown(expression)} stands for more than {MOST_HOSTS} names: use several")
    return tuple(dict.fromkeys(hosts))


def _elements(expression: str) -> Iterator[str]:
    """What stands between the commas outside of brackets."""
    begin, inside = 0, False
    for place, character in enumerate(expression):
        if character == "[" and inside:
            raise HostlistError(f"{_shown(expression)} has a bracket within a bracket; {_EXAMPLE}")
        if character == "]" and not inside:
            raise HostlistError(f"{_shown(expression)} closes a bracket that is not open; {_EXAMPLE}")
        if character in "[]":
            inside = character == "["
        elif character == "," and not inside:
            yield from _stripped(expression[begin:place])
            begin = place + 1
    if inside:
        raise HostlistError(f"{_shown(expression)} has a bracket that is not closed; {_EXAMPLE}")
    yield from _stripped(expression[begin:])


def _stripped(element: str) -> Iterator[str]:
    name = element.strip()
    if any(character.isspace() for character in name.partition("[")[0]):
        raise HostlistError(f"{_shown(name)} has a space in a name: put commas between names")
    if name:
        yield name


def _names(element: str) -> Iterator[str]:
    """The product of an element's brackets, the last one changing first. Their sizes are known before any name is made."""
    parts = re.split(r"[\[\]]", element)
    groups = [_ranges(part, element) if index % 2 else [(part, 0, 0)] for index, part in enumerate(parts)]
    count = 1
    for index, group in enumerate(groups):
        count *= sum(last - first + 1 for _, first, last in group) if index % 2 else 1
        if count > MOST_HOSTS:
            raise HostlistError(f"{_shown(element)} stands for more than {MOST_HOSTS} names: use several")
    if any(len(part) > LONGEST_NAME for part in parts[::2]):
        raise HostlistError(f"{_shown(element)} is longer than a host's name can be")
    for words in product(*(_words(group) if index % 2 else [group[0][0]] for index, group in enumerate(groups))):
        yield "".join(words)


def _ranges(text: str, element: str) -> list[tuple[str, int, int]]:
    """(first number as it is written, first, last) of each range in a bracket."""
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise HostlistError(f"{_shown(element)} has {_shown(part.strip())} in a bracket, which is no number and no range of numbers; {_EXAMPLE}")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise HostlistError(f"{_shown(element)} has the range {part.strip()}, whose end is before its begin")
        found.append((match[1], first, last))
    return found


def _words(group: list[tuple[str, int, int]]) -> list[str]:
    return [f"{number:0{len(written)}d}" for written, first, last in group for number in range(first, last + 1)]


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
