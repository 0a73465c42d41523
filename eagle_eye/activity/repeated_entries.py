"""Cuts from a pickled flight recorder, before it is loaded, the entries that say nothing more about who waits for whom.

torch writes each text of a dump once, and a reference to it from then on. So the entries of a ring after the first are the same keys with numbers and references, and a regular
expression that is made from the first one reads them in a fraction of the time that it takes to build them. Kept are, of the entries of each group in each state, the first and the one
with the highest number, and whatever is written in another way, such as an entry with a new text. Nothing that is cut out is remembered, so that nothing refers to it; what is left
is a pickle, with whose content the reader has to be as careful as with the whole.

What the entries that are cut out passed to their collectives is left once for each group, operation, size and type, as a list among the entries, and the numbers of those collectives are told beside it.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

CAPTURED = ("process_group", "collective_seq_id", "profiling_name", "input_sizes", "state", "retired", "is_p2p")
"""Keys whose values tell entries apart, in torch's order; what is captured at input_sizes goes on to the end of `PASSED`."""
PASSED = ("input_sizes", "input_dtypes", "output_sizes", "output_dtypes")
BLOCK = 1 << 20
"""Bytes that are looked through at once: of a file of nothing but opening braces each byte becomes an object."""
MOST_OPERATIONS = 100_000
"""Of the first entry, which may have a stack of a thousand frames."""

MOST_KEYS = 64
"""Of an entry: torch writes some twenty, and each is a part of the expression."""

_ENTRIES = re.compile(rb"X\x07\x00\x00\x00entries(?:q.|r....)\]\((?=\}\()", re.DOTALL)
_LENGTHS = dict.fromkeys(b"(]}eutN\x86\x88\x89", 1) | dict.fromkeys(b"Kqh", 2) | {ord("M"): 3} | dict.fromkeys(b"Jjr", 5) | {ord("G"): 9}
_REFERENCE = rb"(?:h.|j....)"
_NUMBER = rb"(?:J....|M..|K.|\x8a\x08........|N)"
_ITEMS = rb"(?:[hK].|M..|[jJ]....)*+"
_VALUES = {
    **dict.fromkeys(b"KMJN\x8a", _NUMBER),
    **dict.fromkeys(b"\x88\x89", rb"[\x88\x89]"),
    **dict.fromkeys(b"Xhj", rb"(?:h.|j....|N)"),
    ord("G"): rb"(?:G........|N)",
    ord("]"): rb"\]\((?:h.|j....|\]\(" + _ITEMS + rb"e|\}\(" + _ITEMS + rb"u)*+e",  # of types, of shapes, of frames
    0x86: _REFERENCE + _REFERENCE + rb"\x86",
}
"""What may stand in the place of a value, by the last opcode of the value that the first entry has there. TUPLE2, NEWTRUE, NEWFALSE and LONG1 have no letter."""
_TRUE = b"\x88"
_COUNT = rb"(?:J...[\x00-\x7f]|M..|K.)"
_OTHER = rb"\}?+[^}]++|\}"
"""Up to where an entry may begin."""


class _Object(NamedTuple):
    """What an operation at the level of an entry's keys and values leaves on the stack."""

    code: int
    written: bytes
    text: str = ""
    number: int = -1
    """By which it is remembered; -1: it is not."""


class ShortRing(NamedTuple):
    """A pickle with fewer entries."""

    pickle: bytes
    cut: int
    """Entries that were cut out."""
    numbers: tuple[list[int], ...] = ()
    """Of the collectives of those entries, for each list among the entries that are left, in their order. Such a list holds group and operation, then keys and values of `PASSED` in turn."""


@dataclass(slots=True)
class _Alike:
    """Entries of one group that passed the same to the same operation, and are in the same state."""

    first_place: int
    first: bytes
    place: int
    """Of the one with the highest number."""
    entry: bytes
    number: int
    numbers: list[int]
    """Of all of them."""


def without_repetition(data: bytes) -> ShortRing:
    """The pickle without such entries; itself where no entry is written as by torch 2.5 and later."""
    begin = _ENTRIES.search(data)
    first = _first_entry(data, begin.end()) if begin else None
    pattern = _pattern(first[0]) if first else None
    if first is None or pattern is None:
        return ShortRing(data, 0)
    parts = {-1: data[: first[1]]}
    known: dict[tuple[bytes, ...], _Alike] = {}
    read = 0
    for place, (entry, group, written, operation, passed, state, retired, p2p, other) in enumerate(_pieces(pattern, data, first[1])):
        if other:
            parts[place] = other
            continue
        read += 1
        number = int.from_bytes(written[1:], "little")
        alike = known.get(key := (group, operation, passed, state, retired, p2p))
        if alike is None:
            known[key] = _Alike(place, entry, place, entry, number, [number])
            continue
        alike.numbers.append(number)
        if number > alike.number:
            alike.number, alike.place, alike.entry = number, place, entry
    parts |= (kept := _first_and_newest(known))
    lists = sorted((alike.first_place, b"](" + b"".join(key[:3]) + b"e", alike.numbers) for key, alike in known.items() if alike.numbers and key[-1] != _TRUE)
    for place, text, _ in lists:  # whatever it refers to stands before
        parts[place] = parts.get(place, b"") + text
    return ShortRing(b"".join(text for _, text in sorted(parts.items())), read - len(kept), tuple(numbers for *_, numbers in lists))


