"""A dump of torch's flight recorder, as a file of one rank or as the JSON that a living worker answers with.

Dump versions 1.1 to 2.10, from torch 2.2 to 2.13; those before 2.0 name a group by the number that the rank gives it. A pickle that holds more than plain containers, numbers and texts is refused, since to
load it would run what it says.
"""

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle_eye.errors import WireError
from eagle_eye.regular_file import read_owned

LARGEST = 256 << 20
"""Bytes of a dump; one with stacks of a ring of 20,000 has 60 MB."""
MOST_GROUPS = 4096
_RANK = re.compile(r"(\d{1,7})\Z")


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of the ring."""

    group: str
    """Name of its process group: the same on all ranks of the group."""
    number: int
    """Within the group, from 1: the ranks of a group count alike."""
    operation: str
    """Such as all_reduce, or `send 0->1`."""
    over: bool
    peer_to_peer: bool = False
    created_ns: int = 0
    """Time at which it was enqueued; 0: unknown."""
    bytes: int = 0
    """Of its inputs; 0: unknown."""


@dataclass(frozen=True, slots=True)
class GroupConfiguration:
    """One process group as a rank knows it."""

    name: str
    description: str
    ranks: tuple[int, ...] = ()
    """Global ranks; () = the dump does not say."""


@dataclass(frozen=True, slots=True)
class GroupProgress:
    """How far a rank is in one of its groups, in collectives."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class FlightDump:
    """What one rank tells."""

    rank: int
    """-1: neither the file's name nor the dump says it."""
    version: str
    groups: Mapping[str, GroupConfiguration]
    progress: Mapping[str, GroupProgress]
    """By the number that the rank itself gives its groups, in the order of their making."""
    collectives: tuple[Collective, ...]


def read_dump(path: Path) -> FlightDump:
    """A file: pickle or JSON; its rank is the number at the end of its name. Raises WireError, which names file and reason."""
    try:
        data, _ = read_owned(path, LARGEST)
    except OSError as error:
        raise WireError(f"{path}: {error.strerror or error}") from error
    rank = _RANK.search(path.stem if path.suffix in (".json", ".pkl", ".pickle") else path.name)
    try:
        return dump_of(_content(data), int(rank[1]) if rank else -1)
    except WireError as error:
        raise WireError(f"{path}: {error}") from error


def dump_of(record: object, rank: int = -1) -> FlightDump:
    """From what a pickle or JSON holds. Raises WireError for what is no dump; entries that cannot be read are left out."""
    if not isinstance(record, Mapping) or not isinstance(record.get("entries", []), list):
        raise WireError("no dump of a flight recorder: it has no list `entries`")
    groups = dict(filter(None, (_group(name, value) for name, value in list(_mapping(record.get("pg_config")).items())[:MOST_GROUPS])))
    progress = dict(filter(None, (_progress(name, value) for name, value in list(_mapping(record.get("pg_status")).items())[:MOST_GROUPS])))
    collectives = tuple(filter(None, map(_collective, record.get("entries", []))))
    return FlightDump(rank, _text(record.get("version")), groups, progress, collectives)


def _content(data: bytes) -> object:
    if data[:1] == b"{":
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise WireError(f"no JSON: {error}") from error
    return plain_content(data)


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str:
    """ "" for what is neither text nor number: lists that hold each other many times over would fill the memory as one text."""
    return str(value) if isinstance(value, (str, int)) else ""


def _group(number: object, value: object) -> tuple[str, GroupConfiguration] | None:
    fields: Mapping[Any, Any] = {"name": number, "ranks": value} if isinstance(value, (list, tuple)) else _mapping(value)  # a list before version 2.0
    name = _text(fields.get("name"))
    if not name:
        return None
    try:
        ranks = fields.get("ranks", "[]")
        listed = json.loads(ranks) if isinstance(ranks, str) else ranks
        members = tuple(int(rank) for rank in listed)
    except (TypeError, ValueError, RecursionError):
        members = ()
    return name, GroupConfiguration(name, _text(fields.get("desc")), members)


def _progress(name: object, value: object) -> tuple[str, GroupProgress] | None:
    fields = _mapping(value)
    try:
        return str(name), GroupProgress(int(fields["last_enqueued_collective"]), int(fields["last_completed_collective"]))
    except (KeyError, TypeError, ValueError):
        return None


def _collective(value: object) -> Collective | None:
    fields = _mapping(value)
    try:
        group, operation = fields.get("process_group", fields.get("pg_id")), _text(fields["profiling_name"])
        kind = operation.partition(":")[2] or operation
        return Collective(
            group=_text(group[0] if isinstance(group, (list, tuple)) else group),
            number=int(fields["collective_seq_id"] if "collective_seq_id" in fields else fields["seq_id"]),
            operation=kind,
            over=bool(fields.get("retired")) or fields.get("state") == "completed",  # gloo's stay "scheduled"
            peer_to_peer=bool(fields.get("is_p2p", kind.startswith(("send ", "recv ")))),
            created_ns=int(fields.get("time_created_ns") or 0),
            bytes=_bytes(fields.get("input_sizes"), fields.get("input_dtypes")),
        )
    except (KeyError, IndexError, TypeError, ValueError):
        return None


_WIDTHS = {"Byte": 1, "Char": 1, "Bool": 1, "Half": 2, "BFloat16": 2, "Short": 2, "Float": 4, "Int": 4, "Double": 8, "Long": 8, "Float8_e4m3fn": 1, "Float8_e5m2": 1}


def _bytes(sizes: object, types: object) -> int:
    """Of all inputs; 0 where a size or type is unknown."""
    if not isinstance(sizes, (list, tuple)) or not isinstance(types, (list, tuple)) or len(sizes) != len(types):
        return 0
    total = 0
    for shape, kind in zip(sizes, types, strict=True):
        count = _WIDTHS.get(_text(kind), 0)
        for length in shape:
            count *= int(length)
        total += count
    return total


# --- pickles of nothing but plain containers, numbers and texts

_FIXED = re.compile(
    rb"(?:[" + re.escape(b"(Nae}us])t\x85\x86\x87\x88\x89\x94") + rb"]"  # marks, None, lists, dicts, tuples, booleans, MEMOIZE
    rb"|[Kqh\x80].|M.{2}|[Jj].{4}|[G\x95].{8})*",  # BININT1, BINPUT, BINGET, PROTO; BININT2; BININT, LONG_BINGET; BINFLOAT, FRAME
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
