"""Steps of a job as the detectors read them, from a table of what each worker computed."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.protocols import Detector
from eagle_eye.types import Doubles, Layout, RankPlacement, Step

JOB = "bench/watch/run"
BEGAN = 1_700_000_000.0


def layout_of(stages: Sequence[int]) -> Layout:
    """One worker a node; `stages`: pipeline stage of each worker. Workers of one stage are its replicas."""
    replica: dict[int, int] = {}
    places = []
    for rank, stage in enumerate(stages):
        dp = replica[stage] = replica.get(stage, -1) + 1
        places.append(RankPlacement(worker=f"run/node-{rank}/0", node=f"node-{rank}", rank=rank, local_rank=0, dp=dp, pp=stage))
    return Layout(job=JOB, epoch=1, time=BEGAN, coordinator="node-0", launchers={}, placements=tuple(places), reason="start")


def frames_of(compute_s: Iterable[Doubles], layout: Layout, *, tokens: bool) -> Iterator[Frame]:
    """A tick frame for each row of seconds: all wait for the slowest of them, and a tenth of a second besides."""
    workers, end = layout.workers, BEGAN
    for number, row in enumerate(compute_s):
        longest = float(row.max()) + 0.1
        end += longest
        values = {"step_s": np.full(len(row), longest), "forward_s": row / 3.0, "backward_s": row / 3.0 * 2.0, "communication_s": longest - row}
        if tokens:
            values["tokens"] = np.full(len(row), 4096.0)
        step = Step(number=number, epoch=1, workers=workers, end=end, values={name: np.asarray(each, np.float32) for name, each in values.items()})
        yield Frame(job=JOB, number=number + 1, generation=1, time=end, tick=True, steps=(step,), layout=layout)


def told(detector: Detector, frames: Iterable[Frame], kinds: frozenset[str]) -> dict[str, int]:
    """Worker → in which step it was claimed first."""
    found: dict[str, int] = {}
    for frame in frames:
        for claim in detector.update(frame):
            if claim.active and claim.kind in kinds:
                found.setdefault(claim.entity.name, frame.steps[-1].number)
    return found
