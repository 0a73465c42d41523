"""A job that stands: because of a worker that hangs or was stopped, or of nobody; and pauses that look like it."""

from collections.abc import Callable

from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel, Standstill

from .signs import TIMED_OUT, fault, peers_cry, restarts, stall_told, twin, worker_of

SUSPECTED_S = 3.2
"""From the last mark to the event of an agent: three iterations."""
FEW = 12
PAUSES = ("", "pause", "job slow", "input stalled")


def _hangs(cause: str, activity: str, *, phase: str = "forward", state: str = "S", times_out: bool = False, ends_s: float = 16.0) -> Callable[[DrillJob], DrillLabel]:
    def happen(job: DrillJob) -> DrillLabel:
        at = job.onset + float(job.rng.uniform(0.0, 0.9))
        job.effect.still = Standstill(begin=at, who=(job.target.rank,), activity=activity, phase=phase, state=state)
        suspected = at + (0.7 if state == "T" else SUSPECTED_S)
        stall_told(job, suspected, job.target, activity, phase=phase, state=state, age_s=suspected - at)
        for place in job.peers(FEW):
            stall_told(job, at + SUSPECTED_S + float(job.rng.uniform(0.0, 1.0)), place, "awaits peers", phase="communication", marks=5)
        if times_out:
            peers_cry(job, at + 14.0, words=TIMED_OUT)
        restarts(job, at + ends_s, reason="stall")
        return DrillLabel((cause,), (job.worker,))

    return happen


def _nobody_moves(job: DrillJob) -> DrillLabel:
    """All wait for one another in the same place: a link, or the network, of which nothing is seen."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    job.effect.still = Standstill(begin=at)
    recorded = {"gpu": 1, "collective": "allreduce", "collective_group": "default_pg", "collective_number": 812, "collective_pending": 1}
    for place in job.layout.placements:
        stall_told(job, at + SUSPECTED_S, place, "awaits peers", phase="communication", marks=5, more=recorded)
    restarts(job, at + 40.0, reason="stall")
    return DrillLabel(("job stalled",), NOBODY)


def _ended_early(job: DrillJob) -> DrillLabel:
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    job.effect.still = Standstill(begin=at, others="")
    job.tell(at, "worker.finished", worker_of(job.target), rank=job.target.rank, step=7, code=0)
    peers_cry(job, at + 0.5)
    restarts(job, at + 1.0)
    return DrillLabel(("worker ended early",), (job.worker,))


def _pauses(activity: str, phase: str, *, lasts_s: float = 18.0, state: str = "S") -> Callable[[DrillJob], DrillLabel]:
    """One worker does something that takes a while, the others wait; then all go on."""

    def happen(job: DrillJob) -> DrillLabel:
        at = job.onset + float(job.rng.uniform(0.0, 0.9))
        ends = at + lasts_s * float(job.rng.uniform(0.7, 1.2))
        job.effect.still = Standstill(begin=at, end=ends, who=(job.target.rank,), activity=activity, phase=phase, state=state)
        if phase not in ("evaluation", "checkpoint"):
            stall_told(job, at + SUSPECTED_S, job.target, activity, phase=phase, state=state, more={"doing": "works in train.py:212 validate"})
        for place in job.peers(FEW):
            stall_told(job, at + SUSPECTED_S + float(job.rng.uniform(0.0, 1.0)), place, "awaits peers", phase="communication", marks=5)
        for place in (job.target, *job.peers(FEW)):
                    job.tell(ends, "resumed", worker_of(place), step=7)
        return DrillLabel(PAUSES, NOBODY)

    return happen


def _all_save(job: DrillJob) -> DrillLabel:
    """A checkpoint of all: the storage takes its time."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    job.effect.still = Standstill(begin=at, end=at + float(job.rng.uniform(8.0, 20.0)), others="working", others_phase="checkpoint")
    return DrillLabel(PAUSES, NOBODY)


KINDS = (
    fault("worker stopped by a signal", "stall", _hangs("worker stopped", "stopped", state="T")),
    fault("worker hangs", "stall", _hangs("python hang", "hung"), lasts_s=30),
    fault("worker hangs in its backward pass, its peers time out", "stall", _hangs("python hang", "hung", phase="backward", times_out=True), lasts_s=30),
    fault("worker stands without a proof", "stall", _hangs("python hang", "standing", ends_s=40.0), lasts_s=45),
    fault("all wait for one another", "stall", _nobody_moves, lasts_s=45),
    fault("worker ends too early", "stall", _ended_early),
    twin("one worker evaluates", "stall", _pauses("working", "evaluation"), lasts_s=30),
    twin("one worker compiles", "stall", _pauses("working", "forward"), lasts_s=30),
    twin("one worker waits for its input", "stall", _pauses("standing", "data", lasts_s=7.0), lasts_s=30),
    twin("a debugger holds a worker", "stall", _pauses("traced", "forward", state="t"), lasts_s=30),
    twin("all save a checkpoint", "stall", _all_save, lasts_s=30),
)
