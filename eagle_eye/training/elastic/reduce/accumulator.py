"""`Accumulator` for the reduction "fast": gradients of finished micro-batches as one running sum."""

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
    anything. Otherwise the sum is lost, and with it all finished micro-batches of this worker in the step.
    """

    def __init__(self, parameters: Sequence[Tensor], total: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(parameters, total, segment_bytes)
        self.sum = self.vector.new()
        """Of the finished micro-batches, flat; not to be written to."""
        self._views = self.vector.views(self.sum)
        self._direct = all(parameter.dtype == torch.float32 for parameter in parameters)
        self._stale = True
        """The sum holds values of an older step, to be overwritten."""
        self._to_overwrite: set[int] = set()
        """Parameters whose part of the sum the micro-batch that was begun overwrites."""
        self._version = 0
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(self._on_gradient(number))

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
        self._to_overwrite = set(range(len(self._views))) if self._stale else set()
        for number, parameter in enumerate(self.parameters):
            parameter.grad = self._expected_grad(number)

    def _expected_grad(self, number: int) -> Tensor | None:
        """What a parameter's `.grad` is as long as only autograd writes to it."""
        return self._views[number] if self._direct and number not in self._to_overwrite else None

    def _on_gradient(self, number: int) -> Callable[[Tensor], None]:
        """What to call when autograd has a gradient; where it has added it to the sum by itself, nothing is left to do."""
        view = self._views[number]

        def arrived(parameter: Tensor) -> None:
            if number in self._to_overwrite:
                self._to_overwrite.discard(number)
                view.copy_(parameter.grad)
            elif self._direct:
                return
            else:
                view.add_(parameter.grad)
            parameter.grad = self._expected_grad(number)

        return arrived

    def _accumulate(self, micro_batch: int, loss: float, tokens: int) -> None:
        if any(parameter.grad is not self._expected_grad(number) for number, parameter in enumerate(self.parameters)):
            self._discard()
            raise ValueError("a parameter's .grad was replaced during a micro-batch: leave gradients to the elastic worker")
        if self._stale:
            self.sum[: self.vector.head].zero_()
            for number in self._to_overwrite:  # the micro-batch had no use for them
                self._views[number].zero_()
            self._stale = False
        self.vector.write_stats(self.sum, micro_batch, loss, tokens)

    def _drop_begun(self) -> None:
        if self.sum._version != self._version:
            self._discard()

    def _release(self) -> None:
        self._stale = True

    def _discard(self) -> None:
        self.done, self._stale = frozenset(), True
