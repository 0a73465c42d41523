"""Which ranks called a collective otherwise than the others of their group: another operation, size, type or order, or a group of other ranks.

The ranks of a group count its collectives alike, so that what they passed to the same number has to agree. The first number at which it does not is told; what differs
behind it follows from it. More than half of the group decides who is different; without such a majority nobody is named, and both sides are shown.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .collective_calls import Call, CallRing
from .flight_dump import FlightDump

OPERATION, SIZE, TYPE, ORDER, GROUP = "operation", "size", "type", "order", "group"
"""Kinds of mismatch."""
LOOK_AHEAD = 64
"""Collectives after the first difference in which the same calls are looked for in another order."""
SHIFTS = 4
"""Collectives that a rank may have left out, or called in excess, at once."""
CALLS_SHOWN = 3
"""Of an order."""
MASK = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class CallSide:
    """Ranks that called alike."""

    ranks: tuple[int, ...]
    call: str
    """For a person, such as `all_reduce of 1,024 Float`."""


@dataclass(frozen=True, slots=True)
class CallMismatch:
    """Ranks of a group that did not call the same."""

    kind: str
    group: str
    description: str
    number: int
    """Of the collective within the group; 0: the group itself differs."""
    ranks: tuple[int, ...]
    """Who differs from more than half of the group; () = there is no such half, and nobody is named."""
    sides: tuple[CallSide, ...]
    """Where ranks are named: the others', then theirs; else the largest first."""


class CallGroup(NamedTuple):
    """Ranks that have to call alike, those with a recorder."""

    name: str
    description: str
    size: int
    """Of the group, ranks without a recorder among them."""
    rings: Mapping[int, CallRing]
    """By rank."""


def differing_calls(group: CallGroup, calls: Mapping[int, Call]) -> Iterator[CallMismatch]:
    """Of one group. `calls`: by their numbers."""
    if not all(ring.countable for ring in group.rings.values()):
        return
    batches = frozenset[int]().union(*(ring.batches for ring in group.rings.values()))
    rings = {rank: ring for rank, ring in group.rings.items() if ring.keys}
    while (found := _first_difference(rings, batches)) is not None:
        number, sides = found
        usual, *odd = sorted(sides.items(), key=lambda side: (-len(side[1]), side[1]))
        decided = 2 * len(usual[1]) > group.size
        for other in odd if decided else odd[:1]:
            ours, theirs = _following(rings, usual[1], number), _following(rings, other[1], number)
            kind = _kind(ours, theirs, calls)
            shown = [(usual[1], ours), (other[1], theirs)] if decided else [(ranks, _following(rings, ranks, number)) for _, ranks in (usual, *odd)]
            told = tuple(CallSide(ranks, _words(sequence, calls, ordered=kind == ORDER)) for ranks, sequence in shown)
            yield CallMismatch(kind, group.name, group.description, number, other[1] if decided else (), told)
        if not decided:
            return
        for _, ranks in odd:
            for rank in ranks:
                del rings[rank]


def _first_difference(rings: Mapping[int, CallRing], batches: frozenset[int]) -> tuple[int, dict[int, tuple[int, ...]]] | None:
    """The first number, `batches` aside, to which ranks passed different calls: call → ranks. None where all agree."""
    keys: set[int] = set().union(*(ring.keys for ring in rings.values()))
    numbers = Counter(key >> 32 for key in keys)
    if len(keys) == len(numbers):
        return None
    number = min((number for number, count in numbers.items() if count > 1 and number not in batches), default=None)
    return (number, _sides(rings, number)) if number is not None else None


def _sides(rings: Mapping[int, CallRing], number: int) -> dict[int, tuple[int, ...]]:
    """Call → ranks."""
    found: dict[int, list[int]] = {}
    for rank, ring in rings.items():
        if (place := _place(ring, number)) is not None:
            found.setdefault(ring.keys[place] & MASK, []).append(rank)
    return {call: tuple(sorted(ranks)) for call, ranks in found.items()}


