"""Which region of a tensor this rank holds: all of an ordinary one, its shard of a DTensor (FSDP2, tensor parallelism), or what the script says."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .tensor_regions import Extents, Region, whole

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LocalTensor:
    """This rank's part of a tensor; stands in a state in the place of one that is cut by other means than DTensor."""

    tensor: "Tensor"
    region: Region
    """Which part of the whole tensor it is."""
    shape: Extents
    """Of the whole tensor."""
    written_here: bool = True
    """Whether this rank is the first of those that hold the region, which writes it for all."""

    def __post_init__(self) -> None:
        if self.region.size and tuple(self.tensor.shape) != self.region.shape:
            raise ValueError(f"a tensor of shape {tuple(self.tensor.shape)} is no region of shape {self.region.shape}")


@dataclass(frozen=True, slots=True)
class LocalTensors:
    """Several regions of one tensor, where this rank holds more than one; stands in a state that is saved."""

    parts: tuple[LocalTensor, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("LocalTensors without a part: leave the tensor out where this rank holds nothing of it")


def is_tensor(value: object) -> bool:
    """Whether `local` or `parts_of` takes it."""
    import torch

    return isinstance(value, torch.Tensor | LocalTensor | LocalTensors)


def is_part(value: object) -> bool:
    """Whether each rank has a part of its own of it."""
    return isinstance(value, LocalTensor) or _is_dtensor(value)


def parts_of(tensor: "Tensor | LocalTensor | LocalTensors", *, first: bool, name: str) -> tuple[LocalTensor, ...]:
    """As `local`, of however many regions."""
    parts = tensor.parts if isinstance(tensor, LocalTensors) else (local(tensor, first=first, name=name),)
    for part in parts:
        _require_dense(part.tensor, name)
    return parts


def local(tensor: "Tensor | LocalTensor | LocalTensors", *, first: bool, name: str) -> LocalTensor:
    """`first`: whether this rank writes ordinary tensors. Raises TypeError, naming the tensor, for a DTensor that holds summands, or more than one region, and for one that is not dense."""
    if isinstance(tensor, LocalTensor):
        _require_dense(tensor.tensor, name)
        return tensor
    if isinstance(tensor, LocalTensors):
        raise TypeError(f"{name!r} is given as {len(tensor.parts)} regions: load them under names of their own, or through DcpReader")
    if _is_dtensor(tensor):
        return _shard(tensor, name)
    _require_dense(tensor, name)
    return LocalTensor(tensor.detach(), whole(tensor.shape), tuple(tensor.shape), first)


def _require_dense(tensor: "Tensor", name: str) -> None:
    """Raises TypeError, naming the tensor, for one that has no elements of its own in memory: what lies behind its address is read without asking torch."""
    import torch

    if tensor.is_nested or tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "it has no data (device meta): give it some first" if tensor.is_meta else "it is sparse, nested or quantized: convert it first (to_dense, to_padded_tensor, dequantize)"
        raise TypeError(f"a checkpoint cannot hold the tensor {name!r}: {kind}")
    if _wraps_others(tensor):
        raise TypeError(f"a checkpoint cannot hold the tensor {name!r}: a {type(tensor).__name__} wraps other tensors; save those, or what it stands for (dequantize, full_tensor)")
    if tensor.numel() and tensor.untyped_storage().nbytes() < _end_in_storage(tensor):
        raise TypeError(f"a checkpoint cannot hold the tensor {name!r}: the memory of its elements was freed (resize_, as FSDP does between uses): gather it first")


def _wraps_others(tensor: "Tensor") -> bool:
    """Whether it is of a subclass that has its elements elsewhere (torchao's quantized weights)."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    try:
        tensor.untyped_storage().data_ptr()
    except RuntimeError:  # there is no memory behind it, and it does not say which tensors it wraps
        return True
    return bool(is_traceable_wrapper_subclass(tensor))


def _end_in_storage(tensor: "Tensor") -> int:
    """The byte behind its last element."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * int(tensor.element_size())


def require_writable(tensor: "Tensor", name: str) -> None:
    """Raises ValueError, naming the tensor, for one that cannot be filled: several of its elements lie in one place, or torch forbids it."""
    import torch

    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        raise ValueError(f"the tensor {name!r} cannot be filled: it was made in inference mode; give a clone of it")
    if _overlaps_itself(tensor):
        raise ValueError(f"the tensor {name!r} cannot be filled: several of its elements lie in one place (expand, as_strided); give a clone of it")


def _overlaps_itself(tensor: "Tensor") -> bool:
    import torch

    lengths = sorted((stride, length) for stride, length in zip(tensor.stride(), tensor.shape, strict=True) if length > 1)
    if not tensor.numel():
        return False
    reach = 0
    for stride, length in lengths:
        if stride <= reach:
            break
        reach += (length - 1) * stride
    else:
        return False
    places = torch.zeros(1, dtype=torch.int64)  # strides that cross, which views made by slices and transpositions never have: each place is looked at
    for stride, length in lengths:
        if stride == 0:
            return True
        places = (places[:, None] + torch.arange(length) * stride).reshape(-1)
    return bool(torch.unique(places).numel() < places.numel())

def _is_dtensor(tensor: object) -> bool:
    module = sys.modules.get("torch.distributed.tensor")  # whoever has one has imported it
    return module is not None and isinstance(tensor, module.DTensor)


def _shard(tensor: Any, name: str) -> LocalTensor:
    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"a checkpoint cannot hold {name!r}: its ranks have summands of it; reduce it first (full_tensor, or redistribute)")
    regions = [Region(tuple(chunk.offsets), tuple(chunk.sizes)) for chunk in tensor.__create_chunk_list__()]
    part = tensor.to_local()
    part = part.trigger_wait().detach() if hasattr(part, "trigger_wait") else part.detach()  # of a collective that is still under way
    _require_dense(part, name)
    if len(regions) > 1:
        raise TypeError(f"a checkpoint cannot hold {name!r}: this rank has {len(regions)} regions of it; redistribute it so that each has one")
    region = regions[0] if regions and part.numel() else Region((0,) * tensor.dim(), (0,) * tensor.dim())
    held = tensor.device_mesh.get_coordinate()
    first = held is not None and all(at == 0 or not placement.is_replicate() for at, placement in zip(held, tensor.placements, strict=True))
    return LocalTensor(part, region, tuple(tensor.shape), first)
