"""Regions of a tensor: which part of the whole one rank holds, and how parts of two layouts overlap.

A region is a box of elements: where it begins in each dimension, and how long it is there. FSDP2 and DTensor cut along dimension 0, tensor
parallelism along another one; both are boxes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Extents = tuple[int, ...]


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
    twice = _twice(regions)
    if twice is not None:
        return f"elements from {twice.offsets} on are there twice"
    held = sum(region.size for region in regions)
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


def _twice(regions: Sequence[Region]) -> Region | None:
    """What two of them hold. Only those that overlap in the dimension that is cut most are compared: whichever that is, a cut along it costs one comparison per region."""
    held = [each for each in regions if each.size]
    along = max(range(len(held[0].offsets)) if held else (), key=lambda dimension: len({each.offsets[dimension] for each in held}), default=None)
    reach: list[Region] = []
    for region in sorted(held, key=lambda each: (each.offsets[along] if along is not None else 0, each.offsets)):
        if along is not None:  # else they are scalars
            reach = [each for each in reach if each.offsets[along] + each.shape[along] > region.offsets[along]]
        for each in reach:
            if (common := region.overlap(each)) is not None:
                return common
        reach.append(region)
    return None
