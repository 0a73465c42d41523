"""GPUs, links, mounts, and what logs and sites say of them: those that stop a job, and those that only inform."""

from collections.abc import Callable

import numpy as np

from eagle_eye.app.evaluation.drill_corpus.drill_frames import MOUNT, PORTS
from eagle_eye.app.evaluation.drill_corpus.drill_job import NOBODY, DrillJob, DrillLabel, TickSignals
from eagle_eye.types import Entity, Kind

from .signs import fault, peers_cry, restarts, stands_still, twin

HARD_XIDS = (48, 62, 64, 74, 95, 109, 119, 140)
"""Of which the driver's maker advises a reset."""
SOFT_XIDS = (94, 8, 32, 80)
MILD_XIDS = (43, 63, 92, 37)
LONG_S = 40


def _gpu_breaks(job: DrillJob) -> DrillLabel:
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    job.tell(at, "gpu.xid", job.gpu, code=int(job.rng.choice(HARD_XIDS)), late_s=float(job.rng.uniform(0.1, 1.5)))
    job.tell(at + 0.3, "exception", job.worker, type="torch.AcceleratorError", message="CUDA error: unspecified launch failure", step=7, rank=job.target.rank)
    peers_cry(job, at + 0.4)
    restarts(job, at)
    return DrillLabel(("gpu fault",), (job.gpu,))


def _off_the_bus(job: DrillJob) -> DrillLabel:
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    job.tell(at, "gpu.xid", job.gpu, code=79)
    job.tell(at + 1.0, "gpu.lost", job.gpu, reason="GPU is lost")
    peers_cry(job, at + 0.4)
    restarts(job, at)
    return DrillLabel(("gpu fault", "gpu lost"), (job.gpu,))


def _gpu_error(job: DrillJob) -> DrillLabel:
    at = job.onset + float(job.rng.uniform(0.0, 0.9))
    stands_still(job, at)
    job.tell(at, "gpu.xid", job.gpu, code=int(job.rng.choice(SOFT_XIDS)))
    job.tell(at + 0.2, "exception", job.worker, type="torch.AcceleratorError", message="CUDA error: unspecified launch failure", step=7, rank=job.target.rank)
    peers_cry(job, at + 0.4)
    restarts(job, at)
    return DrillLabel(("gpu error",), (job.gpu,))


def _mild_xid(job: DrillJob) -> DrillLabel:
    job.tell(job.onset + 0.4, "gpu.xid", job.gpu, code=int(job.rng.choice(MILD_XIDS)))
    return DrillLabel(("gpu notice",), NOBODY)


def _xid_of_another_job(job: DrillJob) -> DrillLabel:
    """Of a GPU that this job does not have."""
    other = Entity(kind=Kind.GPU, name="GPU-of-another-job")
    job.tell(job.onset + 0.4, "gpu.xid", other, node=job.target.node, code=79)
    return DrillLabel(("",), NOBODY)


def _ticks(job: DrillJob, kind: Kind, name: str, change: Callable[[TickSignals, int], None]) -> None:
    def tick(signals: TickSignals) -> None:
        change(signals, signals.place(kind, name))

    job.effect.tick = tick


def _keeps_apart(job: DrillJob) -> DrillLabel:
    share = float(job.rng.uniform(0.4, 0.75))

    def change(signals: TickSignals, at: int) -> None:
        signals.metrics[Kind.GPU]["power_watts"][at] *= np.float32(share)

    _ticks(job, Kind.GPU, job.target.gpu, change)
    return DrillLabel(("unlike its peers",), NOBODY)


def _stuck_meter(job: DrillJob) -> DrillLabel:
    def change(signals: TickSignals, at: int) -> None:
        signals.metrics[Kind.GPU]["power_watts"][at] = 601.5

    _ticks(job, Kind.GPU, job.target.gpu, change)
    return DrillLabel(("stuck reading",), NOBODY)


