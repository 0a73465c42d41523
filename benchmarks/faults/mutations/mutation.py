"""Seeded mutations of records by their structure: a valid record in, something beside it out.

`Mutation` changes trees of plain values (what JSON and msgpack hold): fields get odd numbers, other types and huge texts, go missing,
come twice, are swapped, nested or grafted from another record. Bytes are changed where no structure is known: cut, spliced, repeated, flipped.
"""

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec

INTEGERS = (0, 1, -1, 2, 255, 256, 2**31 - 1, 2**31, 2**32, 2**53 - 1, 2**53, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1, -(2**31), -(2**53) - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.5, -1.0, 5e-324, 1e9, -1e9, 1e11, -1e11, 1.1e11, 1e18, 1e300, -1e300, 1.7e308, -1.7e308, math.nan, math.inf, -math.inf)
TEXTS = (
    "", " ", "\0", "a\0b", "/", "a/b/c", "idle/", "//", "../../../etc/passwd", "-1", "1e999", "NaN", "inf", "true", "null", "9" * 30, "9" * 5000, "\u202e", "\ud7ff\U0010ffff",
    "\n\r\t", "%s%n{}", "<script>alert(1)</script>", "'; DROP TABLE incidents; --", "é" * 200, "x" * 300, "y" * 20_000, "1" + "0" * 400,
)  # fmt: skip
DEPTHS = (10, 200, 1_100, 20_000)
REPEATS = (2, 3, 50, 500)
POSSIBLE_INTEGERS = (0, 1, -1, 2, 3, 255, 65_536, 10**6, 2**31, 2**40, 2**53 - 1, 2**53)
POSSIBLE_FLOATS = (0.0, -1.0, 1.5, 5e-324, 1e9, -1e9, 1.6e9, 4e9, 1e11, -1e11)
POSSIBLE = 0.4
"""Share of the records whose changes are such as the types let pass: they go deeper than those that are refused where they are read."""
WEIGHED = 40
"""Entries of a container up to which they are drawn by what is in them."""
LONGEST_TREE = 400_000
"""Bytes: a larger record is not made, as a stream would only be slow."""
Encode = Callable[[Any], bytes]


