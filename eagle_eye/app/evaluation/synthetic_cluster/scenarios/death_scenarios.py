"""Workers that die, and exceptions: of one, whose machine is suspected, and of all, which are the program's."""

from eagle_eye.app.evaluation.drill_corpus.drill_job import DrillJob
from eagle_eye.app.evaluation.drill_corpus.kinds.signs import ends_job, stands_still, worker_of
from eagle_eye.app.evaluation.synthetic_cluster.job_scenario import (
    JobScenario,
    ScenarioPair,
    alone,
    as_drill,
    worker_or_gpu,
)
from eagle_eye.types import Kind

from .step_changes import reads, reads_everywhere


def _ecc_in_a_line(job: DrillJob) -> None:
    """A script reads logs of a cluster and writes out what it has read: training goes on."""
    job.tell(job.onset + 0.4, "log.notice", job.worker, message="row 7: 'uncorrectable ECC error encountered'", component="python", code="")


def _much_memory(job: DrillJob) -> None:
    """A worker holds ten times what it held; its host has room for it."""
    reads(job, Kind.WORKER, job.target.worker, {"rss_bytes": 2e10})


def _full_gpus(job: DrillJob) -> None:
    """By a cache of the framework."""
    reads_everywhere(job, Kind.GPU, {"memory_percent": 98.0})


def _job_is_ended(job: DrillJob) -> None:
    """As its owner does with scancel: told beforehand, and all of them."""
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    for place in job.layout.placements:
        job.tell(at + float(job.rng.uniform(0.0, 0.5)), "exit", worker_of(place), code=-15, signal="SIGTERM", expected=1, rank=place.rank)
    ends_job(job, at + 0.8)


def _service_away(job: DrillJob) -> None:
    """Where the script sends its losses to: it logs that, and trains on."""
    job.tell(job.onset + 0.4, "log.notice", job.worker, message="HTTPSConnectionPool(host='metrics', port=443): Connection refused", component="python", code="")


PAIRS = (
    ScenarioPair(
        JobScenario(name="worker killed", kind="death", fault=True, at=worker_or_gpu, happen=as_drill("worker killed")),
        JobScenario(name="all workers are ended at once, with their job", kind="death", fault=False, happen=alone(_job_is_ended)),
    ),
    ScenarioPair(
        JobScenario(name="segmentation fault of a worker", kind="death", fault=True, at=worker_or_gpu, happen=as_drill("segmentation fault of a worker")),
        JobScenario(name="a thread raises, its worker trains on", kind="death", fault=False, happen=as_drill("a thread raises")),
    ),
    ScenarioPair(
        JobScenario(name="worker killed by the kernel for want of memory", kind="out of memory", fault=True, at=worker_or_gpu, happen=as_drill("worker killed for want of memory")),
        JobScenario(name="a worker holds much memory", kind="out of memory", fault=False, happen=alone(_much_memory)),
    ),
    ScenarioPair(
        JobScenario(name="out of GPU memory, all workers", kind="out of memory", fault=True, happen=as_drill("the same of all workers: out of memory")),
        JobScenario(name="the memory of all GPUs is nearly full", kind="out of memory", fault=False, happen=alone(_full_gpus)),
    ),
    ScenarioPair(
        JobScenario(name="exception of the program, all workers", kind="program", fault=True, happen=as_drill("the same of all workers: an exception")),
        JobScenario(name="a service that nobody needs is away", kind="program", fault=False, happen=alone(_service_away)),
    ),
    ScenarioPair(
        JobScenario(name="ECC error", kind="gpu", fault=True, at=worker_or_gpu, happen=as_drill("ECC error")),
        JobScenario(name="a line of a log with the words of an ECC error", kind="gpu", fault=False, happen=alone(_ecc_in_a_line)),
    ),
)
