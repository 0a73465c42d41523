"""What a collector of the agent measures itself counts before what an exporter of the site says of the same entity.

NVML and dcgm-exporter both know a GPU's power; frames hold one number of each metric. Where NVML is silent, as with a driver that hangs, the
exporter's numbers count after RECENT_BATCHES.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from eagle_eye.types import Kind, Reading

SECONDARY = frozenset({"scrape"})
"""Sources whose numbers give way."""
RECENT_BATCHES = 60
"""Batches for which a collector that was heard is taken to go on; as long as its entities stay in frames (LEAVE_TICKS)."""


class ReadingPrecedence:
    """Remembers which metrics the agent's own collectors give, of which entities."""

    def __init__(self) -> None:
        self._batch = 0
        self._own: dict[tuple[str, Kind], tuple[int, Reading]] = {}
        """(source, kind) → batch in which it came, and its newest reading."""

    def observe(self, reading: Reading) -> None:
        """Take in what a collector has returned."""
        if reading.source not in SECONDARY:
            self._own[reading.source, reading.kind] = (self._batch, reading)

    def apply(self, readings: Iterable[Reading]) -> Iterator[Reading]:
        """The readings of one batch, those of exporters without what a collector of ours measures."""
        for reading in readings:
            yield from self._left(reading) if reading.source in SECONDARY else (reading,)

    def next_batch(self) -> None:
        """Forget who was not heard for RECENT_BATCHES."""
        self._batch += 1
        self._own = {key: (batch, reading) for key, (batch, reading) in self._own.items() if self._batch - batch <= RECENT_BATCHES}

    def _left(self, reading: Reading) -> Iterator[Reading]:
        """By the metrics that are left of each entity: a cell that is not told must not stand as NaN over another's."""
        taken: dict[str, set[str]] = {}
        for _, own in self._own.values():
            if own.kind is reading.kind:
                for entity in own.entities:
                    taken.setdefault(entity, set()).update(own.names)
        rows: dict[tuple[str, ...], list[int]] = {}
        for row, entity in enumerate(reading.entities):
            names = tuple(name for name in reading.names if name not in taken.get(entity, ()))
            rows.setdefault(names, []).append(row)
        for names, places in rows.items():
            if names == reading.names and len(places) == len(reading.entities):
                yield reading
            elif names:
                columns = [reading.names.index(name) for name in names]
                entities = tuple(reading.entities[row] for row in places)
                yield Reading(
                    source=reading.source, kind=reading.kind, entities=entities, names=names,
                    matrix=np.ascontiguousarray(reading.matrix[np.ix_(places, columns)]), time=reading.time,
                )  # fmt: skip
