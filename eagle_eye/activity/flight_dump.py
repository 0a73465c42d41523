"""A dump of torch's flight recorder, as a file of one rank or as the JSON that a living worker answers with.

Dump versions 1.1 to 2.10, from torch 2.2 to 2.13; those before 2.0 name a group by the number that the rank gives it. A pickle that holds more than plain containers, numbers and texts is refused, since to
load it would run what it says.
"""

import functools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from eagle_eye.errors import WireError
from eagle_eye.regular_file import read_owned

from .collective_bytes import WIDTHS
from .collective_calls import MOST_DIMENSIONS, Call, CallCollector, CallRing, GroupKey
from .plain_pickle import plain_content
from .repeated_entries import without_repetition

LARGEST = 256 << 20
"""Bytes of a dump; one with stacks of a ring of 20,000 has 60 MB."""
MOST_GROUPS = 4096
LARGEST_WHOLE = (1 << 63) - 1
"""Of the whole numbers that torch writes."""
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
    """Of each group, of those that are over and of those that are not: the first in the ring, and the one with the highest number. The others say nothing more about who waits."""
    recorded: int = 0
    """Entries that could be read, those too that `collectives` leaves out."""
    rings: Mapping[GroupKey, CallRing] = field(default_factory=dict)
    """What it passed to all collectives in the ring, by group."""
    calls: Mapping[int, Call] = field(default_factory=dict)
    """Those that `rings` names."""
    taken_ns: int = 0
    """When its file was written; 0: unknown."""


def read_dump(path: Path) -> FlightDump:
    """A file: pickle or JSON; its rank is the number at the end of its name. Raises WireError, which names file and reason."""
    try:
        data, _ = read_owned(path, LARGEST)
        written_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise WireError(f"{path}: {error.strerror or error}") from error
    rank = _RANK.search(path.stem if path.suffix in (".json", ".pkl", ".pickle") else path.name)
    try:
        content, cut, numbers = _content(data)
        return replace(dump_of(content, int(rank[1]) if rank else -1, cut, numbers), taken_ns=written_ns)
    except WireError as error:
        raise WireError(f"{path}: {error}") from error
    except Exception as error:  # boundary: a file that anybody may have written costs the verdict on its own rank, not on all of them
        raise WireError(f"{path}: no dump of a flight recorder: {type(error).__name__}: {error}") from error


def dump_of(record: object, rank: int = -1, cut: int = 0, numbers: Sequence[list[int]] = ()) -> FlightDump:
    """From what a pickle or JSON holds, without `cut` entries with these `numbers` (`repeated_entries.ShortRing`). Raises WireError for what is no dump; entries that cannot be read are left out."""
    if not isinstance(record, Mapping) or not isinstance(record.get("entries", []), list):
        raise WireError("no dump of a flight recorder: it has no list `entries`")
    groups = dict(filter(None, (_group(name, value) for name, value in list(_mapping(record.get("pg_config")).items())[:MOST_GROUPS])))
    progress = dict(filter(None, (_progress(name, value) for name, value in list(_mapping(record.get("pg_status")).items())[:MOST_GROUPS])))
    collector = CallCollector()
    collectives, recorded = _first_and_newest(record.get("entries", []), collector)
    _add_repeated(collector, record.get("entries", []), numbers)
    return FlightDump(rank, _text(record.get("version")), groups, progress, collectives, recorded + cut, collector.rings(), collector.calls)


def _content(data: bytes) -> tuple[object, int, tuple[list[int], ...]]:
    """What the file holds, how many entries of the ring were left out of it, and the numbers of their collectives."""
    if data[:1] == b"{":
        return _json_content(data), 0, ()
    shorter = without_repetition(data)
    if shorter.cut:
        try:
            return plain_content(shorter.pickle), shorter.cut, shorter.numbers
        except WireError:  # the places that it names are those of the whole
            pass
    return plain_content(data), 0, ()


def _json_content(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError):  # NaN, which torch may write, or a tear, which the standard reader says better
        pass
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise WireError(f"no JSON: {error}") from error


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
        members = _listed(ranks) if isinstance(ranks, str) else tuple(map(_whole, ranks))
    except (TypeError, ValueError, RecursionError):
        members = ()
    return name, GroupConfiguration(name, _text(fields.get("desc")), members)


@functools.lru_cache(maxsize=64)
def _listed(ranks: str) -> tuple[int, ...]:
    """Ranks of a group as torch writes them: all of its ranks write the same, and of a thousand dumps each holds a thousand."""
    return tuple(map(_whole, json.loads(ranks)))


