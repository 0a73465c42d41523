"""Oobleck's own rules for a loss of nodes: what our reconfiguration must never be worse than.

A damaged pipeline that still has n0 nodes goes on with the template for what is left. One with fewer borrows from the
end of the largest pipeline that keeps n0. Where none can lend, short pipelines are merged, the last resort being a
healthy one. Pipelines are then ordered by size.
"""

from collections.abc import Collection, Sequence

Pipelines = tuple[tuple[str, ...], ...]
"""Nodes of each pipeline in the order of its stages."""


def oobleck_pipelines(pipelines: Sequence[Sequence[str]], lost: Collection[str], least: int) -> Pipelines:
    """The pipelines of at least `least` nodes that are left; none if fewer nodes are left."""
    left = [survivors for pipeline in pipelines if (survivors := [node for node in pipeline if node not in lost])]
    if sum(map(len, left)) < least:
        return ()
    for short in [pipeline for pipeline in left if len(pipeline) < least]:
        _borrow(short, left, least)
    _merge(left, least)
    return tuple(tuple(pipeline) for pipeline in sorted(left, key=len))


def _borrow(short: list[str], left: list[list[str]], least: int) -> None:
    """From the end of the largest, the last of equals; it lends what is needed before another one is asked."""
    while len(short) < least:
        lender = max(reversed(left), key=len)
        lent = min(least - len(short), len(lender) - least)
        if lent <= 0:
            return
        short.extend(reversed(lender[-lent:]))
        del lender[-lent:]


def _merge(left: list[list[str]], least: int) -> None:
    """Short ones in order; merged ones go to the end, and a healthy one is taken before a merged one."""
    short = [pipeline for pipeline in left if len(pipeline) < least]
    healthy = [pipeline for pipeline in left if len(pipeline) >= least]
    merged: list[list[str]] = []
    while short:
        whole: list[str] = []
        while len(whole) < least:
            whole.extend(next(group for group in (short, healthy, merged) if group).pop(0))
        merged.append(whole)
    left[:] = [*healthy, *merged]
