"""What a rank passed to each collective, as far as it has to be the same on all ranks of the group: a number for each, so that millions are compared at once.

A size is that of all tensors together, in elements: shapes may differ. Of operations to which ranks may pass different sizes (all-to-all, gather, scatter, the -v operations) and of those that are not known
here the operation alone is compared. Messages from one to one are left out, and so are dumps before version 2.0, which count them together with the collectives.
"""

import math
import zlib
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

MOST_DIMENSIONS = 64
"""Of a tensor, in torch; the product of a torn file's million numbers would take hours."""
LONGEST_NAME = 64
MOST_TYPES = 4
LARGEST_NUMBER = (1 << 31) - 1
MOST_ELEMENTS = 1 << 50
"""There is no machine for more, so the size is none."""
COALESCED = "coalesced"
"""torch's name for the end of a batch, most often of messages from one to one, which count up the collectives of those ranks alone that take part."""
_SENT_AND_RECEIVED = frozenset({
    "all_reduce", "allreduce_coalesced", "all_reduce_barrier", "all_gather", "_all_gather_base", "all_gather_single", "all_gather_into_tensor_coalesced",
    "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single", "reduce_scatter_tensor_coalesced",
})  # fmt: skip
_SENT = _SENT_AND_RECEIVED | {"reduce", "_reduce_oop"}
"""Operations to which all ranks pass as many elements."""
_RECEIVED = _SENT_AND_RECEIVED | {"broadcast", "_broadcast_oop"}


class Call(NamedTuple):
    """One collective as a rank called it."""

    operation: str
    sent: int = -1
    """Elements of all inputs; -1: ranks may differ in it, or it is not known."""
    received: int = -1
    """The same of the outputs."""
    types: str = ""
    """Such as BFloat16; "": as `sent`."""

    def __str__(self) -> str:
        counts = [f"{count:,}" for count in (self.sent, self.received) if count >= 0]
        if not counts:
            return self.operation
        return f"{self.operation} of {' into '.join(dict.fromkeys(counts))} {self.types}".rstrip()

    @property
    def number(self) -> int:
        """The same for equal calls in every process; below 2 ** 32."""
        return zlib.crc32(repr(tuple(self)).encode())


def call_of(operation: str, inputs: tuple[object, object], outputs: tuple[object, object]) -> Call:
    """From sizes and types as a flight recorder has them."""
    sent, received = (_elements(inputs[0]) if operation in _SENT else -1), (_elements(outputs[0]) if operation in _RECEIVED else -1)
    types = inputs[1] if sent > 0 else outputs[1] if received > 0 else ()
    named = sorted({str(each)[:LONGEST_NAME] for each in types if isinstance(each, str)}) if isinstance(types, (list, tuple)) else []
    return Call(operation[:LONGEST_NAME], sent, received, "+".join(named[:MOST_TYPES]))


def _elements(sizes: object) -> int:
    if not isinstance(sizes, (list, tuple)):
        return -1
    try:
        count = sum(math.prod(map(int, shape[:MOST_DIMENSIONS])) for shape in sizes)
    except (TypeError, ValueError, OverflowError, LookupError):
        return -1
    return count if 0 <= count <= MOST_ELEMENTS else -1


@dataclass(frozen=True, slots=True)
class CallRing:
    """What a rank's recorder still has of the collectives of one group."""

    keys: "array[int]" = field(default_factory=lambda: array("Q"))
    """Ascending: number of the collective × 2 ** 32 + that of the call, without `batches`."""
    batches: frozenset[int] = frozenset()
    """Numbers that several entries have, which are not compared: operations that were launched as one, of which some may have left the ring; or the group was made anew."""
    countable: bool = True
    """False: its ranks count differently, since they batch messages from one to one."""


GroupKey = tuple[str, str]
"""Group and backend: each backend counts by itself."""


class CallCollector:
    """Takes in the entries of one rank's recorder, in any order."""

    def __init__(self) -> None:
        self._numbers: dict[GroupKey, list[tuple[int, Sequence[int]]]] = {}
        """Group → (call, numbers of the collectives that were called so)."""
        self._single: dict[tuple[GroupKey, int], list[int]] = {}
        self._messages: set[GroupKey] = set()
        self._uncounted: set[GroupKey] = set()
        self.calls: dict[int, Call] = {}

    def add(self, entry: Mapping[str, Any], group: str, name: str, *, peer_to_peer: bool = False, numbers: Sequence[int] = ()) -> None:
        """One entry, whose operation is called `name` as in nccl:all_reduce; `numbers`: of all that are like it, where it stands for many."""
        backend, found, operation = name.partition(":")
        key = (group, backend if found else "")
        if peer_to_peer:
            self._messages.add(key)
            return
        if not numbers and "collective_seq_id" not in entry:
            return
        call = call_of(operation or backend, _side(entry, "input"), _side(entry, "output"))
        if call.operation == COALESCED:
            self._uncounted.add(key)
        self.calls[call.number] = call
        if numbers:
            self._numbers.setdefault(key, []).append((call.number, numbers))
        else:
            self._single.setdefault((key, call.number), []).append(int(entry["collective_seq_id"]))

    def rings(self) -> dict[GroupKey, CallRing]:
        """Of each group that had a collective."""
        for (key, call), numbers in self._single.items():
            self._numbers.setdefault(key, []).append((call, numbers))
        self._single.clear()
        return {key: _ring(parts, countable=key not in self._uncounted & self._messages) for key, parts in self._numbers.items()}


def _side(entry: Mapping[str, Any], side: str) -> tuple[object, object]:
    return entry.get(f"{side}_sizes"), entry.get(f"{side}_dtypes")


def _possible(numbers: Sequence[int]) -> Sequence[int]:
    """Those that a collective can have: a number that is none costs itself alone."""
    if min(numbers) >= 0 and max(numbers) <= LARGEST_NUMBER:
        return numbers
    return [number for number in numbers if 0 <= number <= LARGEST_NUMBER]


def _ring(parts: Sequence[tuple[int, Sequence[int]]], *, countable: bool) -> CallRing:
    valid = [(call, _possible(numbers)) for call, numbers in parts]
    keys = [number << 32 | call for call, numbers in valid for number in numbers]
    batches: frozenset[int] = frozenset()
    if len(set().union(*(numbers for _, numbers in valid))) < len(keys):
        batches = frozenset(number for number, count in Counter(key >> 32 for key in keys).items() if count > 1)
        keys = [key for key in keys if key >> 32 not in batches]
    return CallRing(array("Q", sorted(keys)), batches, countable)
