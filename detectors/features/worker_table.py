"""Where a job's workers are at the last tick: over batches that are late, readings from before a worker went on, and workers that have finished."""

from collections.abc import Mapping

import numpy as np

from eagle_eye.event_attributes import integer_attribute
from eagle_eye.frames import Frame
from eagle_eye.types import Doubles, Event, Integers, Kind

from .worker_positions import (
    AGE,
    COLUMNS,
    MARKS,
    PHASE,
    SEEN,
    STATE,
    WorkerPositions,
    finished_rows,
    row_of,
    row_of_ended,
)


class WorkerTable:
    """A row of COLUMNS for each worker, in one epoch of the job."""

    def __init__(self) -> None:
        self.workers: tuple[str, ...] = ()
        self.rows: Doubles | None = None
        """workers × COLUMNS; None before the first tick of an epoch."""
        self._missed: Integers = np.zeros(0, dtype=np.int64)
        """In so many ticks in succession nothing came of a worker, whose row is that of before."""
        self._resumed: dict[str, float] = {}
        """Worker → time of its `resumed` event; readings from before that are out of date."""
        self._finished: dict[str, Doubles] = {}
        """Worker that has finished → its last row."""
        self._only_read: set[str] = set()
        """Those of them that no event tells of: it may be the last reading of who had their name in the epoch before."""

    def resume(self, event: Event) -> None:
        """Take a `resumed` event."""
        self._resumed[event.entity.name] = event.time

    def stall(self, worker: str) -> None:
        """A `stall` event tells that it stands again."""
        self._resumed.pop(worker, None)
        self._lives(worker)

    def finish(self, event: Event) -> None:
        """Take a `worker.finished` event."""
        self._finished[event.entity.name] = np.array(row_of_ended(event))
        self._only_read.discard(event.entity.name)

    def read(self, frame: Frame, late_ticks: int) -> list[str]:
        """Take the rows of a tick; returns who has finished. `late_ticks`: so long the row of the tick before stays valid where a batch is late."""
        names = frame.entities.get(Kind.WORKER, ())
        columns = frame.metrics.get(Kind.WORKER, {})
        nothing = np.full(len(names), np.nan)
        rows = np.stack([np.asarray(columns.get(name, nothing), dtype=np.float64) for name in COLUMNS], axis=1)
        self.workers = names
        self._keep_late(rows, frame.moved.get(Kind.WORKER), late_ticks)
        self._reset_resumed(rows, frame.time)
        return self._take_finished(rows)

    def moved(self, reports: Mapping[str, Event]) -> list[str]:
        """Whose marks have moved since its `stall` event: it has resumed, also without a `resumed` event."""
        if not reports or self.rows is None:
            return []
        known = [(name, float(row[MARKS])) for name, row in zip(self.workers, self.rows, strict=True) if name in reports]
        return [name for name, marks in known if np.isfinite(marks) and marks > integer_attribute(reports[name], "marks") >= 0]

    def positions(self, workers: tuple[str, ...], reports: Mapping[str, Event], now: float) -> WorkerPositions:
        """Positions of these workers at the last tick, overlaid with newer `stall` events."""
        table = self._rows_of(workers)
        reported = np.array([name in reports for name in workers], dtype=bool)
        late_names = {self.workers[index] for index in np.flatnonzero(self._missed).tolist()}
        late = np.array([name in late_names for name in workers], dtype=bool) & ~reported
        for index in np.flatnonzero(reported).tolist():
            seen_s = table[index, SEEN]  # renewed with each look; the event tells of the first that saw it there
            table[index] = row_of(reports[workers[index]], now)
            table[index, SEEN] = seen_s
        finished = np.array([name in self._finished for name in workers], dtype=bool)
        for index in np.flatnonzero(finished).tolist():
            table[index] = self._finished[workers[index]]
        doing = {name: event.attributes.get("doing", "") for name, event in reports.items()}
        places = {name: place for name, event in reports.items() if (place := event.attributes.get("place", ""))}
        return WorkerPositions(workers, table, reported, late & ~finished, finished, doing, places)

    def _rows_of(self, workers: tuple[str, ...]) -> Doubles:
        table = np.full((len(workers), len(COLUMNS)), np.nan)
        if self.rows is None:
            return table
        if workers == self.workers:
            return self.rows.copy()
        index_of = {name: index for index, name in enumerate(self.workers)}
        for row, name in enumerate(workers):
            if name in index_of:
                table[row] = self.rows[index_of[name]]
        return table

    def _keep_late(self, rows: Doubles, moved: Integers | None, late_ticks: int) -> None:
        before, missed = self.rows, self._missed
        self.rows, self._missed = rows, np.zeros(len(rows), dtype=np.int64)
        silent = np.isnan(rows).all(axis=1)
        if before is None or moved is None or not silent.any():
            return
        late = np.flatnonzero(silent & (moved >= 0))
        late = late[missed[moved[late]] < late_ticks]
        rows[late] = before[moved[late]]
        self._missed[late] = missed[moved[late]] + 1

    def _reset_resumed(self, rows: Doubles, now: float) -> None:
        """A batch from before a `resumed` event still carries the age of the stall: set it to 0."""
        for row, name in enumerate(self.workers):
            if name in self._resumed and now - rows[row, AGE] < self._resumed[name]:
                rows[row, AGE] = 0.0

    def _take_finished(self, rows: Doubles) -> list[str]:
        """A finished worker has no age and no phase; its step and marks show how far the others have to come."""
        for index in np.flatnonzero(np.isfinite(rows[:, STATE])).tolist() if self._only_read else ():
            self._lives(self.workers[index])
        found = np.flatnonzero(finished_rows(rows)).tolist()
        for index in found:
            rows[index, [AGE, PHASE]] = np.nan
            self._only_read |= {self.workers[index]} - self._finished.keys()
            self._finished[self.workers[index]] = rows[index].copy()
        return [self.workers[index] for index in found]

    def _lives(self, worker: str) -> None:
        """Its process is seen: it has not finished, unless an event says so, behind which this was told late."""
        if worker in self._only_read:
            self._only_read.remove(worker)
            del self._finished[worker]
