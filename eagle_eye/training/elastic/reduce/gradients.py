"""The gradients of the micro-batches that a worker has finished in this step.

    gradients.begin(micro_batch)
    loss, tokens = trained.run(step, micro_batch)      # forward and backward
    gradients.finish(micro_batch, loss, tokens)

They stay until the step is committed: a lost peer, a broken reduction, a new epoch take nothing of them away. A
reduction reads them and writes the mean over all micro-batches to another place. A `begin` without a `finish` counts
for nothing.
"""

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from .gradient_vector import SEGMENT_BYTES, GradientVector, MicroBatchStats


class Gradients(abc.ABC):
    """What the worker has computed in this step; `TreeAccumulator` and `Accumulator` differ in what they keep of it."""

    def __init__(self, parameters: Sequence[Tensor], total: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        if total < 1:
            raise ValueError(f"a step has at least one micro-batch, not {total}")
        self.vector = GradientVector(parameters, total, segment_bytes)
        self.parameters = list(parameters)
        self.done: frozenset[int] = frozenset()
        """Micro-batches that are finished."""
        self._begun: int | None = None
        self._output: Tensor | None = None
        self._output_is_torn = False

    @property
    def total(self) -> int:
        """Micro-batches of a step, over all workers."""
        return self.vector.total

    @property
    def segments(self) -> list[slice]:
        """Parts of the flat vector that are reduced one by one."""
        return self.vector.segments

    def begin(self, micro_batch: int) -> None:
        """Forward and backward of a micro-batch follow."""
        if not 0 <= micro_batch < self.total or micro_batch in self.done:
            raise ValueError(f"micro-batch {micro_batch} of {self.total} cannot be begun: finished are {sorted(self.done)}")
        self.abandon()
        self._attach()
        self._begun = micro_batch

    def finish(self, micro_batch: int, loss: float, tokens: int) -> None:
        """Its gradients are there: keep them, with its mean loss and the number of its tokens."""
        if self._begun != micro_batch:
            raise ValueError(f"micro-batch {micro_batch} is not the one that was begun ({self._begun})")
        self._keep(micro_batch, loss, tokens)
        self._begun = None
        self.done |= {micro_batch}

    def abandon(self) -> None:
        """Forget the micro-batch that was begun and not finished, if there is one."""
        if self._begun is not None:
            self._begun = None
            self._forget_begun()

    def clear(self) -> None:
        """The step was committed, or belongs to the past: begin the next with nothing. Reduced segments stay."""
        self.abandon()
        self.done = frozenset()
        self._release()

    def require(self, micro_batches: Sequence[int]) -> None:
        """Raises ValueError unless exactly these are finished."""
        self.abandon()
        if self.done != frozenset(micro_batches):
            raise ValueError(f"finished are the micro-batches {sorted(self.done)}, to be reduced are {sorted(micro_batches)}")

    def open_output(self) -> Tensor:
        """The vector that a reduction writes into; what the last one wrote is overwritten.

        After one that broke it is another one: a receive that was given up may still write into the old.
        """
        if self._output is None or self._output_is_torn:
            self._output = self.vector.new()
        self._output_is_torn = True
        return self._output

    def close_output(self) -> None:
        """Nothing writes into it any more."""
        self._output_is_torn = False

    def mean_gradient(self, reduced: Sequence[Tensor | None]) -> tuple[Tensor, MicroBatchStats]:
        """The mean gradient of the step, flat in the order of the parameters, and what its micro-batches say of themselves.

        `reduced` holds all segments. The gradient lies where it was reduced to: whoever scales it scales `reduced`.
        """
        missing = [index for index, segment in enumerate(reduced) if segment is None]
        if missing or len(reduced) != len(self.segments):
            raise ValueError(f"segments {missing} of {len(self.segments)} are not reduced")
        output = self._output if self._output is not None else self.open_output()
        for span, segment in zip(self.segments, reduced, strict=True):
            if segment is not None and segment.data_ptr() != output[span].data_ptr():
                output[span].copy_(segment)
        return output[self.vector.head :], self.vector.stats(output)

    @property
    @abc.abstractmethod
    def copies(self) -> int:
        """Vectors that it holds or, with `.grad` of the parameters, causes to be held."""

    @abc.abstractmethod
    def _attach(self) -> None:
        """Make the parameters ready for a backward."""

    @abc.abstractmethod
    def _keep(self, micro_batch: int, loss: float, tokens: int) -> None: ...

    @abc.abstractmethod
    def _forget_begun(self) -> None: ...

    @abc.abstractmethod
    def _release(self) -> None: ...

    @property
    def _outputs(self) -> int:
        return int(self._output is not None)


def detach(parameters: Sequence[Tensor]) -> None:
    """Take their gradients away."""
    for parameter in parameters:
        parameter.grad = None


def add(views: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Add the parameters' gradients, whatever their precision; one that has none adds zeros.

    Those zeros are really added: they turn a negative zero into a positive one, wherever the sum is taken.
    """
    with torch.no_grad():
        there = [(view, parameter.grad) for view, parameter in zip(views, parameters, strict=True) if parameter.grad is not None]
        if there:
            torch._foreach_add_([view for view, _ in there], [gradient for _, gradient in there])
        for view, parameter in zip(views, parameters, strict=True):
            if parameter.grad is None:
                view.add_(0.0)


def store(views: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Put the parameters' gradients in the place of what was there; one that has none is zero."""
    with torch.no_grad():
        there = [(view, parameter.grad) for view, parameter in zip(views, parameters, strict=True) if parameter.grad is not None]
        if there:
            torch._foreach_copy_([view for view, _ in there], [gradient for _, gradient in there])
        for view, parameter in zip(views, parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
