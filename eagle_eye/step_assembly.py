"""Reports of many workers → steps: each step of a job in exactly one frame."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .deduplication import SeenNumbers
from .types import Doubles, Integers, Layout, Step

WAIT_TICKS = 3
"""A step goes into a frame when all workers have reported it, or so many ticks after the first did."""
EPOCHS_KEPT = 16
LOGGED_NAN = "_nan"
"""Ending of the value that is 1 where a worker logged NaN under the name before it: a NaN by itself means "not logged"."""


class _Report(NamedTuple):
    """Some workers' numbers of one step."""

    workers: Integers
    """Their ids."""
    ends: Doubles
    names: tuple[str, ...]
    values: Doubles
    """workers × names."""


class _Roster(NamedTuple):
    """The workers of a layout: eighty thousand names are not to be looked up twice a second."""

    layout: Layout
    workers: tuple[str, ...]
    ids: Integers


class _Pending(NamedTuple):
    """A step that not all have reported."""

    first_tick: int
    reports: list[_Report]


class StepAssembly:
    """Collects what workers report about steps and hands each step out once."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._names: list[str] = []
        self._pending: dict[tuple[int, int], _Pending] = {}
        self._done: dict[int, SeenNumbers] = {}
        self._rosters: dict[int, _Roster] = {}
        """Epoch → its workers."""
        self.late = 0
        """Reports of steps that had already gone into a frame."""

    @property
    def names_known(self) -> int:
        """How many workers have ever reported."""
        return len(self._names)

    def forget(self) -> None:
        """Forget the workers, and the steps that not all of them have reported: numbers of `ids_of` are no longer valid."""
        self._ids.clear()
        self._names.clear()
        self._pending.clear()
        self._rosters.clear()

    def ids_of(self, workers: Sequence[str]) -> Integers:
        """Numbers that stand for these workers in `report`."""
        return np.array([self._id_of(worker) for worker in workers], dtype=np.int64)

    def report(
        self,
        tick: int,
        workers: Integers,
        names: tuple[str, ...],
        numbers: Integers,
        epochs: Integers,
        ends: Doubles,
        values: Doubles,
    ) -> None:
        """Take `blocks` of equal extent in.

        workers: blocks × workers ids; numbers, epochs: blocks × rows; ends: blocks × rows × workers, NaN = the worker
        has not completed the step; values: blocks × rows × workers × names.
        """
        keys = np.stack((epochs.ravel(), numbers.ravel()), axis=1)
        rows = numbers.shape[1]
        for key in dict.fromkeys(map(tuple, keys.tolist())):
            block, row = np.divmod(np.flatnonzero((keys == key).all(axis=1)), rows)
            reported = ~np.isnan(ends[block, row])
            if not reported.any():
                continue
            if key[1] in self._done_of(key[0]):
                self.late += 1
                continue
            pending = self._pending.setdefault(key, _Pending(tick, []))
            pending.reports.append(
                _Report(
                    workers[block][reported], ends[block, row][reported], names, values[block, row][reported]
                )
            )

    def due(self, tick: int, layouts: Mapping[int, Layout]) -> tuple[Step, ...]:
        """The steps that are complete or have waited long enough, in order; they never come again."""
        steps = []
        for key in sorted(self._pending):
            pending = self._pending[key]
            layout = layouts.get(key[0])
            if tick - pending.first_tick < WAIT_TICKS and not self._complete(pending, layout):
                continue
            del self._pending[key]
            self._done_of(key[0]).first_time(key[1])
            step = self._step(key, pending, layout)
            if step is not None:
                steps.append(step)
        return tuple(steps)

    def _id_of(self, worker: str) -> int:
        number = self._ids.get(worker)
        if number is None:
            number = self._ids[worker] = len(self._names)
            self._names.append(worker)
        return number

    def _done_of(self, epoch: int) -> SeenNumbers:
        """What was handed out of an epoch; the oldest epochs are forgotten."""
        done = self._done.get(epoch)
        if done is None:
            done = self._done[epoch] = SeenNumbers()
            while len(self._done) > EPOCHS_KEPT:
                del self._done[min(self._done)]
        return done

    def _complete(self, pending: _Pending, layout: Layout | None) -> bool:
        if layout is None:
            return False
        reported = np.concatenate([report.workers for report in pending.reports])
        ids = self._roster_of(layout).ids
        here = np.zeros(len(self._names), dtype=bool)
        here[reported] = True
        return bool(here[ids].all())

    def _roster_of(self, layout: Layout) -> _Roster:
        known = self._rosters.get(layout.epoch)
        if known is None or known.layout is not layout:
            workers = layout.workers
            known = self._rosters[layout.epoch] = _Roster(layout, workers, self.ids_of(workers))
            while len(self._rosters) > EPOCHS_KEPT:
                del self._rosters[min(self._rosters)]
        return known

    def _step(self, key: tuple[int, int], pending: _Pending, layout: Layout | None) -> Step | None:
        """One row per worker of the epoch's layout; without a layout, of those who reported."""
        if layout is not None:
            _, workers, ids = self._roster_of(layout)
        else:
            ids = np.unique(np.concatenate([report.workers for report in pending.reports]))
            workers = tuple(sorted(self._names[number] for number in ids.tolist()))
            ids = self.ids_of(workers)
        place = np.full(len(self._names), -1, dtype=np.int64)
        place[ids] = np.arange(len(workers))
        values: dict[str, np.ndarray] = {}
        end = -np.inf
        for report in pending.reports:
            rows = place[report.workers]
            known = rows >= 0
            if not known.any():
                continue
            end = max(end, float(report.ends[known].max()))
            for column, name in enumerate(report.names):
                if name not in values:
                    values[name] = np.full(len(workers), np.nan, dtype=np.float32)
                with np.errstate(over="ignore"):
                    values[name][rows[known]] = report.values[known, column]
        if end == -np.inf:
            return None
        return Step(number=key[1], epoch=key[0], workers=workers, end=end, values=values)
