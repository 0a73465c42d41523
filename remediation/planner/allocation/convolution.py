"""Max-plus convolution in whole numbers: the one operation that the dynamic program is made of.

Gains become whole-number keys, with the workers moved in the lowest digits: adding keys is exact and in any order the
same, so prefix and suffix tables give what a solution from scratch gives, and of two allocations worth the same the one that
moves fewer workers has the larger key.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

Keys = NDArray[np.int64]
UNREACHABLE = -(2**62)
"""Less than any sum of keys; two of them never meet in one sum."""
KEY_BITS = 60
"""Every sum of keys stays below 2**60, so UNREACHABLE plus any sum stays within 64 bits."""
TILE_ROWS, TILE_COLUMNS = 96, 4096
"""The tile of the dense sum, three megabytes at most; long rows are worth more than a tile that fits a small cache."""
SPARSE_BELOW = 2
"""With fewer than one count in so many worth trying, a row for each of them beats the dense tile."""
GATHER_ENTRIES = 2**16
"""Entries of such rows at a time."""


@dataclass(frozen=True, slots=True)
class KeyScale:
    """How gains become keys: a quantum of some 2**-44 of the most that an allocation can be worth, times the room for the moves."""

    exponent: int
    move_bits: int

    @classmethod
    def of(cls, gains: NDArray[np.float64], most_moved: int) -> "KeyScale":
        """For sums of one gain from each row (rows: tasks, columns: units), of allocations that move at most so many workers.

        An allocation of n units is worth no more than its tasks with none, and n times the most that a unit brings anywhere.
        """
        units = gains.shape[1] - 1
        finite = np.isfinite(gains)
        waiting = float(np.where(finite, -gains, 0.0).max(axis=1, initial=0.0).sum() + np.abs(gains[:, 0]).sum())
        per_unit = (gains[:, 1:] - gains[:, :1]) / np.arange(1, units + 1)
        largest = waiting + units * float(per_unit.max(initial=0.0))
        return cls(KEY_BITS - 1 - most_moved.bit_length() - (math.frexp(largest)[1] if largest else 0), most_moved.bit_length())

    def keys(self, gains: NDArray[np.float64], moves: NDArray[np.int64]) -> Keys:
        """One key for each gain: the gain first, then fewer moves. UNREACHABLE where the gain is minus infinity."""
        finite = np.isfinite(gains)
        quanta = np.rint(np.ldexp(np.where(finite, gains, 0.0), self.exponent)).astype(np.int64)
        keys: Keys = np.where(finite, (quanta << self.move_bits) - moves, UNREACHABLE)
        return keys


@dataclass(frozen=True, slots=True)
class CandidateCounts:
    """The counts of one task that can be part of a best allocation, rising in count and in key."""

    counts: NDArray[np.intp]
    keys: Keys

    @classmethod
    def of(cls, row: Keys) -> "CandidateCounts":
        """Without the counts that a smaller one equals: idle workers are allowed, so the smaller one is as good."""
        best = np.maximum.accumulate(row)
        rises = np.empty(len(row), dtype=np.bool_)
        rises[0] = True
        np.greater(row[1:], best[:-1], out=rises[1:])
        counts = np.flatnonzero(rises)
        return cls(counts, row[counts])


def combine(before: Keys, choices: CandidateCounts) -> Keys:
    """out[j] = max over counts k <= j of before[j - k] + key(k); `before` does not fall, and count 0 is a choice."""
    last = int(choices.counts[-1])
    if len(choices.counts) * SPARSE_BELOW <= last + 1:
        return _gathered(before, choices)
    row = np.full(last + 1, UNREACHABLE, dtype=np.int64)
    row[last - choices.counts] = choices.keys
    return _in_tiles(before, row)


def _gathered(before: Keys, choices: CandidateCounts) -> Keys:
    """A row per count, each the table shifted by the count, a few rows at a time."""
    size, last = len(before), int(choices.counts[-1])
    padded = np.concatenate([np.full(last, UNREACHABLE // 2, dtype=np.int64), before])
    step = padded.strides[0]
    shifted = as_strided(padded, (last + 1, size), (step, step), writeable=False)
    out: Keys = before + choices.keys[0]
    rows = max(4, GATHER_ENTRIES // size)
    for start in range(1, len(choices.counts), rows):
        counts = choices.counts[start : start + rows]
        least = int(counts[0])
        tile = shifted[last - counts, least:]
        tile += choices.keys[start : start + rows, None]
        np.maximum(out[least:], tile.max(axis=0), out=out[least:])
    return out


def _in_tiles(before: Keys, falling: Keys) -> Keys:
    """`falling` holds the keys from the last count down to 0, so that sums run along contiguous memory on both sides."""
    size, last = len(before), len(falling) - 1
    padded = np.concatenate([np.full(last, UNREACHABLE // 2, dtype=np.int64), before])
    step = padded.strides[0]
    out = np.empty(size, dtype=np.int64)
    room = np.empty(TILE_ROWS * min(TILE_COLUMNS, last + 1), dtype=np.int64)
    for start in range(0, size, TILE_ROWS):
        rows = min(TILE_ROWS, size - start)
        best = out[start : start + rows]
        first = max(0, last - (start + rows - 1))
        for column in range(first, last + 1, TILE_COLUMNS):
            columns = min(TILE_COLUMNS, last + 1 - column)
            window = as_strided(padded[start + column :], (rows, columns), (step, step), writeable=False)
            tile = np.add(window, falling[column : column + columns], out=room[: rows * columns].reshape(rows, columns))
            if column == first:
                tile.max(axis=1, out=best)
            else:
                np.maximum(best, tile.max(axis=1), out=best)
    return out


def combine_at(before: Keys, choices: CandidateCounts, units: int) -> int:
    """One entry of `combine`: out[units]."""
    within = int(np.searchsorted(choices.counts, units, side="right"))
    return int((before[units - choices.counts[:within]] + choices.keys[:within]).max())


def chosen_counts(before: Keys, choices: CandidateCounts, units: NDArray[np.intp]) -> NDArray[np.intp]:
    """For each entry of `units`, the smallest count that reaches `combine`'s result there."""
    left = units[:, None] - choices.counts[None, :]
    sums = before[np.maximum(left, 0)] + choices.keys[None, :]
    sums[left < 0] = UNREACHABLE * 2 + 1
    picked: NDArray[np.intp] = choices.counts[sums.argmax(axis=1)]
    return picked
