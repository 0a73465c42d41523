"""What of a state lies where in a slot: the tensors of this process one behind the other, and the rest as JSON."""

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from eagle_eye.training import state_tree

from . import distributed_tensor, json_position, slot_table
from .memory_segment import ROW
from .roll_backs import RollBacks, abandoned

_ALIGN = 64
_BITS = {torch.float16: (torch.int16, 0x7C00)}
Guards = frozenset[int]
"""The optimizers that may write to a tensor, by their place in the client's list."""


@dataclass(frozen=True, slots=True)
class PlacedTensor:
    """A tensor of the state and its place in the payload."""

    name: str
    tensor: torch.Tensor
    """What this process holds of it."""
    offset: int
    bytes: int
    guards: Guards
    shard: str
    """Of a distributed tensor: its whole shape, mesh and placements; '' of any other."""


class Shard(NamedTuple):
    """Which part of the job's state a process holds."""

    rank: int
    world: int

    @classmethod
    def here(cls) -> "Shard":
        """By the environment that torchrun and our launcher give."""
        return cls(int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1))


class StepLimits(NamedTuple):
    """Which steps may be gone on from."""

    at_most: int
    """Below 0: any."""
    at_least: int = 0
    rolled_back: RollBacks = ()
    """Those of the run."""

    def excluded(self, step: int, epoch: int | None = None) -> str:
        """Why this one is not; '' if it is. `epoch`: in which a copy was made; None: that says nothing here."""
        if 0 <= self.at_most < step:
            return f"the job starts again from step {self.at_most} at the latest"
        if epoch is not None and (why := abandoned(self.rolled_back, epoch, step)):
            return why
        return f"the training has a checkpoint of step {self.at_least - 1} already" if step < self.at_least else ""


