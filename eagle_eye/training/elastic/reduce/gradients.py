"""`Gradients`: what a worker has accumulated of the micro-batches that it finished in this step.

    gradients.begin(micro_batch)
    loss, tokens = trained.run(step, micro_batch)      # forward and backward
    gradients.finish(micro_batch, loss, tokens)

They are kept until the step is committed: also when a peer is lost, a reduction breaks or a new epoch starts. A reduction
reads them and writes the mean over all micro-batches to an output vector. A `begin` without a `finish` has no effect.
"""

import abc
from collections.abc import Sequence

import torch
from torch import Tensor

from .gradient_vector import SEGMENT_BYTES, GradientVector, MicroBatchStats


class Gradients(abc.ABC):
    """What the worker has computed in this step; `TreeAccumulator` (exact) and `Accumulator` (fast) keep it differently."""

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
        """Accumulate the gradients of a micro-batch, with its mean loss and number of tokens."""
        if self._begun != micro_batch:
            raise ValueError(f"micro-batch {micro_batch} is not the one that was begun ({self._begun})")
        self._accumulate(micro_batch, loss, tokens)
        self._begun = None
        self.done |= {micro_batch}

    def abandon(self) -> None:
        """Drop the micro-batch that was begun and not finished, if there is one."""
        if self._begun is not None:
            self._begun = None
            self._drop_begun()

    def clear(self) -> None:
        """Drop everything: the step was committed, or will not be. Reduced segments are kept."""
        self.abandon()
        self.done = frozenset()
        self._release()

    def require(self, micro_batches: Sequence[int]) -> None:
        """Raises ValueError unless exactly these are finished."""
        self.abandon()
        if self.done != frozenset(micro_batches):
            raise ValueError(f"the finished micro-batches are {sorted(self.done)}, those to reduce are {sorted(micro_batches)}")

    def open_output(self) -> Tensor:
        """The vector that a reduction writes into; what the last one wrote is overwritten.

        After a reduction that broke it is a new one: an abandoned receive may still write into the old.
        """
        if self._output is None or self._output_is_torn:
            self._output = self.vector.new()
        self._output_is_torn = True
        return self._output

    def close_output(self) -> None:
        """The reduction is complete: nothing writes into the vector any more."""
        self._output_is_torn = False

    def mean_gradient(self, reduced: Sequence[Tensor | None]) -> tuple[Tensor, MicroBatchStats]:
        """The mean gradient of the step, flat in the order of the parameters, and loss and tokens of its micro-batches.

        `reduced` holds all segments. The gradient shares memory with `reduced`: scaling it scales both.
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
    def _accumulate(self, micro_batch: int, loss: float, tokens: int) -> None: ...

    @abc.abstractmethod
    def _drop_begun(self) -> None: ...

    @abc.abstractmethod
    def _release(self) -> None: ...

    @property
    def _outputs(self) -> int:
        return int(self._output is not None)


def detach(parameters: Sequence[Tensor]) -> None:
    """Set their `.grad` to None."""
    for parameter in parameters:
        parameter.grad = None


def add(views: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Add the parameters' gradients, whatever their precision; one that has none adds zeros.

    Those zeros are really added: they turn a negative zero into a positive one, on every worker alike.
    """
    with torch.no_grad():
        with_gradient = [(view, parameter.grad) for view, parameter in zip(views, parameters, strict=True) if parameter.grad is not None]
        if with_gradient:
            torch._foreach_add_([view for view, _ in with_gradient], [gradient for _, gradient in with_gradient])
        for view, parameter in zip(views, parameters, strict=True):
            if parameter.grad is None:
                view.add_(0.0)


def store(views: Sequence[Tensor], parameters: Sequence[Tensor]) -> None:
    """Overwrite with the parameters' gradients; one that has none is zero."""
    with torch.no_grad():
        with_gradient = [(view, parameter.grad) for view, parameter in zip(views, parameters, strict=True) if parameter.grad is not None]
        if with_gradient:
            torch._foreach_copy_([view for view, _ in with_gradient], [gradient for _, gradient in with_gradient])
        for view, parameter in zip(views, parameters, strict=True):
            if parameter.grad is None:
                view.zero_()
