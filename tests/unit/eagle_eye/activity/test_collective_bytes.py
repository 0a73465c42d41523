"""Bytes of a collective and its factor on the bus."""

import math

import pytest

from eagle_eye.activity.collective_bytes import KINDS, bus_factor, kind_of, tensor_bytes


@pytest.mark.parametrize(("operation", "kind"), [
    ("all_reduce", "all_reduce"), ("allreduce_coalesced", "all_reduce"), ("all_reduce_barrier", "all_reduce"), ("_all_gather_base", "all_gather"), ("all_gather_into_tensor_coalesced", "all_gather"),
    ("_reduce_scatter_base", "reduce_scatter"), ("reduce_scatter_tensor_coalesced", "reduce_scatter"), ("all_to_all", "all_to_all"), ("_broadcast_oop", "broadcast"), ("_reduce_oop", "reduce"),
    ("send 0->1", "p2p"), ("recv 0<-1", "p2p"), ("barrier", "other"), ("coalesced", "other"), ("", "other"),
])  # fmt: skip
def test_torchs_names_are_of_these_kinds(operation: str, kind: str) -> None:
    assert kind_of(operation) == kind


def test_the_factors_are_those_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md, of eight ranks."""
    factors = {kind: bus_factor(kind, 8) for kind in KINDS}
    assert math.isnan(factors.pop("other"))
    assert factors == {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "all_to_all": 0.875, "broadcast": 1.0, "reduce": 1.0, "p2p": 1.0}
    assert math.isnan(bus_factor("all_reduce", 0)), "the size of the group is not known"


def test_bytes_of_several_tensors() -> None:
    assert tensor_bytes([[2, 3], [], [0, 5]], ["BFloat16", "Double", "Float"]) == 12 + 8


@pytest.mark.parametrize(("sizes", "types"), [
    ([[-1]], ["Float"]), ([[1 << 63]], ["Byte"]), ([[1 << 40, 1 << 40]], ["Byte"]), ([[5]], ["NewType"]), ([[5]], []), ([[1] * 100], ["Float"]), ([[1 << 49]] * 9, ["Byte"] * 9),
])  # fmt: skip
def test_sizes_that_cannot_be_are_told_apart_from_none(sizes: list[list[int]], types: list[str]) -> None:
    assert tensor_bytes(sizes, types) == -1
