"""The summation tree: a fixed binary tree over micro-batches, which sets the order in which their gradients are added.

Floating-point addition is not associative, so the order of the additions makes the bits. Here the sum of a range is
the sum of its halves' sums, on whichever worker: the result has the same bits for one worker and for a thousand, and
after every loss and every join.

A worker that has all leaves below a node adds them up at once and keeps the node's sum alone. Computing its
micro-batches in order it never keeps more than one sum per level of the tree, like the digits of a binary counter.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")


class TreeNode(NamedTuple):
    """The micro-batches first to end - 1, whose gradients are added up below one node of the tree."""

    first: int
    end: int

    @property
    def is_leaf(self) -> bool:
        return self.end - self.first == 1

    @property
    def halves(self) -> tuple["TreeNode", "TreeNode"]:
        """Its two children. Only of a node that is no leaf."""
        middle = (self.first + self.end) // 2
        return TreeNode(self.first, middle), TreeNode(middle, self.end)


class TreeEdge(NamedTuple):
    """One edge on the path from a leaf to the root: `node` and `sibling` together make `parent`."""

    node: TreeNode
    sibling: TreeNode
    parent: TreeNode


def path_to_root(leaf: int, total: int) -> list[TreeEdge]:
    """From one micro-batch to the root of the tree over `total` of them."""
    node, steps = TreeNode(0, total), []
    while not node.is_leaf:
        left, right = node.halves
        below, beside = (left, right) if leaf < right.first else (right, left)
        steps.append(TreeEdge(below, beside, node))
        node = below
    return steps[::-1]


def nodes_of(micro_batches: Iterable[int], total: int) -> tuple[TreeNode, ...]:
    """The largest nodes below which there are no micro-batches but these, in order.

    Raises ValueError for a micro-batch that is not one of 0 to total - 1.
    """
    ours = frozenset(micro_batches)
    unknown = sorted(each for each in ours if not 0 <= each < total)
    if unknown:
        raise ValueError(f"micro-batches {unknown} are none of the step's {total}: they count from 0 to {total - 1}")
    return tuple(_largest(TreeNode(0, total), ours)) if ours else ()


def _largest(node: TreeNode, ours: Collection[int]) -> Iterable[TreeNode]:
    inside = sum(each in ours for each in range(*node))
    if inside == node.end - node.first:
        yield node
    elif inside:
        for half in node.halves:
            yield from _largest(half, ours)


def combine(values: Mapping[TreeNode, Value], total: int, add: Callable[[Value, Value], Value]) -> Value:
    """The value of the root, from those of nodes that together cover the tree once.

    Raises ValueError for a micro-batch that no node covers.
    """

    def value_of(node: TreeNode) -> Value:
        if node in values:
            return values[node]
        if node.is_leaf:
            raise ValueError(f"no worker contributes micro-batch {node.first} of {total}")
        left, right = node.halves
        return add(value_of(left), value_of(right))

    return value_of(TreeNode(0, total))


def slices(length: int, parts: int) -> list[slice]:
    """`length` elements in `parts` contiguous parts, as even as can be; some are empty if there are not enough."""
    return [slice(part * length // parts, (part + 1) * length // parts) for part in range(parts)]