def _first_and_newest(known: Mapping[tuple[bytes, ...], _Alike]) -> dict[int, bytes]:
    """Place → entry, of each group in each state; their numbers are taken out of those of the entries that are cut out."""
    classes: dict[tuple[bytes, ...], list[_Alike]] = {}
    for (group, _, _, *state), alike in known.items():
        classes.setdefault((group, *state), []).append(alike)
    kept: dict[int, bytes] = {}
    for members in classes.values():
        first, newest = min(members, key=lambda alike: alike.first_place), max(members, key=lambda alike: (alike.number, -alike.place))
        kept[first.first_place] = first.first
        first.numbers.pop(0)
        if newest.place != first.first_place:
            kept[newest.place] = newest.entry
            newest.numbers.remove(newest.number)
    return kept


def _pieces(pattern: re.Pattern[bytes], data: bytes, begin: int) -> Iterator[tuple[bytes, ...]]:
    """All of the data from there on: entries with their CAPTURED values, and whatever stands between them. One that a block cuts in two is in between."""
    for place in range(begin, len(data), BLOCK):
        yield from pattern.findall(data, place, place + BLOCK)


def _pattern(objects: list[_Object]) -> re.Pattern[bytes] | None:
    """Of an entry with the same keys, of which a fraction, as `duration_ms` is, may be absent; or of what is none."""
    if len(objects) > 2 * MOST_KEYS:
        return None
    keys = [key.text for key in objects[::2]]
    if tuple(key for key in keys if key in CAPTURED) != CAPTURED or tuple(key for key in keys if key in PASSED) != PASSED:
        return None
    if keys[keys.index(PASSED[0]) :][: len(PASSED)] != list(PASSED):
        return None
    pattern = []
    for key, value in zip(objects[::2], objects[1::2], strict=False):
        written, allowed = _referred(key), _VALUES.get(value.code)
        if written is None or allowed is None:
            return None
        if key.text in PASSED:
            pattern.append((b"(" if key.text == PASSED[0] else b"") + written + allowed + (b")" if key.text == PASSED[-1] else b""))
        elif key.text in CAPTURED:
            pattern.append(written + b"(" + (_COUNT if key.text == "collective_seq_id" else allowed) + b")")
        else:
            pattern.append(b"(?:" + written + allowed + b")?+" if value.code == ord("G") else written + allowed)
    return re.compile(rb"(\}\(" + b"".join(pattern) + rb"u)|(" + _OTHER + rb")", re.DOTALL)


def _referred(key: _Object) -> bytes | None:
    """How entries after the first write this key."""
    if key.code == ord("X") and key.number >= 0:
        return re.escape(b"h" + bytes([key.number]) if key.number < 256 else b"j" + key.number.to_bytes(4, "little"))
    return re.escape(key.written) if key.code in b"hj" else None


def _first_entry(data: bytes, place: int) -> tuple[list[_Object], int] | None:
    """Its keys and values in turn, and where it ends; None where it is torn or written in another way."""
    objects: list[_Object] = []
    depth = 0
    for code, end in _operations(data, place):
        if code == ord("("):
            depth += 1
        elif code in b"eut":
            depth -= 1
            if depth <= 0:
                return objects, end
        elif depth == 1:
            _put(objects, code, data[place:end])
        place = end
    return None


def _put(objects: list[_Object], code: int, written: bytes) -> None:
    if code in b"qr":
        objects[-1:] = [each._replace(number=int.from_bytes(written[1:], "little")) for each in objects[-1:]]
    elif code == 0x86:
        objects[-2:] = [_Object(code, written)]
    else:
        objects.append(_Object(code, written, written[5:].decode(errors="replace") if code == ord("X") else ""))


def _operations(data: bytes, place: int) -> Iterator[tuple[int, int]]:
    """Opcodes and where each ends with its argument, up to one that no entry of torch's has."""
    for _ in range(MOST_OPERATIONS):
        code = data[place] if place < len(data) else 0
        if code == ord("X"):
            length: int | None = 5 + int.from_bytes(data[place + 1 : place + 5], "little")
        elif code == 0x8A:
            length = 2 + int.from_bytes(data[place + 1 : place + 2], "little")
        else:
            length = _LENGTHS.get(code)
        if length is None or place + length > len(data):
            return
        place += length
        yield code, place
