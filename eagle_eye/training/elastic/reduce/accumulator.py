"""Gradients of finished micro-batches: `Accumulator`, one running sum, for the reduction "fast"; `TreeAccumulator`, sums at nodes of the summation tree, for "exact"."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .gradient_vector import SEGMENT_BYTES, GradientVector
from .gradients import Gradients, add, detach, store
from .summation_tree import TreeNode, path_to_root


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


@dataclass(frozen=True, slots=True)
class _Sum:
    flat: Tensor
    views: list[Tensor]

    @classmethod
    def new(cls, vector: GradientVector) -> "_Sum":
        flat = vector.new()
        return cls(flat, vector.views(flat))


class TreeAccumulator(Gradients):
    """One vector per node of the summation tree. Autograd makes `.grad` of the parameters anew in each micro-batch.

    A micro-batch is added to its sibling's sum where that is there, so that no `.grad` is copied needlessly. Computing
    them in order keeps at most one sum per level of the tree.
    """

    def __init__(self, parameters: Sequence[Tensor], total: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        super().__init__(parameters, total, segment_bytes)
        self._sums: dict[TreeNode, _Sum] = {}
        self._spare: list[_Sum] = []
        self._lent: _Sum | None = None

    @property
    def sums(self) -> dict[TreeNode, Tensor]:
        """The sum below each of the largest nodes, flat; not to be written to."""
        return {node: each.flat for node, each in self._sums.items()}

    @property
    def copies(self) -> int:
        return len(self._sums) + len(self._spare) + self._outputs + int(self._begun is not None)

    def lend_spare(self) -> Tensor | None:
        """A vector that is not in use, as memory for a reduction; call `return_spare` when nothing writes into it any more."""
        self._lent = self._spare.pop() if self._spare else None
        return None if self._lent is None else self._lent.flat

    def return_spare(self) -> None:
        """The vector that was lent is free again."""
        if self._lent is not None:
            self._spare.append(self._lent)
            self._lent = None

    def _attach(self) -> None:
        detach(self.parameters)

    def _accumulate(self, micro_batch: int, loss: float, tokens: int) -> None:
        path = path_to_root(micro_batch, self.total)
        if path and path[0].sibling in self._sums:
            first, *path = path
            key, kept = first.parent, self._sums[first.sibling]
            add(kept.views, self.parameters)
            del self._sums[first.sibling]
        else:
            key, kept = TreeNode(micro_batch, micro_batch + 1), self._spare.pop() if self._spare else _Sum.new(self.vector)
            kept.flat[: self.vector.head].zero_()
            store(kept.views, self.parameters)
        self.vector.write_stats(kept.flat, micro_batch, loss, tokens)
        detach(self.parameters)
        for edge in path:
            if edge.node != key or edge.sibling not in self._sums:
                break
            other = self._sums.pop(edge.sibling)
            kept.flat.add_(other.flat)
            self._spare.append(other)
            key = edge.parent
        self._sums[key] = kept

    def _drop_begun(self) -> None:
        detach(self.parameters)

    def _release(self) -> None:
        self._spare.extend(self._sums.values())
        self._sums.clear()
