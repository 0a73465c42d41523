"""What the writers of the history have done so far, and its metrics for /metrics."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionHistoryMetrics:
    """What the history of one partition has done since this process owns it."""

    partition: int
    files: int
    rows: int
    bytes: int
    skipped: int
    """Blocks of an unknown schema, skipped."""
    failures: int
    """Attempts to write that failed, and were made again."""
    behind_s: float
    """How far the newest file was behind the stream when it was written."""


class HistoryMetrics:
    """A source for `Metrics.add`."""

    def __init__(self, look: Callable[[], Iterable[PartitionHistoryMetrics]]) -> None:
        """`look`: one for each partition that is written here now."""
        self._look = look

    def collect(self) -> Iterator[Metric]:
        """Six families."""
        values = sorted(self._look(), key=lambda each: each.partition)
        for name, text, value, counts in _FAMILIES:
            family = (CounterMetricFamily if counts else GaugeMetricFamily)(name, text, labels=["partition"])
            for each in values:
                family.add_metric([str(each.partition)], value(each))
            yield family


_FAMILIES: tuple[tuple[str, str, Callable[[PartitionHistoryMetrics], float], bool], ...] = (
    ("eagle_eye_history_files", "Files of the history that were written.", lambda each: each.files, True),
    ("eagle_eye_history_rows", "Rows of the history that were written.", lambda each: each.rows, True),
    ("eagle_eye_history_bytes", "Bytes of the history that were written.", lambda each: each.bytes, True),
    ("eagle_eye_history_skipped_blocks", "Blocks of an unknown schema, skipped.", lambda each: each.skipped, True),
    ("eagle_eye_history_failures", "Attempts to write that failed, and were made again.", lambda each: each.failures, True),
    ("eagle_eye_history_lag_seconds", "How far the newest file was behind the stream; a window is usual.", lambda each: each.behind_s, False),
)


@dataclass(slots=True)
class WriterCounts:
    """What a writer has done so far."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    """Blocks of an unknown schema, skipped."""

    def __add__(self, other: "WriterCounts") -> "WriterCounts":
        return WriterCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))
