"""A Trainer's model, optimizer and scheduler as what an elastic worker trains."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from eagle_eye.training.elastic.model import seed_of

from .sample_order import SampleOrder


class TrainerModel:
    """Update and scheduler are stepped here; what the trainer's loop does about them afterwards finds no gradients."""

    def __init__(
        self, model: nn.Module, backward: Callable[[Any], float], sample_order: SampleOrder, *, optimizer: Any, scheduler: Any, clip: float | None, seed: int
    ) -> None:
        """`backward(inputs)`: adds the gradients of a micro-batch, returns its mean loss. `optimizer`: as the trainer holds it."""
        self.layers = list(layers_of(model))
        self.parameters = [each for each in model.parameters() if each.requires_grad]
        self.masters: Mapping[Tensor, Tensor] = {}
        self.optimizer: Optimizer = getattr(optimizer, "optimizer", optimizer)
        self.scheduler = scheduler
        self.device = self.parameters[0].device
        self.norm = math.nan
        """Of the last step's gradient; nan without clipping."""
        self._step, self._backward, self._sample_order = optimizer.step, backward, sample_order
        self.data_position = sample_order.position
        self._clip, self._seed = clip, seed

    def run(self, step: int, micro_batch: int) -> tuple[float, int]:
        """Forward and backward of one micro-batch."""
        torch.manual_seed(seed_of(self._seed, step, micro_batch))
        inputs = self._sample_order.batch(step, micro_batch)
        return self._backward(inputs), _tokens(inputs)

    def apply(self, gradient: Tensor, /) -> float:
        """Clip, update, and step the scheduler."""
        for parameter, part in zip(self.parameters, gradient.split([each.numel() for each in self.parameters]), strict=True):
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        self.norm = float(nn.utils.clip_grad_norm_(self.parameters, self._clip)) if self._clip else math.nan
        self._step()
        self.scheduler.step()
        for parameter in self.parameters:
            parameter.grad = None
        return self.norm

    def refresh(self) -> None:
        """There are no masters."""


class SchedulerView:
    """A read-only view of a scheduler: `step` has no effect, because the elastic worker's update steps the real one."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def step(self, *_: Any, **__: Any) -> None:
        """No effect."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.scheduler, name)


def layers_of(module: nn.Module) -> Iterator[nn.Module]:
    """The layers of a model: the elements of its lists of blocks, and the modules beside these."""
    children = list(module.children())
    holds_lists = any(isinstance(each, nn.ModuleList) for each in module.modules())
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    if not children or own or not holds_lists:
        yield module
        return
    for child in children:
        yield from layers_of(child)


def _tokens(inputs: Any) -> int:
    """Of a micro-batch: elements of its input ids, or of its labels."""
    found = next((inputs[name] for name in ("input_ids", "labels") if isinstance(inputs, Mapping) and name in inputs), None)
    return int(found.numel()) if isinstance(found, Tensor) else 0