def _progress(name: object, value: object) -> tuple[str, GroupProgress] | None:
    fields = _mapping(value)
    try:
        return _text(name), GroupProgress(_whole(fields["last_enqueued_collective"]), _whole(fields["last_completed_collective"]))
    except (KeyError, TypeError, ValueError):
        return None


_Class = tuple[str, bool, bool]
"""Group, over, peer to peer: of entries."""


def _add_repeated(collector: CallCollector, entries: Iterable[object], numbers: Sequence[list[int]]) -> None:
    """What the entries passed that were left out; nothing of a file that has lists of its own among its entries."""
    lists = [each for each in entries if isinstance(each, list)]
    if len(lists) != len(numbers):
        return
    for (group, operation, *passed), alike in zip(lists, numbers, strict=True):
        name = group[0] if isinstance(group, (list, tuple)) else group
        collector.add(dict(zip(passed[::2], passed[1::2], strict=False)), _text(name), _text(operation), numbers=alike)


def _first_and_newest(entries: Iterable[Any], collector: CallCollector) -> tuple[tuple[Collective, ...], int]:
    """Of each class, in the order of the ring; and how many entries could be read."""
    read = 0
    newest: dict[_Class, tuple[int, int, Any]] = {}
    kept: dict[int, Any] = {}
    for place, entry in enumerate(entries):
        try:
            group, number, over, peer_to_peer = _position(entry)
        except (KeyError, IndexError, TypeError, ValueError):
            continue
        read += 1
        collector.add(entry, group, _text(entry["profiling_name"]), peer_to_peer=peer_to_peer)
        known = newest.get((group, over, peer_to_peer))
        if known is None:
            kept[place] = entry
        if known is None or number > known[0]:
            newest[group, over, peer_to_peer] = number, place, entry
    kept.update((place, entry) for _, place, entry in newest.values())
    return tuple(_collective(kept[place]) for place in sorted(kept)), read


def _position(entry: Any) -> tuple[str, int, bool, bool]:
    """Group, number, over, peer to peer. Raises KeyError, IndexError, TypeError and ValueError for what is no entry."""
    if not isinstance(entry, dict):
        raise TypeError("an entry has fields")
    group = entry["process_group"] if "process_group" in entry else entry.get("pg_id")
    over = bool(entry.get("retired")) or entry.get("state") == "completed"  # gloo's stay "scheduled"
    name = entry["profiling_name"]
    peer_to_peer = bool(entry["is_p2p"]) if "is_p2p" in entry else _operation(name).startswith(("send ", "recv "))
    return _text(group[0] if isinstance(group, (list, tuple)) else group), _whole(entry["collective_seq_id"] if "collective_seq_id" in entry else entry["seq_id"]), over, peer_to_peer


def _operation(name: object) -> str:
    """Without the backend, which stands before it."""
    text = _text(name)
    return text.partition(":")[2] or text


def _collective(entry: Mapping[str, Any]) -> Collective:
    group, number, over, peer_to_peer = _position(entry)
    created, size = _number(entry.get("time_created_ns")), _bytes(entry.get("input_sizes"), entry.get("input_dtypes"))
    return Collective(group, number, _operation(entry["profiling_name"]), over, peer_to_peer, created, size)


def _number(value: object) -> int:
    """0 for what is none."""
    try:
        return _whole(value) if isinstance(value, (int, float)) else 0
    except ValueError:
        return 0


def _whole(value: Any) -> int:
    """Raises TypeError and ValueError for what is no number of 64 bits: infinity, which JSON writes as 1e999 too, or one of hundreds of digits."""
    try:
        number = int(value)
    except OverflowError:  # infinity
        raise ValueError("infinite") from None
    if abs(number) > LARGEST_WHOLE:
        raise ValueError("more than 64 bits")
    return number


def _bytes(sizes: object, types: object) -> int:
    """Of all inputs; 0 where a size or type is unknown."""
    if not isinstance(sizes, (list, tuple)) or not isinstance(types, (list, tuple)) or len(sizes) != len(types):
        return 0
    try:
        total = sum(WIDTHS.get(_text(kind), 0) * math.prod(map(_whole, shape[:MOST_DIMENSIONS])) for shape, kind in zip(sizes, types, strict=True))
    except (TypeError, ValueError, LookupError):
        return 0
    return _number(total)
