"""What an elastic worker asks of whatever is trained."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer


class Trainable(Protocol):
    """`TrainedModel` of model.py, or a framework's trainer in its place."""

    @property
    def layers(self) -> "list[nn.Module]":
        """Own all parameters and buffers; state is handed over layer by layer."""

    @property
    def parameters(self) -> "list[nn.Parameter]":
        """Those that are trained, each once, in the same order everywhere."""

    @property
    def masters(self) -> "Mapping[Tensor, Tensor]":
        """Of a parameter of lower precision: the fp32 tensor that the optimizer updates in its place."""

    @property
    def optimizer(self) -> "Optimizer": ...

    @property
    def scheduler(self) -> Any:
        """Something with state_dict and load_state_dict, or None."""

    @property
    def device(self) -> "torch.device": ...

    def run(self, step: int, micro_batch: int) -> tuple[float, int]:
        """Add the gradients of one micro-batch to the parameters' `.grad`; its mean loss and number of tokens."""

    def apply(self, gradient: "Tensor", /) -> float:
        """Make the update by the mean gradient: flat fp32, in the order of `parameters`. Returns the gradient's norm, or nan."""

    def refresh(self) -> None:
        """State came from elsewhere."""
