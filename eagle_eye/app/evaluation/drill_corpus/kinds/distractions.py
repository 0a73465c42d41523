"""What happens beside a drill and has nothing to do with it: on another node, within half a minute. It asks for nothing, and nobody is to be accused for it."""

from collections.abc import Callable

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob
from eagle_eye.types import Entity, Kind, RankPlacement

SHARE = 0.3
"""Of the drills."""
AROUND_S = 25.0


def distract(job: DrillJob) -> str:
    """The cause of the incident that may be told of it; '' = nothing happens."""
    elsewhere = [place for place in job.layout.placements if place.node != job.target.node]
    if job.rng.random() >= SHARE or not elsewhere:
        return ""
    place = elsewhere[int(job.rng.integers(len(elsewhere)))]
    at = job.onset + float(job.rng.uniform(-AROUND_S, AROUND_S / 2.0))
    cause, happens = _DISTRACTIONS[int(job.rng.integers(len(_DISTRACTIONS)))]
    happens(job, place, at)
    return cause


def _mild_xid(job: DrillJob, place: RankPlacement, at: float) -> None:
    job.tell(at, "gpu.xid", Entity(kind=Kind.GPU, name=place.gpu), node=place.node, code=63)


def _disk(job: DrillJob, place: RankPlacement, at: float) -> None:
    job.tell(at, "kernel.error", Entity(kind=Kind.NODE, name=place.node), message="blk_update_request: I/O error, dev sdb", component="disk", code="io_error", device="sdb")


def _drained(job: DrillJob, place: RankPlacement, at: float) -> None:
    job.tell(at, "scheduler.node_state", Entity(kind=Kind.NODE, name=place.node), scheduler="slurm", states="drain", reason="maintenance on Friday")


def _line(job: DrillJob, place: RankPlacement, at: float) -> None:
    job.tell(at, "log.error", Entity(kind=Kind.WORKER, name=place.worker), message="NCCL WARN Call to ibv_reg_mr failed", component="nccl", code="ibv_failed")


def _collector(job: DrillJob, place: RankPlacement, at: float) -> None:
    job.tell(at, "collector.failing", Entity(kind=Kind.NODE, name=place.node), collector="fabric", reason="PermissionError")


_DISTRACTIONS: tuple[tuple[str, Callable[[DrillJob, RankPlacement, float], None]], ...] = (
    ("gpu notice", _mild_xid), ("kernel error", _disk), ("node state", _drained), ("log error", _line), ("telemetry failing", _collector),
)  # fmt: skip