class StateLayout:
    """Of one state. `data_position`: where the training reads on in its data, as JSON. Raises TypeError for what a checkpoint cannot hold."""

    def __init__(self, state: dict[str, Any], guards_of: Callable[[torch.Tensor], Guards] = lambda _: frozenset(), data_position: Any = None) -> None:
        tensors, self.rest = state_tree.flatten(state, lambda value: isinstance(value, torch.Tensor))
        self._data_position = data_position
        json_position.require_json(data_position)
        self._rest_bytes = len(json.dumps([self.rest, data_position]))  # what JSON cannot hold is the state's fault, and raises here
        self.tensors: list[PlacedTensor] = []
        self.payload_bytes: int = 0
        self._distributed: dict[str, torch.Tensor] = {}
        """DTensors: which region of the whole a process holds is asked when the table is written, beside the training."""
        for name, tensor in tensors.items():
            self._place(name, tensor, guards_of)

    def _place(self, name: str, tensor: torch.Tensor, guards_of: Callable[[torch.Tensor], Guards]) -> None:
        local = local_of(tensor)
        shard = shard_of(tensor)
        if shard:
            self._distributed[name] = tensor
        if why := _why_not_held(local):
            raise TypeError(f"a checkpoint in memory cannot hold the tensor {name!r}: {why}")
        guards = guards_of(local)
        if has_other_values(local):  # a copy of its own, which nobody writes to
            local, guards = local.resolve_conj().resolve_neg(), frozenset()
        size = int(local.numel() * local.element_size())
        step = ROW if size >= ROW else _ALIGN  # rows of a large tensor are its own: they are summed while they are in the cache
        at = -(-self.payload_bytes // step) * step
        self.tensors.append(PlacedTensor(name, local, at, size, guards, shard))
        self.payload_bytes = at + size

    @property
    def gpus(self) -> frozenset[torch.device]:
        """Those that some of it lies on."""
        return frozenset(placed.tensor.device for placed in self.tensors if placed.tensor.device.type == "cuda")

    @property
    def on_gpu(self) -> bool:
        """Some of it is."""
        return bool(self.gpus)

    @property
    def table_bytes(self) -> int:
        """An upper bound."""
        rows = sum(int(200 + 2 * len(placed.name) + len(placed.shard) + 24 * placed.tensor.dim()) for placed in self.tensors)
        regions = sum(int(80 + 2 * len(name) + 48 * tensor.dim()) for name, tensor in self._distributed.items())
        return self._rest_bytes + 1024 + rows + regions

    def table(self, step: int, finite: bool, shard: Shard, *, replicated: bool = False, epoch: int = 0) -> bytes:
        """As it is stored. `replicated`: all ranks hold the same, so one of them is stored for all; `epoch`: of the job, in which it was made."""
        rows = {each.name: [str(each.tensor.dtype), list(each.tensor.shape), each.offset, each.bytes, each.shard] for each in self.tensors}
        head = {"step": step, "finite": finite, "rank": shard.rank, "world": shard.world, "pid": os.getpid(), "saved": time.time(), "replicated": replicated, "epoch": epoch}
        regions = {name: _region_of(name, tensor) for name, tensor in self._distributed.items()}
        return slot_table.encode({**head, "tensors": rows, "regions": regions, "rest": self.rest, "data_position": self._data_position})


class StoredTensor(NamedTuple):
    """A row of the table of a slot."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    bytes: int
    shard: str


@dataclass(frozen=True, slots=True)
class StoredTable:
    """The table of a slot."""

    step: int
    finite: bool
    shard: Shard
    tensors: Mapping[str, StoredTensor]
    rest: Any
    data_position: Any = None
    epoch: int = 0
    """Of the job, in which it was made; 0: it is not known."""

    @classmethod
    def parse(cls, table: bytes) -> "StoredTable":
        """Raises ValueError, KeyError or TypeError for what is none."""
        words = slot_table.decode(table)
        rows = {name: StoredTensor(_dtype(dtype), tuple(shape), at, size, shard) for name, (dtype, shape, at, size, shard) in words["tensors"].items()}
        return cls(words["step"], words["finite"], Shard(words["rank"], words["world"]), rows, words["rest"], words.get("data_position"), int(words.get("epoch", 0)))

    def mismatch(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """Why this is not the state that a template asks for; '' if it is. What the template lacks is new: optimizers have no state at first."""
        for name, tensor in tensors.items():
            stored = self.tensors.get(name)
            if stored is None:
                return f"it has no tensor {name!r}"
            local = local_of(tensor)
            if why := why_not_fillable(local, name):
                return why
            if (local.dtype, tuple(local.shape)) != stored[:2] or shard_of(tensor) != stored.shard:
                return f"tensor {name!r} is {stored.dtype} {list(stored.shape)} {stored.shard} there, and {local.dtype} {list(local.shape)} {shard_of(tensor)} here"
        parts = [name for name, stored in self.tensors.items() if stored.shard and name not in tensors]
        return f"the distributed tensor {parts[0]!r} is not in the template" if parts else ""


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of it: the shard of a DTensor, without its gradient."""
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach()  # of the DTensor itself it would be an operation that DTensor dispatches, in each save


def is_wrapper(tensor: torch.Tensor) -> bool:
    """It has no memory of its own: a subclass that wraps other tensors (quantized or nested ones, for instance)."""
    return bool(is_traceable_wrapper_subclass(tensor))


def is_storage_short(tensor: torch.Tensor) -> bool:
    """Its storage was freed or cut since it was made (`untyped_storage().resize_`): who reads or fills it by its address ends the process."""
    count = tensor.numel()
    if not count:
        return False
    extent = count if tensor.is_contiguous() else 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(tensor.untyped_storage().nbytes() < (tensor.storage_offset() + extent) * tensor.element_size())


def _why_not_held(tensor: torch.Tensor) -> str:
    """Why this one has no values that can be copied; '' if it has."""
    if is_wrapper(tensor):
        return f"it is a {type(tensor).__name__}, which wraps other tensors; give those, or a plain tensor of its values"
    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        return "it is sparse, nested, quantized or has no data"
    if is_storage_short(tensor):
        return "its storage was freed (resharding, offloading); gather it before, or leave it out"
    return ""


def why_not_fillable(local: torch.Tensor, name: str) -> str:
    """Why a stored value cannot be put into this tensor of a template; '' if it can."""
    if why := _why_not_held(local):
        return f"the tensor {name!r} cannot be filled: {why}"
    if local.device.type == "cpu" and local.is_contiguous() and not has_other_values(local):
        return ""  # it is filled by its address, which asks torch for nothing
    try:
        distributed_tensor.require_writable(local, name)
    except ValueError as error:
        return str(error)
    return ""


def has_other_values(tensor: torch.Tensor) -> bool:
    """Its memory holds the conjugates, or the negatives, of its values (`Tensor.conj`)."""
    return bool(tensor.is_conj() or tensor.is_neg())


def shard_of(tensor: torch.Tensor) -> str:
    """Which part of a DTensor this process holds; '' for a plain tensor."""
    if not hasattr(tensor, "placements"):
        return ""
    mesh = tensor.device_mesh
    return f"{list(tensor.shape)} {tensor.placements} at {mesh.get_coordinate()} of {tuple(mesh.shape)}"


def _region_of(name: str, tensor: torch.Tensor) -> list[Any] | None:
    """Of a DTensor: offsets and shape of what this process holds of it, the whole shape, and whether it is the first of those that hold the same.

    None: summands, or several regions, which storage cannot hold.
    """
    try:
        part = distributed_tensor.local(tensor, first=True, name=name)
    except TypeError:
        return None
    return [list(part.region.offsets), list(part.region.shape), list(part.shape), part.written_here]


def all_finite(values: torch.Tensor) -> bool:
    """Whether no value is infinite or NaN; a mask of attention, which a model may hold as a buffer, is as it should be.

    A sum tells it at the speed of memory; only where that overflows each value is looked at.
    """
    if values.dtype in _BITS:  # a sum of half precision overflows at once
        whole, exponent = _BITS[values.dtype]
        return bool(((values.view(whole) & exponent).amax() != exponent).item()) or _is_mask(values)
    if values.element_size() == 1:
        values = values.to(torch.float32)
    return bool(torch.isfinite(values.sum()).item()) or bool(torch.isfinite(values).all().item()) or _is_mask(values)


def _is_mask(values: torch.Tensor) -> bool:
    """Nothing but 0 and −∞, and both: what a softmax is to leave out."""
    zero = values == 0
    return bool(zero.any().item()) and bool((zero | (values == -math.inf)).all().item())


def _dtype(text: str) -> torch.dtype:
    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise TypeError(f"unknown dtype {text!r}")
    return found
