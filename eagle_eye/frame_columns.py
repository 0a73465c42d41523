"""Which entity is which column of a frame, and the numbers of one tick. One `Columns` per job and kind."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .types import Floats, Integers

_Array = TypeVar("_Array", bound=NDArray[Any])

LEAVE_TICKS = 60
"""An entity (or a metric's name) without a row for so many ticks leaves the frames."""


class Rows(NamedTuple):
    """All rows that came under one schema in one tick."""

    names: tuple[str, ...]
    columns: Integers
    """Column of each row; where one stands twice, the later row counts."""
    values: Floats
    """rows × names."""


class Columns:
    """The entities of one kind: they join with their first row and leave after LEAVE_TICKS without one."""

    def __init__(self) -> None:
        self.entities: tuple[str, ...] = ()
        self._index: dict[str, int] = {}
        self._seen = np.empty(0, dtype=np.int64)
        """Column → tick of its newest row."""
        self._origin = np.empty(0, dtype=np.int64)
        """Column → its column in the tick frame before, −1 = joined since."""
        self._names: dict[str, int] = {}
        """Metric name → tick of its newest block."""
        self._placed = 0

    def leave(self, tick: int) -> bool:
        """Let the silent leave; True if so, and columns given out by `place` are no longer valid."""
        self._names = {name: newest for name, newest in self._names.items() if newest >= tick - LEAVE_TICKS}
        kept = np.flatnonzero(self._seen >= tick - LEAVE_TICKS)
        if len(kept) == len(self._seen):
            return False
        self.entities = tuple(self.entities[column] for column in kept.tolist())
        self._index = {name: column for column, name in enumerate(self.entities)}
        self._seen = self._seen[kept]
        self._origin = self._origin[kept]
        return True

    def place(self, entities: Sequence[str], tick: int) -> Integers:
        """Columns of these entities; unknown ones join."""
        index = self._index
        for name in entities:
            if name not in index:
                index[name] = len(index)
        self._placed = tick
        return np.array([index[name] for name in entities], dtype=np.int64)

    def settle(self) -> None:
        """Take those that joined into the columns, all at once; to be called after the last `place` of a tick."""
        joined = len(self._index) - len(self.entities)
        if joined:
            self.entities = tuple(self._index)
            self._seen = np.concatenate([self._seen, np.full(joined, self._placed, dtype=np.int64)])
            self._origin = np.concatenate([self._origin, np.full(joined, -1, dtype=np.int64)])

    def moved(self) -> Integers:
        """Column → its column in the tick frame before, −1 = new. To be asked once a tick."""
        moved = _frozen(self._origin)
        self._origin = np.arange(len(moved), dtype=np.int64)
        return moved

    def metrics(self, tick: int, groups: Iterable[Rows]) -> dict[str, Floats]:
        """name → float32 over the entities; NaN without a row, later groups over earlier ones."""
        count = len(self.entities)
        result: dict[str, Floats] = {}
        for rows in groups:
            self._seen[rows.columns] = tick
            self._names.update(dict.fromkeys(rows.names, tick))
            matrix = np.full((count, len(rows.names)), np.nan, dtype=np.float32)
            matrix[rows.columns] = rows.values
            by_name = _frozen(np.ascontiguousarray(matrix.T))
            for name, values in zip(rows.names, by_name, strict=True):
                result[name] = values if name not in result else _over(result[name], values, rows.columns)
        silent = [name for name in self._names if name not in result]
        if silent:
            result.update(dict.fromkeys(silent, _frozen(np.full(count, np.nan, dtype=np.float32))))
        return result


def _over(before: Floats, after: Floats, columns: Integers) -> Floats:
    """Two schemas share a name: the rows of the later one win."""
    merged = before.copy()
    merged[columns] = after[columns]
    return _frozen(merged)


def _frozen(array: _Array) -> _Array:
    """Arrays are never changed after they were made, and this one cannot."""
    array.flags.writeable = False
    return array
