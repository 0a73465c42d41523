"""Regions of a tensor: which part of the whole one rank holds, and how parts of two layouts overlap.

A region is a box of elements: where it begins in each dimension, and how long it is there. FSDP2 and DTensor cut along dimension 0, tensor
parallelism along another one; both are boxes.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import product

Extents = tuple[int, ...]
_PLANE = 2
"""Cut in so many dimensions, only neighbours are compared."""
_COMPARED = 1000
"""Regions that are cut in more dimensions are compared, each with each that it reaches, if they are no more than this."""
_MOST_CUT = 8
"""Dimensions in which more regions than that may be cut."""


@dataclass(frozen=True, slots=True)
class Region:
    """Elements `offsets` to `offsets + shape` of a tensor; both have one number per dimension, none for a scalar."""

    offsets: Extents
    shape: Extents

    @property
    def size(self) -> int:
        """In elements."""
        return math.prod(self.shape)

    def overlap(self, other: "Region") -> "Region | None":
        """What both hold, if that is anything."""
        begins = tuple(map(max, self.offsets, other.offsets))
        ends = tuple(map(min, self._ends, other._ends))
        shape = tuple(end - begin for begin, end in zip(begins, ends, strict=True))
        return Region(begins, shape) if all(length > 0 for length in shape) else None

    def within(self, other: "Region") -> Extents:
        """Where this one begins, counted from the beginning of the other one."""
        return tuple(own - theirs for own, theirs in zip(self.offsets, other.offsets, strict=True))

    def span_in(self, other: "Region") -> tuple[int, int]:
        """The first of its elements, and that behind the last, counted as `other`, which holds them all, lies in memory.

        >>> Region((2, 0), (1, 3)).span_in(Region((1, 0), (4, 3)))
        (3, 6)
        """
        first = last = 0
        for begin, length, extent in zip(self.within(other), self.shape, other.shape, strict=True):
            first, last = first * extent + begin, last * extent + begin + length - 1
        return first, last + 1

    @property
    def _ends(self) -> Extents:
        return tuple(offset + length for offset, length in zip(self.offsets, self.shape, strict=True))


def whole(shape: Sequence[int]) -> Region:
    """All of a tensor."""
    return Region((0,) * len(shape), tuple(shape))


def gap(shape: Extents, regions: Sequence[Region]) -> str:
    """Why these regions are not the whole tensor, each element once; '' if they are.

    >>> gap((4,), [Region((0,), (2,)), Region((3,), (1,))])
    '3 of 4 elements are there'
    >>> gap((4,), [Region((0,), (3,)), Region((2,), (1,))])
    'elements from (2,) on are there twice'
    """
    everything = whole(shape)
    for region in regions:
        if region.size and region.overlap(everything) != region:
            return f"elements from {region.offsets} on, {region.shape} of them, lie outside of {shape}"
    held = sum(region.size for region in regions)
    cut = _cut_dimensions(regions)
    if len(cut) > _PLANE and len(regions) > _COMPARED:
        return _gap_of_many(everything, regions, cut, held)
    twice = _twice(regions, cut)
    if twice is not None:
        return f"elements from {twice.offsets} on are there twice"
    return "" if held == everything.size else f"{held} of {everything.size} elements are there"


def joined(regions: Sequence[Region]) -> list[tuple[Region, int, list[int]]]:
    """Regions that lie one behind the other along a dimension as one: it, the dimension, and the numbers of those that make it up, in order.

    >>> joined([Region((2, 0), (1, 4)), Region((0, 0), (2, 4)), Region((8, 0), (1, 4))])
    [(Region(offsets=(0, 0), shape=(3, 4)), 0, [1, 0]), (Region(offsets=(8, 0), shape=(1, 4)), 0, [2])]
    """
    found: list[tuple[Region, int, list[int]]] = []
    for number in sorted(range(len(regions)), key=lambda each: regions[each].offsets):
        region = regions[number]
        for at, (before, along, parts) in enumerate(found):
            dimension = _touch(before, region)
            if dimension is not None and (len(parts) == 1 or dimension == along):
                lengths = (*before.shape[:dimension], before.shape[dimension] + region.shape[dimension], *before.shape[dimension + 1 :])
                found[at] = Region(before.offsets, lengths), dimension, [*parts, number]
                break
        else:
            found.append((region, 0, [number]))
    return found


def _touch(first: Region, second: Region) -> int | None:
    """The dimension in which the second one begins where the first one ends, and in all others they are alike."""
    differ = [at for at, (one, other) in enumerate(zip(first.offsets, second.offsets, strict=True)) if one != other]
    lengths = [at for at, (one, other) in enumerate(zip(first.shape, second.shape, strict=True)) if one != other]
    if len(differ) != 1 or set(lengths) - set(differ) or first.offsets[differ[0]] + first.shape[differ[0]] != second.offsets[differ[0]]:
        return None
    return differ[0]


def _cut_dimensions(regions: Sequence[Region]) -> list[int]:
    """Those in which these regions differ, the one that is cut most first."""
    held = [each for each in regions if each.size]
    spans = [{(each.offsets[at], each.shape[at]) for each in held} for at in range(len(held[0].offsets) if held else 0)]
    return sorted((at for at, each in enumerate(spans) if len(each) > 1), key=lambda at: -len(spans[at]))


def _twice(regions: Sequence[Region], cut: Sequence[int]) -> Region | None:
    """What two of them hold."""
    held = [each for each in regions if each.size]
    if not cut:
        return held[1] if len(held) > 1 else None
    if len(cut) <= _PLANE:
        return _twice_in_plane(held, cut[0], cut[-1])
    along = cut[0]
    reach: list[Region] = []
    for region in sorted(held, key=lambda each: (each.offsets[along], each.offsets)):
        reach = [each for each in reach if each.offsets[along] + each.shape[along] > region.offsets[along]]
        for each in reach:
            if (common := region.overlap(each)) is not None:
                return common
        reach.append(region)
    return None


def _twice_in_plane(held: Sequence[Region], along: int, across: int) -> Region | None:
    """Of regions that differ in these two dimensions at most: in the order of the first one, those that reach as far lie apart in the second one, so that only neighbours are compared."""
    begins: list[int] = []
    reach: list[Region] = []
    ends: list[tuple[int, int]] = []
    for region in sorted(held, key=lambda each: (each.offsets[along], each.offsets)):
        while ends and ends[0][0] <= region.offsets[along]:
            at = bisect_left(begins, heappop(ends)[1])
            del begins[at], reach[at]
        at = bisect_left(begins, region.offsets[across])
        for each in reach[max(0, at - 1) : at + 1]:
            if (common := region.overlap(each)) is not None:
                return common
        begins.insert(at, region.offsets[across])
        reach.insert(at, region)
        heappush(ends, (region.offsets[along] + region.shape[along], region.offsets[across]))
    return None


def _gap_of_many(everything: Region, regions: Sequence[Region], cut: Sequence[int], held: int) -> str:
    """As `gap`, without comparing each with each: regions are the whole, each element once, if and only if their corners, counted up and down in turn, cancel out but for those of the whole."""
    if len(cut) > _MOST_CUT:
        return f"{len(regions)} regions are cut along {len(cut)} dimensions, and no more than {_MOST_CUT} are read"
    if held != everything.size:
        return f"{held} of {everything.size} elements are there"
    corners: Counter[Extents] = Counter()
    for sign, each in ((1, everything), *((-1, region) for region in regions if region.size)):
        for ends in product((0, 1), repeat=len(cut)):
            corner = tuple(each.offsets[at] + end * each.shape[at] for at, end in zip(cut, ends, strict=True))
            corners[corner] += -sign if sum(ends) % 2 else sign
    return "some of its elements are there twice, and others not at all" if any(corners.values()) else ""