def _uncorrected(job: DrillJob) -> DrillLabel:
    def change(signals: TickSignals, at: int) -> None:
        signals.metrics[Kind.GPU]["ecc_uncorrected_per_s"][at] = 1.0

    _ticks(job, Kind.GPU, job.target.gpu, change)
    return DrillLabel(("rule fired",), NOBODY)


def _warm_room(job: DrillJob) -> DrillLabel:
    """All are a few degrees warmer, and take a little less power."""

    def tick(signals: TickSignals) -> None:
        signals.metrics[Kind.GPU]["temperature_celsius"] += 8.0
        signals.metrics[Kind.GPU]["power_watts"] *= np.float32(0.93)

    job.effect.tick = tick
    return DrillLabel(("",), NOBODY)


def link_of(node: str, port: int) -> Entity:
    """A port of a node."""
    return Entity(kind=Kind.LINK, name=f"{node}/{PORTS[port]}")


def link_goes_down(job: DrillJob, node: str, port: int, at: float) -> None:
    """Its agent tells so."""
    told = {"device": PORTS[port].partition(":")[0], "port": 1, "rail": port, "state": "down", "rate_gbit_per_s": "", "former_rate_gbit_per_s": 400}
    job.tell(at, "link.down", link_of(node, port), node=node, message="port 1 is down", more=told)
    before = job.effect.tick

    def tick(signals: TickSignals) -> None:
        before(signals)
        active = signals.metrics[Kind.LINK]["port_active"]
        if np.isfinite(active).any() and signals.time >= at:
            active[signals.place(Kind.LINK, link_of(node, port).name)] = 0.0

    job.effect.tick = tick


def _link_down(job: DrillJob) -> DrillLabel:
    link_goes_down(job, job.target.node, int(job.rng.integers(2)), job.onset + 0.4)
    return DrillLabel(("link down",), NOBODY)


def _link_cuts(job: DrillJob) -> DrillLabel:
    """A port goes down, the connections through it break, and nobody has ended."""
    at, port = job.onset + float(job.rng.uniform(0.0, 0.9)), int(job.rng.integers(2))
    link_goes_down(job, job.target.node, port, at)
    stands_still(job, at)
    peers_cry(job, at + 0.6)
    restarts(job, at)
    return DrillLabel(("network error",), (link_of(job.target.node, port),))


def _link_slower(job: DrillJob) -> DrillLabel:
    told = {"device": "mlx5_0", "port": 1, "rail": 0, "state": "active", "rate_gbit_per_s": 200, "former_rate_gbit_per_s": 400}
    job.tell(job.onset + 0.4, "link.degraded", link_of(job.target.node, 0), node=job.target.node, message="it runs at 200 Gbit/s", more=told)
    return DrillLabel(("link degraded",), NOBODY)


def _link_metric(*causes: str, name: str, value: float) -> Callable[[DrillJob], DrillLabel]:
    def happen(job: DrillJob) -> DrillLabel:
        def change(signals: TickSignals, at: int) -> None:
            if np.isfinite(signals.metrics[Kind.LINK]["port_active"]).any():
                signals.metrics[Kind.LINK][name][at] = value

        _ticks(job, Kind.LINK, link_of(job.target.node, 0).name, change)
        return DrillLabel(causes, NOBODY)

    return happen


def mount_of(node: str) -> Entity:
    """The shared file system on a node."""
    return Entity(kind=Kind.MOUNT, name=f"{node}/{MOUNT}")


def mount_hangs(job: DrillJob, node: str, at: float) -> None:
    """As its agent tells."""
    job.tell(at, "storage.hung", mount_of(node), node=node, message="it has not answered for 20 s", mount=f"/{MOUNT}", file_system="nfs4", source="filer:/data", waited_s=20)
    before = job.effect.tick

    def tick(signals: TickSignals) -> None:
        before(signals)
        hung = signals.metrics[Kind.MOUNT]["hung"]
        if np.isfinite(hung).any() and signals.time >= at:
            hung[signals.place(Kind.MOUNT, mount_of(node).name)] = 1.0

    job.effect.tick = tick


