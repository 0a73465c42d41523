"""The page of an exporter in Prometheus' text format → the numbers that somebody wants.

prometheus-client parses lines, and only those whose name is wanted: it takes 80 µs a line, and finding out that a line is not wanted 1 µs. A line that
cannot be read costs itself alone, and is counted.
"""

import math
import re
from collections import Counter
from dataclasses import dataclass, field

LINE_BYTES = 4096
"""A longer line is left out unread; those of exporters have some hundreds."""
WANTED_BYTES = 1 << 20
"""Of all lines of a page with wanted names: the parser takes up to 1 µs a byte, so that no page costs more than a second."""
_LINE = re.compile(rb"[^\n]++")
STALE_S = 300.0
"""A number whose own time is older is none any more (Prometheus looks back as far)."""
LARGEST = 1e30
"""Beyond it float32, in which readings travel, has no room for what is made of a number."""

TORN, ENCODING, DUPLICATE, STALE, TOO_MANY, NO_NUMBER = "torn or malformed", "no UTF-8", "twice in the page", "too old", "beyond the limit", "no number"

SeriesKey = tuple[str, tuple[tuple[str, str], ...]]
"""Name and labels, sorted."""


@dataclass(frozen=True, slots=True)
class PageSamples:
    """What a page held of the series that are wanted."""

    values: dict[SeriesKey, float]
    left_out: Counter[str] = field(default_factory=Counter)
    """Why lines with a wanted name were left out → how many."""


class _LineError(ValueError):
    """The message is one of the reasons above."""


def read_page(body: bytes, wanted: frozenset[bytes], most: int, now: float) -> PageSamples:
    """The finite numbers of the first `most` lines with wanted names; `now` is wall time. Raises nothing.

    The format wants a line feed after each line: a last line without one may be half a number.
    """
    page = PageSamples({})
    count = size = 0
    for found in _LINE.finditer(body):  # one by one: of a page of nothing but line feeds a list would take twenty times its size
        line = found[0]
        if not _is_wanted(line, wanted):
            continue
        if found.end() == len(body):
            page.left_out[TORN] += 1
            break
        count, size = count + 1, size + len(line)
        if count > most or size > WANTED_BYTES:
            page.left_out[TOO_MANY] += 1
            continue
        try:
            key, value = _sample_of(line, now)
            if key in page.values:
                raise _LineError(DUPLICATE)
            page.values[key] = value
        except _LineError as error:
            page.left_out[str(error)] += 1
    return PageSamples(page.values, +page.left_out)


def _is_wanted(line: bytes, wanted: frozenset[bytes]) -> bool:
    words = line.partition(b"{")[0].split(None, 1)
    return bool(words) and words[0] in wanted


def _sample_of(line: bytes, now: float) -> tuple[SeriesKey, float]:
    """Raises _LineError."""
    from prometheus_client import parser  # it loads a web server: only where endpoints are read

    if len(line) > LINE_BYTES:
        raise _LineError(TORN)
    try:
        [sample] = [each for family in parser.text_string_to_metric_families(line.decode() + "\n") for each in family.samples]
        key = (str(sample.name), tuple(sorted(sample.labels.items())))
        value, time = float(sample.value), sample.timestamp
    except UnicodeDecodeError:
        raise _LineError(ENCODING) from None
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError):  # whatever its parser meets in half a line
        raise _LineError(TORN) from None
    if not math.isfinite(value) or abs(value) > LARGEST:
        raise _LineError(NO_NUMBER)
    if time is not None and now - time > STALE_S:
        raise _LineError(STALE)
    return key, value
