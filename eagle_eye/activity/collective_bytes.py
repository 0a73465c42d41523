"""How many bytes a collective moves, from the sizes and types that torch's flight recorder has, and what that is on the bus.

Bytes are those of the larger side, inputs or outputs: what nccl-tests call the size of an operation, also of an all-gather (all that is received) and a reduce-scatter (all that is sent).
Factors are those of nccl-tests (doc/PERFORMANCE.md): bus bandwidth = bytes / seconds × factor, which is the same for any number of ranks. Reduction in the network (NVLink SHARP) has
another one, and no ring says that it was used.
"""

import math
from collections.abc import Sequence
from typing import Literal, get_args

from .collective_calls import MOST_DIMENSIONS

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p", "other"]
KINDS: tuple[CollectiveKind, ...] = get_args(CollectiveKind)
MOST_BYTES = 1 << 50
"""Of one collective: there is no machine for more, so the size is none."""
WIDTHS = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Int": 4, "Long": 8, "UInt16": 2, "UInt32": 4, "UInt64": 8, "Half": 2, "BFloat16": 2, "Float": 4, "Double": 8,
    "ComplexHalf": 4, "ComplexFloat": 8, "ComplexDouble": 16, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1, "Float4_e2m1fn_x2": 1,
}  # fmt: skip
"""Bytes of an element, by torch's names of types (c10/core/ScalarType.h)."""
_STARTS: tuple[tuple[str, CollectiveKind], ...] = (
    ("all_reduce", "all_reduce"), ("allreduce", "all_reduce"), ("all_gather", "all_gather"), ("allgather", "all_gather"), ("reduce_scatter", "reduce_scatter"),
    ("all_to_all", "all_to_all"), ("alltoall", "all_to_all"), ("broadcast", "broadcast"), ("reduce", "reduce"), ("send ", "p2p"), ("recv ", "p2p"),
)  # fmt: skip


def kind_of(operation: str) -> CollectiveKind:
    """Of torch's name without the backend, such as `_all_gather_base`.

    >>> kind_of("_all_gather_base"), kind_of("send 0->1"), kind_of("barrier")
    ('all_gather', 'p2p', 'other')
    """
    name = operation.lstrip("_")
    return next((kind for start, kind in _STARTS if name.startswith(start)), "other")


def bus_factor(kind: CollectiveKind, ranks: int) -> float:
    """What bytes / seconds is multiplied by; NaN: nccl-tests have none for it, or the group's size is not known."""
    if ranks < 1 or kind == "other":
        return math.nan
    if kind == "all_reduce":
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1.0


def tensor_bytes(sizes: Sequence[Sequence[int]], types: Sequence[str]) -> int:
    """Of several tensors; -1 where one cannot be: a size below 0, one that no memory holds, a type that is not known."""
    if len(sizes) != len(types):
        return -1
    total = 0
    for shape, kind in zip(sizes, types, strict=True):
        if kind not in WIDTHS or len(shape) > MOST_DIMENSIONS or any(not 0 <= each <= MOST_BYTES for each in shape):
            return -1
        total += WIDTHS[kind] * math.prod(shape)
        if total > MOST_BYTES:
            return -1
    return total