def _mount_hangs(job: DrillJob) -> DrillLabel:
    mount_hangs(job, job.target.node, job.onset + 0.4)
    return DrillLabel(("storage hung",), NOBODY)


def _read_only(job: DrillJob) -> DrillLabel:
    job.tell(job.onset + 0.4, "storage.read_only", mount_of(job.target.node), node=job.target.node, message="it has become read-only", mount=f"/{MOUNT}", file_system="ext4", source="/dev/sda1")

    def change(signals: TickSignals, at: int) -> None:
        if np.isfinite(signals.metrics[Kind.MOUNT]["read_only"]).any():
            signals.metrics[Kind.MOUNT]["read_only"][at] = 1.0

    _ticks(job, Kind.MOUNT, mount_of(job.target.node).name, change)
    return DrillLabel(("storage read-only",), NOBODY)


def _told(cause: str, name: str, *, of: str = "node", message: str = "", **attributes: str) -> Callable[[DrillJob], DrillLabel]:
    """What somebody says of a part, while the job trains on."""

    def happen(job: DrillJob) -> DrillLabel:
        entity = {"node": job.node, "worker": job.worker, "job": job.itself}[of]
        job.tell(job.onset + 0.4, name, entity, node=job.target.node, message=message, more=attributes)
        return DrillLabel((cause,), NOBODY)

    return happen


KINDS = (
    fault("GPU breaks (Xid that asks for a reset)", "gpu", _gpu_breaks),
    fault("GPU falls off the bus (Xid 79)", "gpu", _off_the_bus),
    fault("contained GPU error (Xid 94, 8, 32, 80)", "gpu", _gpu_error),
    fault("a GPU takes 25 to 60 % less power", "gpu", _keeps_apart, lasts_s=LONG_S),
    fault("a power meter is stuck", "gpu", _stuck_meter, lasts_s=LONG_S),
    fault("uncorrected ECC errors are counted", "gpu", _uncorrected),
    fault("a port goes down, connections break", "link", _link_cuts),
    fault("a port goes down, training goes on", "link", _link_down),
    fault("a link runs at half its rate", "link", _link_slower),
    fault("a link counts errors", "link", _link_metric("link errors", name="symbol_errors_per_s", value=50.0)),
    fault("a mount hangs", "storage", _mount_hangs),
    fault("a mount is read-only", "storage", _read_only),
    twin("mild Xid (43, 63, 92, 37), training goes on", "gpu", _mild_xid),
    twin("Xid of another job's GPU", "gpu", _xid_of_another_job),
    twin("a warm room", "gpu", _warm_room, lasts_s=LONG_S),
    twin("NVML hangs", "gpu", _told("telemetry failing", "collector.failing", collector="gpu", reason="nvmlDeviceGetFieldValues of GPU 3 hangs")),
    twin("a congested link", "link", _link_metric("", name="discards_per_s", value=500.0)),
    twin("the kernel tells of a disk", "storage", _told("kernel error", "kernel.error", message="blk_update_request: I/O error, dev sdb", component="disk", code="io_error", device="sdb")),
    twin("a save of ours fails, training goes on", "storage", _told("storage error", "checkpoint.failed", of="job", path="/ckpt/step-40", errno="ENOSPC", free_bytes="4096", step="40", worker="w")),
    twin("a log has a line of an error", "log", _told("log error", "log.error", of="worker", message="NCCL WARN Call to ibv_reg_mr failed", component="nccl", code="ibv_failed")),
    twin("the site's monitoring fires", "log", _told("site alert", "alert.firing", id="4711", alert="NodeHighLoad", summary="load above 100", severity="warning")),
    twin("NCCL says that ranks lag", "log", _told("nccl outlier ranks", "nccl.outlier_ranks", of="job", message="NCCL RAS: rank 3 lags", communicator="0xabc", lagging="3", lagging_count="1", numbered_by="job")),
)  # fmt: skip