def _place(ring: CallRing, number: int) -> int | None:
    place = bisect_left(ring.keys, number << 32)
    return place if place < len(ring.keys) and ring.keys[place] >> 32 == number else None


def _following(rings: Mapping[int, CallRing], ranks: Sequence[int], number: int) -> list[int]:
    """Calls from that number on, of the one of the ranks that has come furthest."""
    furthest = max((rings[rank] for rank in ranks), key=lambda ring: ring.keys[-1])
    place = bisect_left(furthest.keys, number << 32)
    return [key & MASK for key in furthest.keys[place : place + LOOK_AHEAD]]


def _kind(usual: Sequence[int], other: Sequence[int], calls: Mapping[int, Call]) -> str:
    if _in_another_order(usual, other):
        return ORDER
    expected, called = calls.get(usual[0]), calls.get(other[0])
    if expected is None or called is None or expected.operation != called.operation:
        return OPERATION
    return SIZE if (expected.sent, expected.received) != (called.sent, called.received) else TYPE


def _in_another_order(usual: Sequence[int], other: Sequence[int]) -> bool:
    """The same calls, swapped, or moved on by some that one side has and the other has not."""
    common = min(len(usual), len(other))
    if common > 1 and list(usual[1:common]) == list(other[1:common]):  # one call differs, and nothing behind it
        return False
    left: Counter[int] = Counter()
    for ours, theirs in zip(usual, other, strict=False):
        left[ours] += 1
        left[theirs] -= 1
        if not any(left.values()):
            return True
    return _moved_on(usual, other) or _moved_on(other, usual)


def _moved_on(one: Sequence[int], another: Sequence[int]) -> bool:
    """`another` has all that is known of `one`, a few collectives later. One call alone is no order, but for the next one."""
    for shift in range(1, SHIFTS + 1):
        pairs = list(zip(one, another[shift:], strict=False))
        if pairs and all(ours == theirs for ours, theirs in pairs) and (len(pairs) > 1 or (shift == len(one) == 1)):
            return True
    return False


def _words(sequence: Sequence[int], calls: Mapping[int, Call], *, ordered: bool) -> str:
    shown = sequence[:CALLS_SHOWN] if ordered else sequence[:1]
    return ", then ".join(str(calls[each]) if each in calls else "several operations at once" for each in shown)


def differing_groups(dumps: Mapping[int, FlightDump]) -> Iterator[CallMismatch]:
    """Groups that have one name and share ranks, and do not have the same ranks, where somebody waits in one of them.

    The same name for groups that share no rank is ordinary: each part of a split has it.
    """
    known: dict[str, dict[tuple[int, ...], list[int]]] = {}
    for rank, dump in dumps.items():
        for name, group in dump.groups.items():
            if rank in group.ranks:
                known.setdefault(name, {}).setdefault(group.ranks, []).append(rank)
    for name, variants in known.items():
        claimed = {rank for ranks in variants.values() for rank in ranks}
        if len(variants) > 1 and any(claimed & set(one) & set(other) for one in variants for other in variants if one != other) and _pending(dumps, claimed, name):
            yield _other_group(name, dumps, variants)


def _pending(dumps: Mapping[int, FlightDump], ranks: Iterable[int], name: str) -> bool:
    return any(each.group == name and not each.over for rank in ranks for each in dumps[rank].collectives)


def _other_group(name: str, dumps: Mapping[int, FlightDump], variants: Mapping[tuple[int, ...], Sequence[int]]) -> CallMismatch:
    usual, *odd = sorted(variants.items(), key=lambda variant: (-len(variant[1]), variant[0]))
    together = {rank for ranks in variants for rank in ranks}
    decided = 2 * len(usual[1]) > len(together)
    ranks = tuple(sorted(rank for members, claimants in odd for rank in claimants if set(members) & set(usual[0]))) if decided else ()
    sides = tuple(CallSide(tuple(sorted(claimants)), f"ranks {', '.join(map(str, members))}") for members, claimants in (usual, *odd))
    return CallMismatch(GROUP, name, dumps[usual[1][0]].groups[name].description, 0, ranks, sides)
