"""`fast`: gradients of finished micro-batches as one running sum."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .gradients import Gradients, detach
from .vector import SEGMENT_BYTES


class RunningSum(Gradients):
    """One vector, and `.grad` of fp32 parameters is a view into it: autograd itself adds a micro-batch to the sum.

    Gradients of parameters of a lower precision are added to it as soon as autograd has them.

    A micro-batch that was begun and not finished leaves the sum as it was if it failed before its backward had added
    anything. Else the sum is torn, and with it go all of the step's finished micro-batches of this worker.
    """

    def __init__(self, parameters: Sequence[Tensor], total: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(parameters, total, segment_bytes)
        self.sum = self.vector.new()
        """Of the finished micro-batches, flat; not to be written to."""
        self._views = self.vector.views(self.sum)
        self._direct = all(parameter.dtype == torch.float32 for parameter in parameters)
        self._stale = False
        self._version = 0
        if not self._direct:
            for parameter, view in zip(parameters, self._views, strict=True):
                parameter.register_post_accumulate_grad_hook(_adder(view))

    @property
    def copies(self) -> int:
        return 1 + self._places

    def require(self, micro_batches: Sequence[int]) -> None:
        super().require(micro_batches)
        self._refresh()

    def _attach(self) -> None:
        self._refresh()
        self._version = self.sum._version
        if not self._direct:
            detach(self.parameters)
            return
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view

    def _keep(self, micro_batch: int, loss: float, tokens: int) -> None:
        if self._direct and any(parameter.grad is not view for parameter, view in zip(self.parameters, self._views, strict=True)):
            self._lose()
            raise ValueError("a parameter's .grad was replaced during a micro-batch: leave gradients to the elastic worker")
        self.vector.enter(self.sum, micro_batch, loss, tokens)

    def _forget_begun(self) -> None:
        if self.sum._version != self._version:
            self._lose()

    def _release(self) -> None:
        self._stale = True

    def _lose(self) -> None:
        self.done, self._stale = frozenset(), True

    def _refresh(self) -> None:
        if self._stale:
            self.sum.zero_()
            self._stale = False


def _adder(view: Tensor) -> Callable[[Tensor], None]:
    def add(parameter: Tensor) -> None:
        view.add_(parameter.grad)
        parameter.grad = None

    return add
