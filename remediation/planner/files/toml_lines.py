"""Line numbers of the values in a TOML file: parsers report what is wrong, an error message needs the line too."""

import re
from collections.abc import Sequence

TomlPath = tuple[str | int, ...]
"""Keys from the root; elements of arrays of tables by their index."""

_ARRAY = re.compile(r"^\s*\[\[\s*([\w.\"'-]+)\s*\]\]")
_TABLE = re.compile(r"^\s*\[\s*([\w.\"'-]+)\s*\]")
_KEY = re.compile(r"^\s*([\w\"'-]+(?:\s*\.\s*[\w\"'-]+)*)\s*=")
_STEP = re.compile(r"\.([\w-]+)|\[(\d+)\]")


class TomlLines:
    """Lines (from 1) of the tables and keys of a text. Keys of an inline table stand where the table does."""

    def __init__(self, text: str) -> None:
        self._lines: dict[TomlPath, int] = {(): 1}
        self._counts: dict[TomlPath, int] = {}
        here: TomlPath = ()
        for number, line in enumerate(text.splitlines(), start=1):
            if found := _ARRAY.match(line):
                here = self._next(self._resolved(_keys(found[1])))
            elif found := _TABLE.match(line):
                here = self._resolved(_keys(found[1]))
            elif found := _KEY.match(line):
                self._lines.setdefault((*here, *_keys(found[1])), number)
                continue
            else:
                continue
            self._lines.setdefault(here, number)

    def line(self, path: Sequence[str | int]) -> int:
        """Of the value, or of the nearest table around it."""
        place = tuple(path)
        while place not in self._lines:
            place = place[:-1]
        return self._lines[place]

    def _next(self, name: TomlPath) -> TomlPath:
        index = self._counts.get(name, 0)
        self._counts[name] = index + 1
        return (*name, index)

    def _resolved(self, keys: Sequence[str]) -> TomlPath:
        """With the index of the last element wherever a key before the last names an array of tables."""
        place: TomlPath = ()
        for position, key in enumerate(keys):
            place = (*place, key)
            if place in self._counts and position < len(keys) - 1:
                place = (*place, self._counts[place] - 1)
        return place


def parsed_path(text: str) -> TomlPath:
    """From the notation of msgspec's messages, `$.job[0].model`."""
    return tuple(key or int(index) for key, index in _STEP.findall(text))


def _keys(dotted: str) -> list[str]:
    return [key.strip().strip("\"'") for key in dotted.split(".")]
