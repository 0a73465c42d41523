"""The shapes of an optimizer's state, known before its first step: the step is run on torch's device "meta".

On that device tensors have shapes and types and no content, so nothing is computed and no memory is taken.
"""

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


def state_shapes(optimizer: "Optimizer") -> "dict[Tensor, dict[str, Any]]":
    """Parameter → its state after a step, tensors of it without content. The optimizer stays as it is.

    Empty for an optimizer that is not one of torch's (its step may do anything), and for one that cannot do a step
    this way (LBFGS, fused ones): only time is lost.
    """
    if not type(optimizer).__module__.startswith("torch.optim."):
        return {}
    stand_ins: dict[Tensor, Tensor] = {}
    shadow = copy.copy(optimizer)
    shadow.state = defaultdict(dict)
    shadow.param_groups = [group | {"params": [_stand_in(each, stand_ins) for each in group["params"]]} for group in optimizer.param_groups]
    try:
        shadow.step()
    except Exception:  # noqa: BLE001 - the worker then joins without preallocated memory
        return {}
    return {parameter: shadow.state[each] for parameter, each in stand_ins.items() if each in shadow.state}


def _stand_in(parameter: "Tensor", stand_ins: "dict[Tensor, Tensor]") -> "Tensor":
    import torch

    made = stand_ins[parameter] = torch.empty_like(parameter, device="meta").requires_grad_(parameter.requires_grad)
    made.grad = torch.empty_like(made) if parameter.requires_grad else None
    return made
