"""Reads pickles of nothing but plain containers, numbers and texts, without running anything and in memory bounded by their size."""

import pickle
import re

from eagle_eye.errors import WireError

_BARE = rb"[" + re.escape(b"(Nae}us])t\x85\x86\x87\x88\x89\x94") + rb"]"
"""Marks, None, lists, dicts, tuples, booleans, MEMOIZE."""
_FIXED = re.compile(
    rb"(?:[Kqh\x80]." + _BARE + rb"*+|" + _BARE + rb"++"  # BININT1, BINPUT, BINGET, PROTO
    rb"|M..|[Jj]....|[G\x95]........|\x8a\x08........)*+",  # BININT2; BININT, LONG_BINGET; BINFLOAT, FRAME; LONG1 of eight bytes, as times have
    re.DOTALL,
)
"""A run of opcodes, each with an argument of a fixed length that may have any value."""
_COUNTED = {ord("X"): 4, 0x8C: 1, 0x8A: 1}
"""BINUNICODE, SHORT_BINUNICODE, LONG1: bytes of the length that stands before the argument."""
_LONG_BINPUT = ord("r")
_STOP = ord(".")


def plain_content(data: bytes) -> object:
    """What the pickle holds. Raises WireError, which says what it asks for or where it is torn.

    It is read without running anything and in memory bounded by its size. The standard reader runs what a pickle names, and makes room for as many
    remembered objects as its highest number says: ten torn bytes of a dump ask for 60 GB. So the opcodes are looked through first, and only what
    consists of harmless ones is loaded.
    """
    _look_through(data)
    try:
        return pickle.loads(data)  # noqa: S301 -- it holds no opcode that names or makes anything
    except Exception as error:  # boundary: torn pickles raise nearly anything
        raise WireError(f"no pickle that can be read: {type(error).__name__}: {error}") from error


def _look_through(data: bytes) -> None:
    if not data:
        raise WireError("it is empty: nothing has been written to it yet, or nothing worth a line")
    place = 0
    while True:
        place = _end_of_run(data, place)
        if place >= len(data):
            raise WireError("neither JSON nor a whole pickle: it ends too soon")
        code = data[place]
        if code == _STOP:
            return
        place = _behind(data, place, code)


def _end_of_run(data: bytes, place: int) -> int:
    found = _FIXED.match(data, place)
    return found.end() if found else place


def _behind(data: bytes, place: int, code: int) -> int:
    """Where the next opcode stands."""
    width = _COUNTED.get(code)
    if width is not None:
        return place + 1 + width + int.from_bytes(data[place + 1 : place + 1 + width], "little")
    if code == _LONG_BINPUT:
        if int.from_bytes(data[place + 1 : place + 5], "little") > len(data):
            raise WireError(f"torn at byte {place}: it remembers more objects than it has bytes")
        return place + 5
    raise WireError(f"neither JSON nor a pickle of plain containers, numbers and texts alone (byte {place} is {code:#04x}): it is not loaded")