def _json_oddities() -> tuple[bytes, ...]:
    nested = tuple(opening * depth + b"0" + closing * depth for depth in DEPTHS for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")))
    return (*nested, b"[" * 20_000, b"NaN", b"1e400", b"-0", b"1" + b"0" * 5_000, b'"\xff\xfe"', b'"\\ud800"', b"0" * 20, b'{"a":1,"a":2}', b"", b"\0", b"\xef\xbb\xbf1")


def _msgpack_oddities() -> tuple[bytes, ...]:
    nested = tuple(b"\x91" * depth + b"\xc0" for depth in DEPTHS) + tuple(b"\x81\xa1a" * depth + b"\xc0" for depth in DEPTHS)
    huge = (b"\xdb\xff\xff\xff\xff", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdd\x00\xff\xff\xff\xc0")
    return (*nested, *huge, b"\xa2\xff\xfe", b"\xc1", b"\xd5\x01ab", b"\xd6\xff\xff\xff\xff\xff", b"\xca\x7f\x80\x00\x00", b"", b"\xcf" + b"\xff" * 8, b"\x80", b"\x90")


ODDITIES = {"json": _json_oddities(), "msgpack": _msgpack_oddities(), "toml": ()}
"""Encoded values that a tree of plain values cannot hold: deep ones, lengths that lie, texts that are no text."""


class Mutation:
    """The changes that one record gets; all chance is the given `random`."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self._possible = random.random() < POSSIBLE

    # --- trees -----------------------------------------------------------------------------------------------------

    def encoded(self, tree: Any, form: str, others: Sequence[Any] = ()) -> bytes:
        """A tree (dicts, lists, texts, numbers) with one to three changes, as JSON or msgpack. `others`: trees that parts are grafted from."""
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            tree = self.tree(tree, form, others)
        encode: Encode = msgspec.json.encode if form == "json" else msgspec.msgpack.encode
        try:
            data = encode(tree)
        except (OverflowError, ValueError, RecursionError):  # what the form cannot hold, others cannot send
            data = self.random.choice(ODDITIES[form])
        return data[:LONGEST_TREE] if self._possible or self.random.random() < 0.97 else self.data(data)

    def tree(self, tree: Any, form: str, others: Sequence[Any] = ()) -> Any:
        """The tree with one change, somewhere in it; the given tree stays as it is."""
        path = self._path(tree)
        return _changed(tree, path, lambda value: self._value(value, form, others))

    def attribute(self, event: dict[str, Any]) -> dict[str, Any]:
        """An event with one of its attributes odd or missing: texts, which nobody has checked before they are read as numbers."""
        attributes = dict(event["attributes"])
        if attributes:
            name = self.random.choice(list(attributes))
            attributes[name] = self.text()
            if self.random.random() < 0.2:
                del attributes[name]
        return event | {"attributes": attributes}

    def integer(self) -> int:
        """An odd one, within 64 bits."""
        if self._possible:
            return self.random.choice(POSSIBLE_INTEGERS)
        return self.random.choice(INTEGERS) if self.random.random() < 0.8 else self.random.randint(-(2**63), 2**64 - 1)

    def number(self) -> float:
        """An odd one."""
        if self._possible:
            return self.random.choice(POSSIBLE_FLOATS)
        return self.random.choice(FLOATS) if self.random.random() < 0.8 else self.random.uniform(-1e12, 1e12)

    def text(self) -> str:
        """An odd one."""
        return self.random.choice(TEXTS) if self.random.random() < 0.7 else "".join(chr(self.random.randint(1, 0x2FF)) for _ in range(self.random.randint(1, 20)))

    def _path(self, tree: Any) -> list[Any]:
        """Keys from the root to some value, each as likely as every other; a container less often than what is in it."""
        path: list[Any] = []
        while isinstance(tree, dict | list) and tree and (not path or self.random.random() < 0.9):
            keys = list(tree) if isinstance(tree, dict) else range(len(tree))
            weights = [_size(tree[key]) for key in keys] if len(keys) <= WEIGHED else None
            path.append(self.random.choices(keys, weights)[0])
            tree = tree[path[-1]]
        return path

    def _value(self, value: Any, form: str, others: Sequence[Any]) -> Any:
        kind = self.random.random()
        if self._possible and not isinstance(value, dict | list):
            return self._same_type(value)
        if kind < 0.35:
            return self._same_type(value)
        if kind < 0.55:
            return self._other_type()
        if kind < 0.65 and ODDITIES[form]:
            return msgspec.Raw(self.random.choice(ODDITIES[form]))
        if kind < 0.75 and others:
            other = self.random.choice(others)
            return _at(other, self._path(other))
        return self._container(value)

    def _same_type(self, value: Any) -> Any:
        if isinstance(value, bool):
            return not value
        if isinstance(value, int):
            return self.integer()
        if isinstance(value, float):
            return self.number()
        if isinstance(value, str):
            return self.text() if self.random.random() < 0.7 else value + self.text()
        if isinstance(value, bytes):
            return self.data(value)
        return self._container(value)

    def _other_type(self) -> Any:
        return self.random.choice((self.integer, self.number, self.text, lambda: None, lambda: True, list, dict, lambda: [[]], lambda: {"": 0}, lambda: b"\xff\0"))()

    def _container(self, value: Any) -> Any:
        """Fewer, more, twice, swapped, renamed."""
        if isinstance(value, dict) and value:
            return self._dict(dict(value))
        if isinstance(value, list) and value:
            return self._list(list(value))
        return [value] * self.random.choice(REPEATS) if self.random.random() < 0.3 else self._other_type()

    def _dict(self, value: dict[Any, Any]) -> dict[Any, Any]:
        key, other = self.random.choice(list(value)), self.random.choice(list(value))
        what = self.random.randrange(4)
        if what == 0:
            del value[key]
        elif what == 1:
            value[key], value[other] = value[other], value[key]
        elif what == 2:
            value[self.text()] = value.pop(key)
        else:
            value |= {f"{self.text()[:20]}{number}": value[key] for number in range(self.random.choice(REPEATS) // 10 + 1)}
        return value

    def _list(self, value: list[Any]) -> list[Any]:
        place = self.random.randrange(len(value))
        what = self.random.randrange(4)
        if what == 0:
            del value[place]
        elif what == 1:
            self.random.shuffle(value)
        elif what == 2:
            value = value[:place] + [value[place]] * self.random.choice(REPEATS) + value[place:]
        else:
            value = []
        return value

    # --- bytes -----------------------------------------------------------------------------------------------------

    def data(self, data: bytes, others: Sequence[bytes] = ()) -> bytes:
        """Bytes cut, flipped, overwritten, repeated, or spliced with others."""
        if not data:
            return self.random.randbytes(self.random.randint(1, 30))
        place = self.random.randrange(len(data))
        end = min(len(data), place + self.random.choice((1, 2, 4, 8, 64)))
        what = self.random.randrange(7)
        if what == 0:
            return data[:place]
        if what == 1:
            return data[:place] + bytes([data[place] ^ (1 << self.random.randrange(8))]) + data[place + 1 :]
        if what == 2:
            return data[:place] + self.random.randbytes(end - place) + data[end:]
        if what == 3:
            return data[:place] + data[end:]
        if what == 4:
            return data[:place] + data[place:end] * self.random.choice(REPEATS) + data[end:]
        if what == 5:
            return data[:place] + self.random.choice((b"\0", b"\xff", b"\x7f")) * (end - place) + data[end:]
        other = self.random.choice(others) if others else data
        return data[:place] + other[self.random.randrange(len(other) + 1) :]


def _changed(tree: Any, path: Sequence[Any], change: Callable[[Any], Any]) -> Any:
    """A tree with one value changed; only what lies on the way to it is copied."""
    if not path:
        return change(tree)
    copied = dict(tree) if isinstance(tree, dict) else list(tree)
    copied[path[0]] = _changed(tree[path[0]], path[1:], change)
    return copied


def _size(tree: Any) -> int:
    """How many values it holds, itself among them; of a long list as if it were of its first one."""
    if isinstance(tree, dict):
        return 1 + (sum(map(_size, tree.values())) if len(tree) <= WEIGHED else len(tree))
    if isinstance(tree, list) and tree:
        return 1 + (sum(map(_size, tree)) if len(tree) <= WEIGHED else len(tree) * _size(tree[0]))
    return 1


def _at(tree: Any, path: Sequence[Any]) -> Any:
    for key in path:
        tree = tree[key]
    return tree
