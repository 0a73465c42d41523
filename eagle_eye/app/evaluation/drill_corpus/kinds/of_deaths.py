"""Workers that end, or raise an exception; and ends at which nobody is at fault."""

from collections.abc import Callable

from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel

from .signs import TIMED_OUT, ends_job, fault, peers_cry, restarts, stands_still, twin, worker_of

CUDA = "torch.AcceleratorError"
LATE_S, VERY_LATE_S = 1.2, 4.0
"""How late the launcher of a dead worker may tell of it, while its peers cry; one in ten is very late."""


def _told_late(job: DrillJob) -> float:
    """In half of the drills the cries come first."""
    how = job.rng.random()
    if how < 0.5:
        return float(job.rng.uniform(0.01, 0.1))
    return float(job.rng.uniform(0.4, LATE_S) if how < 0.9 else job.rng.uniform(LATE_S, VERY_LATE_S))


def _began(job: DrillJob) -> float:
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    return at


def _ended(cause: str, **exit_: object) -> Callable[[DrillJob], DrillLabel]:
    def happen(job: DrillJob) -> DrillLabel:
        at = _began(job)
        job.tell(at, "exit", job.worker, late_s=_told_late(job), rank=job.target.rank, more=exit_)
        peers_cry(job, at + 0.1)
        restarts(job, at)
        return DrillLabel((cause,), (job.worker,))

    return happen


def _raised(*causes: str, kind: str, message: str, xid: int = 0, of_gpu: bool = False, frame: str = "") -> Callable[[DrillJob], DrillLabel]:
    """By the target alone; its peers cry."""

    def happen(job: DrillJob) -> DrillLabel:
        at = _began(job)
        told = {"type": kind, "message": message, "step": 7, "rank": job.target.rank} | ({"frame": frame} if frame else {})
        job.tell(at, "exception", job.worker, late_s=_told_late(job), more=told)
        if xid:
            job.tell(at + float(job.rng.uniform(-0.5, 0.5)), "gpu.xid", job.gpu, code=xid)
        job.tell(at + 0.5, "exit", job.worker, code=1, signal="", exception=kind.rpartition(".")[2], rank=job.target.rank)
        peers_cry(job, at + 0.1)
        restarts(job, at)
        return DrillLabel(causes, (job.gpu if of_gpu else job.worker,))

    return happen


def _everywhere(cause: str, kind: str, message: str) -> Callable[[DrillJob], DrillLabel]:
    """The same of all workers within a second: the script's or its input's."""

    def happen(job: DrillJob) -> DrillLabel:
        at = _began(job)
        for place in job.layout.placements:
            time = at + float(job.rng.uniform(0.0, 0.6))
            job.tell(time, "exception", worker_of(place), type=kind, message=message.replace("#", str(place.rank)), step=7, rank=place.rank)
            job.tell(time + 0.3, "exit", worker_of(place), code=1, signal="", exception=kind.rpartition(".")[2], rank=place.rank)
        restarts(job, at)
        return DrillLabel((cause,), NOBODY)

    return happen


def _exit_everywhere(job: DrillJob) -> DrillLabel:
    at = _began(job)
    for place in job.layout.placements:
        job.tell(at + float(job.rng.uniform(0.0, 0.5)), "exit", worker_of(place), code=2, signal="", rank=place.rank)
    return DrillLabel(("worker exited",), NOBODY)


def _all_killed(job: DrillJob) -> DrillLabel:
    """By whoever ends jobs, without a notice."""
    at = _began(job)
    for place in job.layout.placements:
        job.tell(at + float(job.rng.uniform(0.0, 0.5)), "exit", worker_of(place), code=-9, signal="SIGKILL", rank=place.rank)
    return DrillLabel(("worker killed",), NOBODY)


def _all_end_well(job: DrillJob) -> DrillLabel:
    at = _began(job)
    for place in job.layout.placements:
        job.tell(at + float(job.rng.uniform(0.0, 1.0)), "worker.finished", worker_of(place), rank=place.rank, step=7)
    ends_job(job, at + 1.5)
    return DrillLabel(("",), NOBODY)


def _killed_for_memory(job: DrillJob) -> DrillLabel:
    """By the kernel: its log says so, and the cgroup's counter."""
    at = _began(job)
    job.tell(at, "exit", job.worker, late_s=_told_late(job), code=-9, signal="SIGKILL", rank=job.target.rank, status="out of memory", reason="the kernel's out-of-memory killer ended it")
    killed = "Out of memory: Killed process 4711 (python) total-vm:812345678kB"
    job.tell(at + 0.2, "kernel.error", job.node, node=job.target.node, message=killed, component="memory", code="oom_kill")
    peers_cry(job, at + 0.1)
    restarts(job, at)
    return DrillLabel(("out of memory",), (job.worker,))


