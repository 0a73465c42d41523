"""Rings of gloo and of NCCL, as torch writes them, and what is wrong in one."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.worker.ring_sizes import RingGroup, RingSizes, ring_sizes
from fakes.flight_ring import ring_answer, ring_entry

GLOO, NCCL = RingGroup("0", "gloo"), RingGroup("0", "nccl")


def sizes_of(*entries: dict[str, object], group: RingGroup = GLOO, ranks: int = 2) -> RingSizes | None:
    return ring_sizes([ring_answer(*entries)], {"0": ranks}).get(group)


def test_bytes_of_each_kind_are_told_for_each_collective_that_is_counted() -> None:
    found = sizes_of(
        ring_entry(7, "all_reduce", [[1000]]), ring_entry(8, "all_gather", [[100]], [[2, 100]]), ring_entry(9, "all_reduce", [[3000]]), ring_entry(10, "barrier", [])
    )  # fmt: skip
    assert found is not None
    assert found.bytes == {"all_reduce": 4000.0, "all_gather": 200.0, "other": 0.0}, "of an all-gather what is received"
    assert found.calls == {"all_reduce": 0.5, "all_gather": 0.25, "other": 0.25}
    assert found.mean_bytes == 4200.0
    assert found.bus_s == 0.0, "gloo has no durations"


def test_messages_that_gloo_counts_and_does_not_record_are_counted() -> None:
    """Three between the two: five numbers, 8,000 bytes."""
    found = sizes_of(ring_entry(1, "all_reduce", [[1000]]), ring_entry(2, "all_reduce", [[1000]], op_id=5))
    assert found is not None
    assert found.mean_bytes == 1600.0


def test_bus_bandwidth_comes_of_the_durations_of_nccl_alone() -> None:
    """Two all-reduces of 4,000 and 8,000 bytes in 1 and 3 ms among four ranks, and one whose duration is not there."""
    entries = [ring_entry(number, "all_reduce", [[size]], backend="nccl") for number, size in ((1, 1000), (2, 2000), (3, 500_000))]
    entries[0]["duration_ms"], entries[1]["duration_ms"] = 1.0, 3.0
    found = sizes_of(*entries, group=NCCL, ranks=4)
    assert found is not None
    assert found.bus_bytes / found.bus_s == pytest.approx(12_000 * 1.5 / 4e-3)
    unknown = sizes_of(*entries, group=NCCL, ranks=0)
    assert unknown is not None
    assert (unknown.bus_s, unknown.mean_bytes) == (0.0, found.mean_bytes), "bytes need no size of the group"


def test_of_a_batch_of_nccl_all_operations_have_one_number() -> None:
    batch = [ring_entry(4, "send 0->1", [[100]], backend="nccl", is_p2p=True), ring_entry(4, "recv 0<-1", [[100]], backend="nccl", is_p2p=True)]
    found = sizes_of(ring_entry(3, "all_reduce", [[1000]], backend="nccl"), *batch, ring_entry(4, "coalesced", [], backend="nccl"), group=NCCL)
    assert found is not None
    assert found.bytes == {"all_reduce": 2000.0, "p2p": 400.0, "other": 0.0}


def test_of_single_messages_of_nccl_their_own_number_counts_and_of_a_mixture_nothing_is_told() -> None:
    messages = [ring_entry(0, "send 0->1", [[100]], backend="nccl", is_p2p=True, p2p_seq_id=number) for number in (5, 6)]
    found = sizes_of(*messages, group=NCCL)
    assert found is not None
    assert found.bytes == {"p2p": 400.0}
    assert sizes_of(*messages, ring_entry(1, "all_reduce", [[1000]], backend="nccl"), group=NCCL) is None


def test_of_a_group_that_was_made_anew_its_newest_life_counts() -> None:
    found = sizes_of(ring_entry(800, "all_reduce", [[9000]]), ring_entry(1, "all_reduce", [[10]]), ring_entry(2, "all_reduce", [[10]]))
    assert found is not None
    assert found.mean_bytes == 40.0


@pytest.mark.parametrize("wrong", [
    {"input_sizes": [[-5]]}, {"input_sizes": [[1 << 63]]}, {"input_dtypes": ["Unheard"]}, {"op_id": -3}, {"op_id": (1 << 63) - 1}, {"input_dtypes": []},
])  # fmt: skip
def test_an_entry_that_cannot_be_costs_itself_alone(wrong: dict[str, object]) -> None:
    found = sizes_of(ring_entry(1, "all_reduce", [[1000]]), ring_entry(2, "all_reduce", [[1000]]) | wrong, ring_entry(3, "all_reduce", [[1000]]))
    assert found is not None
    assert found.mean_bytes == pytest.approx(4000.0, rel=0.34)


@pytest.mark.parametrize("duration", [-1.0, 0.0, 1e308, None])
def test_durations_that_cannot_be_make_no_bandwidth_that_cannot_be(duration: float | None) -> None:
    found = sizes_of(ring_entry(1, "all_reduce", [[1000]], backend="nccl", duration_ms=duration), group=NCCL)
    assert found is not None
    assert not found.bus_s or found.bus_bytes / found.bus_s < 1.0


def test_a_ring_without_entries_tells_nothing() -> None:
    assert ring_sizes([ring_answer(), b"{}"], {}) == {}


@pytest.mark.parametrize("answer", [b"", b"[]", b"null", b"\xff", b'{"entries": 3}', b'{"entries": [{}]}', ring_answer(ring_entry(1, "all_reduce", [[5]]))[:-40], b'{"entries": ' + b"[" * 100_000])
def test_what_is_no_ring_is_an_error(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        ring_sizes([answer], {})


@given(st.binary(max_size=60), st.integers(0, 900))
def test_whatever_a_worker_answers_only_a_value_error_comes_of_it(junk: bytes, place: int) -> None:
    whole = ring_answer(ring_entry(1, "all_reduce", [[5]]), ring_entry(2, "all_gather", [[5]], [[2, 5]]))
    with suppress(ValueError):
        ring_sizes([whole[:place] + junk + whole[place + len(junk) :]], {"0": 2})


@given(st.lists(st.tuples(st.integers(), st.integers(), st.floats()), max_size=20))
def test_whatever_the_numbers_are_no_size_is_negative_or_without_end(found: list[tuple[int, int, float]]) -> None:
    entries = [ring_entry(number, "all_reduce", [[size]], backend="nccl", duration_ms=duration) for number, size, duration in found]
    try:
        rings = ring_sizes([json.dumps({"entries": entries}).encode()], {"0": 2})
    except ValueError:
        return
    for sizes in rings.values():
        assert 0.0 <= sizes.mean_bytes <= 20 * 2.0**50
        assert 0.0 <= sizes.bus_s < float("inf")
