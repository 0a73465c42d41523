"""The series of one endpoint → numbers of our metrics, from look to look.

Exporters look at their devices every 15 to 30 s and repeat what they saw in between. A page that says the same as the one before is taken for such a
repetition: it makes no rate of 0 now and of twice the truth at the next look.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from collectors.node.counter_rates import CounterRates
from eagle_eye.types import Kind

from .exporter_page import SeriesKey
from .exporter_table import ExporterTable, TableRow

REPEATED_S = 60.0
"""A page that has not changed for so long is believed: nothing happens."""
NAME_LENGTH = 200
"""Characters of an entity's name."""
NO_ENTITY, SEVERAL, TOO_LARGE = "of nothing known here", "more than one for an entity", "larger than it can be"

EntityOf = Callable[[Kind, tuple[str, ...]], str]
"""(kind, values of the labels that name an entity) → its name; '' where it is none of this node."""


class Cell(NamedTuple):
    """Where a number belongs."""

    kind: Kind
    entity: str
    name: str


class ScrapedMetrics:
    """Of one endpoint. Holds what counters need: the look before."""

    def __init__(self, table: ExporterTable, entity_of: EntityOf) -> None:
        self._table, self._entity_of = table, entity_of
        self._rates: CounterRates[SeriesKey] = CounterRates()
        self._before: Mapping[SeriesKey, float] = {}
        self._changed = -math.inf

    def update(self, values: Mapping[SeriesKey, float], monotonic: float) -> tuple[dict[Cell, float], Counter[str]]:
        """Numbers in our units, and why series were left out → how many. A counter has none at first, in a repeated page, and when it went back."""
        rates = self._rates_of(values, monotonic)
        cells: dict[Cell, float] = {}
        left_out: Counter[str] = Counter()
        for key, value in values.items():
            labels = dict(key[1])
            for row in self._table.rows_of(key[0]):
                if row.takes(labels):
                    reason = self._put(cells, row, labels, value, rates.get(key, math.nan))
                    left_out.update([reason] if reason else ())
        return cells, left_out

    def _rates_of(self, values: Mapping[SeriesKey, float], monotonic: float) -> dict[SeriesKey, float]:
        if values == self._before and monotonic - self._changed < REPEATED_S:
            return {}
        self._before, self._changed = values, monotonic
        return self._rates.update(values, monotonic)

    def _put(self, cells: dict[Cell, float], row: TableRow, labels: Mapping[str, str], value: float, rate: float) -> str:
        """Returns why it was not taken; '' if it was, or if there is no rate yet."""
        metric = row.metric
        if value > metric.largest:
            return TOO_LARGE
        entity = self._entity_of(row.kind, tuple(labels.get(label, "") for label in metric.entity))
        if not entity or len(entity) > NAME_LENGTH or not entity.isprintable():
            return NO_ENTITY
        number = metric.factor * (rate if metric.type == "counter" else value)
        cell = Cell(row.kind, entity, metric.name)
        if math.isnan(number):
            return ""
        if cell in cells and metric.combine == "one":
            return SEVERAL
        cells[cell] = _combined(cells.get(cell), number, metric.combine)
        return ""


def _combined(before: float | None, number: float, how: str) -> float:
    if before is None:
        return number
    return before + number if how == "sum" else max(before, number)
