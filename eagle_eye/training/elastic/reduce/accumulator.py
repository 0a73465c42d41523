"""`fast`: gradients of finished micro-batches as one running sum."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .gradient_vector import SEGMENT_BYTES
from .gradients import Gradients


class Accumulator(Gradients):
    """One vector, and `.grad` of fp32 parameters is a view into it: autograd itself adds a micro-batch to the sum.

    The first micro-batch of a step is written over what the last step has left, parameter by parameter as autograd
    has done with it: to fill the vector with zeros and add would move three times as many bytes. So are, or are added,
    all gradients of parameters of a lower precision.

    A micro-batch that was begun and not finished leaves the sum as it was if it failed before its backward had added
    anything. Else the sum is torn, and with it go all of the step's finished micro-batches of this worker.
    """

    def __init__(self, parameters: Sequence[Tensor], total: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(parameters, total, segment_bytes)
        self.sum = self.vector.new()
        """Of the finished micro-batches, flat; not to be written to."""
        self._views = self.vector.views(self.sum)
        self._direct = all(parameter.dtype == torch.float32 for parameter in parameters)
        self._stale = True
        """Nothing in the sum counts."""
        self._old: set[int] = set()
        """Parameters whose part of the sum is to be written over by the micro-batch that was begun."""
        self._version = 0
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._arrived(number))

    @property
    def copies(self) -> int:
        return 1 + self._outputs

    def require(self, micro_batches: Sequence[int]) -> None:
        super().require(micro_batches)
        if self._stale:
            self.sum.zero_()
            self._stale = False

    def _attach(self) -> None:
        self._version = self.sum._version
        self._old = set(range(len(self._views))) if self._stale else set()
        for number, parameter in enumerate(self.parameters):
            parameter.grad = self._wanted(number)

    def _wanted(self, number: int) -> Tensor | None:
        """What a parameter's `.grad` is as long as nobody but autograd touches it."""
        return self._views[number] if self._direct and number not in self._old else None

    def _arrived(self, number: int) -> Callable[[Tensor], None]:
        """What to call when autograd has a gradient; where it has added it to the sum by itself, nothing is left to do."""
        view = self._views[number]

        def arrived(parameter: Tensor) -> None:
            if number in self._old:
                self._old.discard(number)
                view.copy_(parameter.grad)
            elif self._direct:
                return
            else:
                view.add_(parameter.grad)
            parameter.grad = self._wanted(number)

        return arrived

    def _keep(self, micro_batch: int, loss: float, tokens: int) -> None:
        if any(parameter.grad is not self._wanted(number) for number, parameter in enumerate(self.parameters)):
            self._lose()
            raise ValueError("a parameter's .grad was replaced during a micro-batch: leave gradients to the elastic worker")
        if self._stale:
            self.sum[: self.vector.head].zero_()
            for number in self._old:  # the micro-batch had no use for them
                self._views[number].zero_()
            self._stale = False
        self.vector.enter(self.sum, micro_batch, loss, tokens)

    def _forget_begun(self) -> None:
        if self.sum._version != self._version:
            self._lose()

    def _release(self) -> None:
        self._stale = True

    def _lose(self) -> None:
        self.done, self._stale = frozenset(), True
