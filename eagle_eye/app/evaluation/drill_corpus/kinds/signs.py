"""What a fault leads to: peers that cry, processes that end, workers that are seen to stand, the next epoch."""

from collections.abc import Callable, Mapping, Sequence

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob, DrillKind, DrillLabel, Standstill
from eagle_eye.types import Entity, Kind, RankPlacement

CRIES = (
    ("RuntimeError", "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:51122"),
    ("torch.distributed.DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.21.5"),
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
)
TIMED_OUT = ("torch.distributed.DistBackendError", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE) ran for 600000 milliseconds before timing out.")
MOST_CRIES = 24
ABORTED, NO_PROBE = 0.2, 0.15
"""Shares of the peers, and of the jobs."""
CLOCKS_S = 0.15
"""So far clocks of two nodes differ."""


def one(happen: Callable[[DrillJob], DrillLabel]) -> Callable[[Sequence[DrillJob]], DrillLabel]:
    """Of a drill with a single job."""
    return lambda jobs: happen(jobs[0])


def fault(name: str, family: str, happen: Callable[[DrillJob], DrillLabel], *, lasts_s: int = 25, stages: tuple[int, ...] = (1, 2, 4), peers: int = 4) -> DrillKind:
    """Of one job."""
    return DrillKind(name=name, family=family, fault=True, happen=one(happen), lasts_s=lasts_s, stages=stages, peers=peers)


def twin(name: str, family: str, happen: Callable[[DrillJob], DrillLabel], *, lasts_s: int = 25, stages: tuple[int, ...] = (1, 2, 4), peers: int = 4) -> DrillKind:
    """Of one job."""
    return DrillKind(name=name, family=family, fault=False, happen=one(happen), lasts_s=lasts_s, stages=stages, peers=peers)


def worker_of(place: RankPlacement) -> Entity:
    """As an entity."""
    return Entity(kind=Kind.WORKER, name=place.worker)


def stands_still(job: DrillJob, at: float) -> None:
    """Nobody completes a step any more: somebody is gone."""
    job.effect.still = Standstill(begin=at, others="")


def peers_cry(job: DrillJob, at: float, *, words: tuple[str, str] | None = None, within_s: float = 1.5, within: Sequence[RankPlacement] | None = None) -> None:
    """Some peers see a connection break and end; some clocks have them do so before it happened. NCCL's watchdog ends one in five, which raises nothing; in one job of six nobody has a probe, and only the last words of each are told."""
    no_probe = job.rng.random() < NO_PROBE
    for place in job.peers(MOST_CRIES) if within is None else within:
        kind, message = words or CRIES[int(job.rng.integers(len(CRIES)))]
        time = at + float(job.rng.uniform(-CLOCKS_S, within_s))
        if job.rng.random() < ABORTED:
            job.tell(time + 0.3, "exit", worker_of(place), code=-6, signal="SIGABRT", last_lines=f"terminate called after throwing an instance of 'c10::DistBackendError'\n{kind}: {message}", rank=place.rank)
        elif no_probe:
            job.tell(time + 0.3, "exit", worker_of(place), code=1, signal="", last_lines=f"Traceback (most recent call last):\n{kind}: {message}", rank=place.rank)
        else:
            job.tell(time, "exception", worker_of(place), type=kind, message=message, step=7, rank=place.rank)
            if job.rng.random() < 0.7:
                job.tell(time + float(job.rng.uniform(0.1, 0.6)), "exit", worker_of(place), code=1, signal="", exception=kind.rpartition(".")[2], rank=place.rank)


def restarts(job: DrillJob, at: float, *, reason: str = "death", without: tuple[str, ...] = ()) -> None:
    """The job heals itself a few seconds later, in most drills."""
    if job.rng.random() < 0.8:
        begins = at + float(job.rng.uniform(3.0, 6.0))
        job.effect.restart, job.effect.without = begins, without
        job.tell(begins, "epoch.started", job.itself, node=job.layout.coordinator, late_s=0.05, epoch=2, reason=reason)


def ends_job(job: DrillJob, at: float) -> None:
    """Its coordinator says that it is over."""
    job.tell(at, "job.finished", job.itself, node=job.layout.coordinator, reason="all workers ended")


def stall_told(job: DrillJob, at: float, place: RankPlacement, activity: str, *, phase: str = "forward", state: str = "S", age_s: float = 3.2, marks: int = 4, more: Mapping[str, object] | None = None) -> None:
    """What its agent says of a suspected worker."""
    told: dict[str, object] = {"phase": phase, "state": state, "age_s": age_s, "activity": activity, "marks": marks, "step_marks": marks, "step": 7, "rank": place.rank}
    job.tell(at, "stall", worker_of(place), more={**told, **(more or {})})
