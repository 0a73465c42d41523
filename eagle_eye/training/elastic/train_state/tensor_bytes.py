"""A tensor as the bytes of its elements, in order."""

import ctypes
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def is_direct(tensor: "Tensor") -> bool:
    """Whether its bytes lie in this process's memory as they are: no copy is needed to read or to write them."""
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous())


def flat(tensor: "Tensor") -> "Tensor":
    """uint8 of shape (bytes,) in the memory of this process: the tensor's own memory if it is direct, else a copy.

    A copy from a GPU is in pinned memory.
    """
    import torch

    own = tensor.detach()
    if not is_direct(own):
        pinned = own.device.type == "cuda"
        own = torch.empty(own.shape, dtype=own.dtype, pin_memory=pinned).copy_(own)
    return own.reshape(-1).view(torch.uint8)


def fill(tensor: "Tensor", content: "Tensor") -> None:
    """Put what `flat` gave of an equal tensor into this one."""
    tensor.detach().copy_(content.view(tensor.dtype).view(tensor.shape))


def view(content: "Tensor") -> memoryview:
    """The bytes of a contiguous tensor in this process's memory. Worth nothing once the tensor is gone."""
    size = content.numel() * content.element_size()
    return memoryview((ctypes.c_char * size).from_address(content.data_ptr() if size else 0)).cast("B")
