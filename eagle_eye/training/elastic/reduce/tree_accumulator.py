"""`TreeAccumulator` for the reduction "exact": gradients of finished micro-batches as sums at nodes of the summation tree."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from .gradient_vector import SEGMENT_BYTES, GradientVector
from .gradients import Gradients, add, detach, store
from .summation_tree import TreeNode, path_to_root


@dataclass(frozen=True, slots=True)
class _Sum:
    flat: Tensor
    views: list[Tensor]

    @classmethod
    def new(cls, vector: GradientVector) -> "_Sum":
        flat = vector.new()
        return cls(flat, vector.views(flat))


class TreeAccumulator(Gradients):
    """One vector per node. Autograd makes `.grad` of the parameters anew in each micro-batch.

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
