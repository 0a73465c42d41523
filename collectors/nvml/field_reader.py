"""Reads all fields of one GPU with one call, and makes metrics of them."""

import logging
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .driver import LOST, NOT_GIVEN, NvmlDriver
from .fields import FieldId, FieldKind, FieldMetric, FieldQuery, FieldScope

log = logging.getLogger(__name__)

LAYOUT = struct.Struct("=IIqqIIQ")
"""c_nvmlFieldValue_t: field, scope, time, latency, type of the value, error, value. Unpacked by hand, since attributes of these structures cost ten times as much."""
UNSIGNED_INT, UNSIGNED_LONG_LONG = 1, 3
FORMATS = {0: "d", 1: "I", 2: "L", 3: "Q", 4: "q", 5: "i", 6: "H"}
"""NVML's type of a value (`NVML_VALUE_TYPE_…`) → how its bytes are read."""
JITTER_PERCENT = 150.0
"""The driver counts time in steps, so that a reason may seem to hold for a little longer than the second; what is beyond this is no share of time."""


class FieldReader:
    """The fields of one GPU: what it does not know is left out of later batches; what changes slowly is repeated from memory."""

    def __init__(self, driver: NvmlDriver, whom: str, metrics: Sequence[FieldMetric], links: Sequence[int]) -> None:
        """`links`: the numbers of its NVLinks; each has a state and counters of its own."""
        self._driver, self._whom = driver, whom
        self._metrics, self._links = metrics, links
        self._counts: dict[FieldQuery, tuple[float, float]] = {}
        self._latest: dict[FieldQuery, float] = {}
        self._told = ""
        self.refused = False
        """The driver refuses the whole batch: nothing is known by fields."""
        self.answered = False
        """The last look gave a number."""
        self.problem: Any = None
        """The NVMLError of the last batch, or of one of its fields, that is no lack of this GPU or driver."""
        self.ask_again()

    def ask_again(self) -> None:
        """Ask for everything once more, also for what the GPU did not know: a link, MIG or the driver has changed."""
        self._sums = [(metric.name, _share(metric), list(_queries(metric, self._links))) for metric in self._metrics]
        self._factors = {
            query: (metric.factor, metric.kind is FieldKind.COUNTER) for metric in self._metrics for query in _queries(metric, self._links)
        }
        slow = {query: None for metric in self._metrics if metric.slow for query in _queries(metric, self._links)}
        self._fast = [query for query in self._factors if query not in slow]
        self._states: list[FieldQuery] = [(FieldId.NVLINK_GET_STATE, link) for link in self._links]
        self._slow = list(slow)
        self._latest = {query: self._latest.get(query, math.nan) for query in (*self._factors, *self._states)}

    def knows(self, name: str) -> bool:
        """Whether a metric is read here: the GPU has at least one of its fields."""
        return not self.refused and any(queries for each, _, queries in self._sums if each == name)

    def read(self, handle: Any, now: float, *, slow: bool) -> None:
        """One batch at the monotonic time `now`, with what changes slowly if asked. Raises NVMLError if the GPU or the driver is gone."""
        queries = [*self._fast, *self._slow, *self._states] if slow else self._fast
        self.answered = False
        if not queries or (self.refused and not slow):
            return
        self.problem = None
        try:
            values = self._driver.call("nvmlDeviceGetFieldValues", self._whom, handle, queries)
        except self._driver.nvml.NVMLError as error:
            if self._driver.ends_the_look(error):
                raise
            self._refuse(error)
            return
        self.refused = False
        unknown = self._take(queries, values, now)
        if unknown:
            self._leave_out(unknown)

    def values(self) -> dict[str, float]:
        """Metric → its value in our unit; NaN for what was not read."""
        found: dict[str, float] = {}
        latest = self._latest
        for name, share, queries in self._sums:
            if not queries or self.refused:
                found.setdefault(name, math.nan)
                continue
            value = sum([latest[query] for query in queries])
            found[name] = _as_share(value) if share else value
        return found

    def link_states(self) -> dict[int, float]:
        """NVLink → `NVML_NVLINK_STATE_…` as it was read last; NaN: the driver did not say."""
        return {link: math.nan if self.refused else self._latest[field, link] for field, link in self._states}

    def worst_link(self) -> float:
        """The NVLink with the most errors since the last look; NaN: none has any."""
        if self.refused:
            return math.nan
        errors: dict[int, float] = {}
        for metric_queries in self._link_queries():
            for query in metric_queries:
                rate = self._latest[query]
                if rate > 0:
                    errors[query[1]] = errors.get(query[1], 0.0) + rate
        return float(max(errors, key=errors.__getitem__)) if errors else math.nan

    def _link_queries(self) -> Iterator[list[FieldQuery]]:
        for metric, (_, _, queries) in zip(self._metrics, self._sums, strict=True):
            if metric.scope is FieldScope.LINK:
                yield queries

    def _take(self, queries: Sequence[FieldQuery], values: Any, now: float) -> Mapping[FieldQuery, int]:
        """Keep the numbers; returns what this GPU does not know, with NVML's error."""
        unknown: dict[FieldQuery, int] = {}
        latest, factors = self._latest, self._factors
        for query, (_, _, _, _, kind, code, raw) in zip(queries, LAYOUT.iter_unpack(values), strict=True):
            if code:
                latest[query] = math.nan
                unknown |= self._failed(query, code)
                continue
            self.answered = True
            factor, counter = factors.get(query, (1.0, False))
            number = (raw if kind == UNSIGNED_LONG_LONG else raw & 0xFFFFFFFF if kind == UNSIGNED_INT else _number(kind, raw)) * factor
            latest[query] = self._rate(query, number, now) if counter else number
        return unknown

    def _rate(self, query: FieldQuery, count: float, now: float) -> float:
        before, at = self._counts.get(query, (math.nan, now))
        self._counts[query] = (count, now)
        return (count - before) / (now - at) if count >= before and now > at else math.nan

    def _failed(self, query: FieldQuery, code: int) -> dict[FieldQuery, int]:
        if self._driver.is_one_of(code, LOST):
            raise self._driver.nvml.NVMLError(code)
        if not self._driver.is_one_of(code, NOT_GIVEN):
            self.problem = self._driver.nvml.NVMLError(code)
            return {}
        return {query: code} if query in self._factors else {}

    def _leave_out(self, unknown: Mapping[FieldQuery, int]) -> None:
        self._fast = [query for query in self._fast if query not in unknown]
        self._slow = [query for query in self._slow if query not in unknown]
        for _, _, queries in self._sums:
            queries[:] = [query for query in queries if query not in unknown]
        names = dict.fromkeys(name for name, _, _ in self._sums)
        self._tell("has no " + ", ".join(name for name in names if not self.knows(name)) + ": this GPU or driver does not give these fields")

    def _refuse(self, error: Exception) -> None:
        self.refused = True
        if not self._driver.is_one_of(error, NOT_GIVEN):
            self.problem = error
        self._tell(f"gives no fields: {error}; asked one by one for power, ECC and PCIe replays instead")

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            log.info("%s %s", self._whom, what)


def _number(kind: int, raw: int) -> float:
    """The less usual types; NaN for one that we do not know."""
    layout = FORMATS.get(kind)
    return math.nan if layout is None else float(struct.unpack_from(f"@{layout}", struct.pack("=Q", raw))[0])


def _queries(metric: FieldMetric, links: Sequence[int]) -> Iterator[FieldQuery]:
    scopes = links if metric.scope is FieldScope.LINK else (0,)
    return ((int(field), scope) for field in metric.fields for scope in scopes)


def _share(metric: FieldMetric) -> bool:
    return metric.name.endswith("_percent")


def _as_share(percent: float) -> float:
    return math.nan if percent > JITTER_PERCENT else min(percent, 100.0)
