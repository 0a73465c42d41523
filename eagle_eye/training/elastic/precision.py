"""Precision of training: fp32, or a model in bfloat16 whose optimizer works on fp32 masters.

bfloat16 keeps 8 bits of a number's fraction: an update of less than 1/256 of a weight would be lost in it. So the
optimizer updates fp32 copies, of which the model's parameters are the rounded values (Micikevicius et al., Mixed
Precision Training, section 3.1; bfloat16 has the range of fp32 and needs no scaling of the loss).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from eagle_eye.errors import ConfigError

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def prepare_precision(layers: Sequence[nn.Module], precision: str) -> tuple[list[nn.Parameter], dict[Tensor, Tensor]]:
    """The parameters that are trained, each once in the order of the layers, and their masters.

    A model for "bf16" is cast here, buffers included; its masters keep what the cast rounds away. For "fp32" there
    are no masters. Raises ConfigError.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision={precision!r} is none of {', '.join(PRECISIONS)}")
    parameters = list({id(each): each for layer in layers for each in layer.parameters() if each.requires_grad}.values())
    _check(parameters, precision)
    if precision == "fp32":
        return parameters, {}
    masters = [nn.Parameter(each.detach().to(torch.float32, copy=True)) for each in parameters]
    for layer in layers:
        layer.to(PRECISIONS[precision])
    return parameters, dict(zip(parameters, masters, strict=True))


def refresh(masters: Mapping[Tensor, Tensor]) -> None:
    """Set each parameter to its master, rounded."""
    if masters:
        with torch.no_grad():
            torch._foreach_copy_(list(masters), list(masters.values()))


def to_device(value: Any, device: torch.device, precision: torch.dtype | None = None) -> Any:
    """Tensors in tuples, lists and dicts, on the model's device; floating ones in its precision if that is given."""
    if isinstance(value, Tensor):
        return value.to(device, precision if value.is_floating_point() else None)
    if isinstance(value, dict):
        return {key: to_device(each, device, precision) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)(to_device(each, device, precision) for each in value)
    return value


def _check(parameters: Sequence[nn.Parameter], precision: str) -> None:
    if not parameters:
        raise ConfigError("the layers have no parameter that requires a gradient: nothing can be trained")
    devices = {str(each.device) for each in parameters}
    if len(devices) > 1:
        raise ConfigError(f"the model's parameters lie on {', '.join(sorted(devices))}: put all on one device")
    others = {str(each.dtype) for each in parameters} - {"torch.float32", str(PRECISIONS[precision])}
    if others:
        raise ConfigError(f"the model has parameters in {', '.join(sorted(others))}: with precision={precision!r} give it in float32")
