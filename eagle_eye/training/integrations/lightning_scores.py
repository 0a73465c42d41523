"""The scores that Lightning's callbacks keep, as numbers: some begin as an infinite tensor, which in a model or an optimizer would be a fault."""

from typing import Any

import torch

_TENSOR = "tensor"


def without_tensors(value: Any) -> Any:
    """A callback's state with a number in the place of each tensor that holds one."""
    if isinstance(value, dict):
        return {key: without_tensors(each) for key, each in value.items()}
    if isinstance(value, torch.Tensor) and not value.dim():
        return (_TENSOR, value.item(), str(value.dtype).removeprefix("torch."))
    return value


def with_tensors(value: Any) -> Any:
    """The state again."""
    if isinstance(value, dict):
        return {key: with_tensors(each) for key, each in value.items()}
    if isinstance(value, tuple) and len(value) == 3 and value[0] == _TENSOR:
        return torch.tensor(value[1], dtype=getattr(torch, value[2]))
    return value
