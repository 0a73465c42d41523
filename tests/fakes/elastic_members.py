"""Members of an elastic job, as a coordinator hears of them."""

from collections.abc import Iterable, Sequence
from typing import Any

from eagle_eye.types import Layout, RankPlacement, WorkerStateReport


def member(number: int, node: str = "n0", done: Iterable[int] = (), segments: Iterable[int] = (), **more: Any) -> WorkerStateReport:
    """Worker w<number>; at a boundary, unless something of its step is named."""
    done, segments = tuple(sorted(done)), tuple(sorted(segments))
    phase = more.pop("phase", "computing" if done else "idle")
    return WorkerStateReport(worker=f"w{number}", node=node, step=more.pop("step", 0), done=done, segments=segments, phase=phase, **more)


def layout_of(workers: Sequence[tuple[str, str]], epoch: int = 2) -> Layout:
    """(worker, node) by rank."""
    places = tuple(RankPlacement(worker=worker, node=node, rank=rank, local_rank=0) for rank, (worker, node) in enumerate(workers))
    return Layout(job="job", epoch=epoch, time=0.0, coordinator=workers[0][1], launchers={}, placements=places)