def _thread(job: DrillJob) -> DrillLabel:
    """A thread beside the main one raises: its worker trains on."""
    job.tell(job.onset + 0.4, "thread.exception", job.worker, type="ValueError", message="cannot write the log", thread="logger", rank=job.target.rank)
    return DrillLabel(("thread exception", ""), NOBODY)


def _storage(job: DrillJob) -> DrillLabel:
    at = _began(job)
    told = {"type": "OSError", "message": "[Errno 28] No space left on device: '/ckpt/step-7'", "errno": "ENOSPC", "path": "/ckpt/step-7", "free_bytes": 4096, "step": 7}
    job.tell(at, "exception", job.worker, rank=job.target.rank, late_s=_told_late(job), more=told)
    peers_cry(job, at + 0.1)
    restarts(job, at)
    return DrillLabel(("storage error",), NOBODY)


def _service_away(job: DrillJob) -> DrillLabel:
    """The script's own connection to some service is refused: none of the peers'."""
    told = _raised("exception", kind="requests.exceptions.ConnectionError", message="HTTPSConnectionPool(host='hub', port=443): Connection refused", frame="train.py:31 in load")
    return told(job)


def _not_one_fault(job: DrillJob) -> DrillLabel:
    """Connections break and nobody has ended."""
    at = _began(job)
    peers_cry(job, at + 0.1)
    restarts(job, at)
    return DrillLabel(("network error",), NOBODY)


def _collective_times_out(job: DrillJob) -> DrillLabel:
    at = _began(job)
    peers_cry(job, at + 2.0, words=TIMED_OUT)
    restarts(job, at + 4.0)
    return DrillLabel(("collective timeout", "network error", "job stalled"), NOBODY)



SAME = "the same of all workers"
KINDS = (
    fault("worker killed", "death", _ended("worker killed", code=-9, signal="SIGKILL")),
    fault("worker terminated by a signal from outside", "death", _ended("worker killed", code=-15, signal="SIGTERM")),
    fault("worker exits without a word", "death", _ended("worker exited", code=3, signal="")),
    fault("segmentation fault of a worker", "death", _ended("worker exited", code=-11, signal="SIGSEGV")),
    fault("worker killed for want of memory", "death", _killed_for_memory),
    fault("exception of one worker", "exception", _raised("exception", kind="IndexError", message="index 50304 is out of bounds for dimension 0", frame="train.py:88 in batch")),
    fault("out of GPU memory", "exception", _raised("out of memory", kind="torch.OutOfMemoryError", message="CUDA out of memory. Tried to allocate 2.50 GiB.")),
    fault("illegal memory access of the program (Xid 31)", "exception", _raised("program error on the gpu", "illegal memory access", kind=CUDA, message="CUDA error: an illegal memory access was encountered", xid=31)),
    fault("launch failure", "exception", _raised("cuda error", kind=CUDA, message="CUDA error: unspecified launch failure")),
    fault("ECC error", "hardware", _raised("ecc error", kind=CUDA, message="CUDA error: uncorrectable ECC error encountered")),
    fault("ECC error with Xid 48", "hardware", _raised("gpu fault", "ecc error", kind=CUDA, message="CUDA error: uncorrectable ECC error encountered", xid=48, of_gpu=True)),
    fault("NVLink error", "hardware", _raised("nvlink error", kind=CUDA, message="CUDA error: uncorrectable NVLink error detected during the execution")),
    fault("GPU is lost", "hardware", _raised("gpu driver error", kind="pynvml.NVMLError_GpuIsLost", message="GPU is lost")),
    fault("no room for a checkpoint", "storage", _storage),
    fault("connections break, nobody has ended", "network", _not_one_fault),
    fault("collective timeout", "network", _collective_times_out),
    twin("all workers end well", "death", _all_end_well),
    twin("all workers exit with the same code", "death", _exit_everywhere),
    twin("all workers are killed at once", "death", _all_killed),
    twin(f"{SAME}: an exception", "exception", _everywhere("exception", "ValueError", "too many values to unpack in batch #")),
    twin(f"{SAME}: out of memory", "exception", _everywhere("out of memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.50 GiB. GPU #")),
    twin(f"{SAME}: a device-side assert", "exception", _everywhere("cuda error", CUDA, "CUDA error: device-side assert triggered")),
    twin("words of ECC from the script", "hardware", _raised("exception", kind="ValueError", message="row 7: 'uncorrectable ECC error encountered'", frame="train.py:12 in parse")),
    twin("words of NVLink from the script", "hardware", _raised("exception", kind="KeyError", message="'nvlink'", frame="train.py:12 in parse")),
    twin("a service that the script asks is away", "network", _service_away),
    twin("a thread raises", "exception", _thread),
)  # fmt: skip
