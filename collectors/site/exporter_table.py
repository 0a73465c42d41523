"""Which metric of which exporter becomes which metric of ours: a table as data (exporter_metrics.toml), with a site's own rows before it."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Literal

import msgspec

from eagle_eye.types import Kind

from .exporter_page import LARGEST

SHIPPED = "exporter_metrics.toml"
ROWS_MOST = 500
"""Of a site's own."""

_SeriesName = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", max_length=200)]
_MetricName = Annotated[str, msgspec.Meta(pattern=r"^([a-z][a-z0-9_]*)?$", max_length=64)]
_Factor = Annotated[float, msgspec.Meta(gt=0, le=1e15)]


class ExporterMetric(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row."""

    series: _SeriesName
    """Name of the metric in the exporter's page."""
    name: _MetricName
    """Ours, with its unit at the end; '' leaves the series out."""
    kind: Literal["gpu", "link", "mount", "node", "worker"] = "node"
    """What it is of."""
    exporter: str = ""
    """Whose it is; for people."""
    type: Literal["gauge", "counter"] = "gauge"
    """Of a counter its change a second is told."""
    factor: _Factor = 1.0
    """The exporter's unit → ours."""
    entity: tuple[str, ...] = ()
    """Labels that name it: of a GPU its UUID, of a link its device and port, of a mount its mount point, of a worker its rank."""
    where: dict[str, str] = {}
    """Label → regular expression that its whole value has to match."""
    without: tuple[str, ...] = ()
    """Labels that have to be empty, such as that of a part of a GPU."""
    combine: Literal["one", "sum", "max"] = "one"
    """What becomes of several series of one entity; one: the first counts, and the others are told."""
    largest: float = LARGEST
    """A larger number is no reading: what exporters write where they know none."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    metric: tuple[ExporterMetric, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row that is ready to be used."""

    metric: ExporterMetric
    kind: Kind
    where: tuple[tuple[str, re.Pattern[str]], ...]

    def takes(self, labels: Mapping[str, str]) -> bool:
        """Whether a series with these labels is meant."""
        return not any(labels.get(label) for label in self.metric.without) and all(
            pattern.fullmatch(labels.get(label, "")) for label, pattern in self.where
        )


class ExporterTable:
    """The rows of this release, and of a site: these stand for all of ours about the same series."""

    def __init__(self, own: Sequence[ExporterMetric] = ()) -> None:
        """Raises ValueError, naming the row."""
        if len(own) > ROWS_MOST:
            raise ValueError(f"metrics: {len(own)} rows, at most {ROWS_MOST} are read")
        replaced = {metric.series for metric in own}
        rows = [_row(metric) for metric in (*own, *(each for each in shipped_metrics() if each.series not in replaced)) if metric.name]
        self._rows: dict[str, list[TableRow]] = {}
        for row in rows:
            self._rows.setdefault(row.metric.series, []).append(row)
        self.series = frozenset(series.encode() for series in self._rows)
        """Names of all series that a row is about."""
        self.names = {kind: tuple(dict.fromkeys(row.metric.name for row in rows if row.kind is kind)) for kind in Kind}
        """Our metrics of each kind, in the order of the table."""

    def rows_of(self, series: str) -> Sequence[TableRow]:
        """What becomes of a series."""
        return self._rows.get(series, ())


def shipped_metrics() -> tuple[ExporterMetric, ...]:
    """The rows of this release."""
    return msgspec.convert(tomllib.loads((resources.files(__package__) / SHIPPED).read_text()), _File).metric


def _row(metric: ExporterMetric) -> TableRow:
    if metric.kind != "node" and not metric.entity:
        raise ValueError(f"metrics: {metric.series}: entity is missing: the labels that name the {metric.kind}")
    try:
        where = tuple((label, re.compile(pattern)) for label, pattern in metric.where.items())
    except re.error as error:
        raise ValueError(f"metrics: {metric.series}: where: {error}") from error
    return TableRow(metric, Kind(metric.kind), where)
