"""Pages in Prometheus' text format, whole and broken."""

import math
import tracemalloc
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.site.exporter_page import (
    DUPLICATE,
    ENCODING,
    LARGEST,
    LINE_BYTES,
    NO_NUMBER,
    STALE,
    TOO_MANY,
    TORN,
    WANTED_BYTES,
    read_page,
)

NOW = 1_700_000_000.0
PAGE = b"""# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-aa",device="nvidia0",modelName="NVIDIA \\"H100\\" {80GB, HBM3}",pod=""} 41
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-bb",device="nvidia1",modelName="\xc3\xa4",pod=""} 42.5
other{a="b"} 1
node_load1 0.25
node_load1_more 9
"""
WANTED = frozenset({b"DCGM_FI_DEV_GPU_TEMP", b"node_load1"})


def read(body: bytes, most: int = 100) -> tuple[list[float], Counter[str]]:
    page = read_page(body, WANTED, most, NOW)
    return list(page.values.values()), page.left_out


def test_wanted_series_are_read_with_their_labels() -> None:
    page = read_page(PAGE, WANTED, 100, NOW)
    assert list(page.values.values()) == [41.0, 42.5, 0.25]
    (name, labels), *_ = page.values
    assert (name, dict(labels)["UUID"], dict(labels)["modelName"]) == ("DCGM_FI_DEV_GPU_TEMP", "GPU-aa", 'NVIDIA "H100" {80GB, HBM3}')
    assert not page.left_out


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'node_load1{a="b', TORN),
        (b"node_load1", TORN),
        (b"node_load1 zero", TORN),
        (b'node_load1{a="b"}', TORN),
        (b'node_load1{a="1",a="2"} 1', TORN),
        (b"node_load1 1_000", TORN),
        (b"node_load1 " + b"9" * LINE_BYTES, TORN),
        (b"node_load1 " + b"9" * 4000, TORN),
        (b'node_load1{a="\xff"} 1', ENCODING),
        (b"node_load1 NaN", NO_NUMBER),
        (b"node_load1 +Inf", NO_NUMBER),
        (b"node_load1 1e300", NO_NUMBER),
        (b"node_load1 1 %d" % ((NOW - 900) * 1000), STALE),
    ],
)
def test_fault_a_line_that_cannot_be_used_costs_itself_alone(line: bytes, reason: str) -> None:
    values, left_out = read(line + b"\n" + PAGE)
    assert values == [41.0, 42.5, 0.25]
    assert left_out == {reason: 1}


def test_twin_a_time_of_a_moment_ago_is_no_fault() -> None:
    assert read(b"node_load1 1 %d\n" % ((NOW - 20) * 1000)) == ([1.0], {})


def test_fault_half_a_number_at_the_end_is_none() -> None:
    assert read(b"node_load1 123") == ([], {TORN: 1})
    assert read(b"node_load1 123\n") == ([123.0], {})


def test_fault_a_series_that_stands_there_twice_counts_once() -> None:
    assert read(b'node_load1{a="1",b="2"} 1\nnode_load1{b="2",a="1"} 2\n') == ([1.0], {DUPLICATE: 1})


def test_series_beyond_the_limit_are_counted() -> None:
    assert read(b"".join(b'node_load1{a="%d"} 1\n' % number for number in range(7)), 5) == ([1.0] * 5, {TOO_MANY: 2})


def test_fault_lines_that_cannot_be_read_count_towards_the_limit_as_well() -> None:
    """They cost as much as others."""
    assert read(b"node_load1{\n" * 7 + b"node_load1 1\n", 5) == ([], {TORN: 5, TOO_MANY: 3})
    long = b"node_load1" + b" " * (LINE_BYTES - 20) + b"1"
    read_most = WANTED_BYTES // len(long)
    assert read(b"\n".join([long] * 300) + b"\n", 1000) == ([1.0], {DUPLICATE: read_most - 1, TOO_MANY: 300 - read_most})


def test_fault_a_page_of_nothing_but_line_feeds_takes_no_memory_of_its_own() -> None:
    page = b"\n" * (4 << 20) + PAGE
    tracemalloc.start()
    try:
        values, _ = read(page)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (values, peak < 1 << 20) == ([41.0, 42.5, 0.25], True)


def test_a_page_in_another_encoding_has_no_series_of_ours() -> None:
    assert read(PAGE.decode().encode("utf-16")) == ([], {})


@settings(max_examples=80, deadline=None)
@given(begin=st.integers(0, len(PAGE)), end=st.integers(0, len(PAGE)), noise=st.binary(max_size=20), at=st.integers(0, len(PAGE)))
def test_no_torn_page_raises_or_gives_what_is_no_number(begin: int, end: int, noise: bytes, at: int) -> None:
    torn = (PAGE[:at] + noise + PAGE[at:])[begin:end]
    page = read_page(torn, WANTED, 100, NOW)
    assert all(math.isfinite(value) and abs(value) <= LARGEST for value in page.values.values())


@settings(max_examples=40, deadline=None)
@given(st.text(alphabet='{}",=\\ #1eE+-.n\tNaInf', max_size=60))
def test_no_line_with_a_wanted_name_raises(rest: str) -> None:
    page = read_page(b"node_load1" + rest.encode() + b"\n", WANTED, 100, NOW)
    assert len(page.values) + sum(page.left_out.values()) <= 1
