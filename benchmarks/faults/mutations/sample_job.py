"""A small job as its agents and launchers report it: two nodes with two workers each, a step a second. What mutations begin from."""

from collections.abc import Iterator

import numpy as np

from eagle_eye import wire
from eagle_eye.types import (
    Baseline,
    Batch,
    Block,
    ConfigChange,
    Entity,
    Event,
    Kind,
    Layout,
    RankPlacement,
    Reading,
    Record,
    StepReading,
)

JOB = "team/gpt/run1"
NODES = ("node-a", "node-b")
WORKERS = tuple(f"run1/{node}/{slot}" for node in NODES for slot in range(2))
GPUS = tuple(f"GPU-{node}-{slot}" for node in NODES for slot in range(2))
OF_WORKERS = {
    "step": 0.0, "step_age_s": 0.5, "progress_age_s": 0.1, "marks": 10.0, "phase": 3.0, "running": 1.0, "state": 82.0, "cpu_percent": 95.0, "runqueue_percent": 1.0,
    "rss_bytes": 2e9, "step_marks": 3.0, "activity": 4.0, "throttled_percent": 0.0, "cpu_quota": 2.0, "activity_seen_s": 0.5, "memory_limit_bytes": 6e10, "memory_used_percent": 40.0, "oom_kills_per_s": 0.0, "memory_high_events_per_s": 0.0,
}  # fmt: skip
OF_NODES = {
    "cpu_percent": 50.0, "processors": 8.0, "load_1": 4.0, "memory_percent": 50.0, "memory_available_bytes": 6e10, "swap_percent": 0.0, "disk_read_bytes_per_s": 1e6,
    "net_received_bytes_per_s": 1e7, "cpu_steal_percent": 0.0, "context_switches_per_s": 9e3, "processes_blocked": 0.0, "clock_offset_s": 1e-5, "clock_synchronised": 1.0, "numa_misses_per_s": 0.0, "file_descriptors_percent": 1.0,
}  # fmt: skip
OF_GPUS = {"utilisation_percent": 95.0, "power_watts": 600.0, "temperature_celsius": 62.0, "throttle_reasons": 0.0, "ecc_uncorrected_per_s": 0.0, "sm_clock_mhz": 1900.0}
OF_LINKS = {"port_active": 1.0, "link_rate_bytes_per_s": 5e10, "rail": 0.0, "symbol_errors_per_s": 0.0, "receive_errors_per_s": 0.0, "discards_per_s": 0.0}
OF_MOUNTS = {"stat_s": 1e-4, "read_s": 1e-3, "write_s": 2e-3, "free_bytes": 1e12, "read_only": 0.0, "hung": 0.0, "round_trip_s": 1e-3}
OF_STEPS = {
    "step_s": 0.9, "data_s": 0.05, "forward_s": 0.25, "backward_s": 0.4, "communication_s": 0.1, "optimizer_s": 0.05, "evaluation_s": 0.0, "checkpoint_s": 0.0, "loss": 3.0,
    "loss_nan": 0.0, "tokens": 4096.0, "grad_norm": 1.0,
}  # fmt: skip
EVENTS: dict[str, tuple[Kind, dict[str, str]]] = {
    "exit": (Kind.WORKER, {"pid": "71", "code": "1", "signal": "SIGKILL", "rank": "0", "epoch": "1", "step": "3", "last_lines": "RuntimeError: boom", "exception": "RuntimeError", "expected": "0", "status": ""}),
    "worker.finished": (Kind.WORKER, {"pid": "71", "rank": "0", "epoch": "1", "step": "3"}),
    "exception": (Kind.WORKER, {"type": "OSError", "message": "Connection reset by peer", "traceback": "a\nb\nOSError: x", "frame": "t.py:3 in f", "rank": "0", "epoch": "1", "step": "3", "pid": "71", "notes": "in step 3", "path": "/x", "errno": "ENOSPC", "free_bytes": "0"}),
    "thread.exception": (Kind.WORKER, {"type": "ValueError", "message": "no", "thread": "loader", "epoch": "1"}),
    "stall": (Kind.WORKER, {"step": "3", "marks": "30", "step_marks": "2", "phase": "communication", "age_s": "4.5", "state": "S", "epoch": "1", "rank": "0", "activity": "standing", "doing": "waits", "place": "t.py:3 f", "gpu": "", "collective": "all_reduce", "collective_group": "0", "collective_number": "7", "collective_pending": "1", "collective_calls": "7 all_reduce 4 4 Float", "collective_size": "2", "ended": ""}),
    "resumed": (Kind.WORKER, {"step": "3", "epoch": "1"}),
    "gpu.xid": (Kind.GPU, {"code": "79", "index": "0", "pci": "0000:65:00.0"}),
    "gpu.recovery_action": (Kind.GPU, {"action": "reset", "code": "1", "index": "0", "pci": "0000:65:00.0"}),
    "gpu.lost": (Kind.GPU, {"reason": "GPU is lost", "index": "0", "pci": "0000:65:00.0"}),
    "kernel.error": (Kind.NODE, {"component": "disk", "code": "io_error", "level": "error", "device": "nvme0n1", "advice": "replace the disk"}),
    "kernel.notice": (Kind.NODE, {"component": "network", "code": "link_up", "level": "notice", "device": "eth0"}),
    "log.error": (Kind.WORKER, {"component": "cuda", "code": "error", "rank": "0", "epoch": "1", "log": "/x/0.log", "advice": "look"}),
    "log.notice": (Kind.WORKER, {"component": "python", "code": "traceback", "traceback": "a\nb\nValueError: x", "rank": "0", "epoch": "1"}),
    "nccl.outlier_ranks": (Kind.JOB, {"communicator": "0x9e", "size": "4", "numbered_by": "job", "unresponsive": "", "dead": "", "not_members": "", "failed": "", "lagging": "2", "lagging_count": "1", "operation": "AllReduce", "newest": "7", "epoch": "1"}),
    "nccl.ranks_agree": (Kind.JOB, {"communicator": "0x9e", "epoch": "1"}),
    "agent.budget": (Kind.NODE, {"collector": "gpu", "pace": "2"}),
    "collector.failing": (Kind.NODE, {"collector": "gpu", "reason": "NVML"}),
    "collector.recovered": (Kind.NODE, {"collector": "gpu"}),
    "session.opened": (Kind.NODE, {"role": "launcher", "incarnation": "i"}),
    "session.lost": (Kind.NODE, {"role": "agent", "incarnation": "i"}),
    "session.refused": (Kind.NODE, {"caller": "user 7"}),
    "claim.refused": (Kind.NODE, {"role": "agent", "caller": "user 7", "refusals": "2"}),
    "peer.lost": (Kind.NODE, {"seen_by": "node-a"}),
    "job.started": (Kind.JOB, {"epoch": "1", "reason": "start"}),
    "job.finished": (Kind.JOB, {"epoch": "1", "reason": "done"}),
    "job.failed": (Kind.JOB, {"epoch": "1", "reason": "budget"}),
    "epoch.started": (Kind.JOB, {"epoch": "2", "reason": "death", "cause": "node-a/i/3", "kind": "signal", "plan": "", "excluded": "node-b", "restarts": "1", "budget_left": "2", "in_place": "1", "skipped": "4,5"}),
    "transition.done": (Kind.JOB, {"epoch": "2", "reason": "death", "notice_s": "0.1", "plan_s": "0.2", "group_s": "0.1", "state_s": "0.3", "step": "4"}),
    "worker.excluded": (Kind.WORKER, {"reason": "it did not answer", "epoch": "1", "step": "3"}),
    "restart.delayed": (Kind.JOB, {"epoch": "1", "seconds": "8", "reason": "death", "kind": "signal", "restarts": "2"}),
    "coordinator.isolated": (Kind.JOB, {"epoch": "1", "reason": "node-b cannot be reached"}),
    "coordinator.reunited": (Kind.JOB, {"epoch": "1"}),
    "node.held": (Kind.NODE, {"epoch": "1", "reason": "state D"}),
    "launcher.stopped": (Kind.NODE, {"pid": "7"}),
    "launcher.continued": (Kind.NODE, {"pid": "7"}),
    "node.unused": (Kind.NODE, {"epoch": "1", "reason": "--heal none"}),
    "vote.withheld": (Kind.NODE, {"epoch": "1", "reason": "disk full"}),
    "step.skipped": (Kind.JOB, {"epoch": "2", "step": "7", "cause": "c", "skipped": "1"}),
    "budget.exhausted": (Kind.JOB, {"heal": "restart:3", "restarts": "3", "cause": "c", "kind": "signal"}),
    "checkpoint.saved": (Kind.JOB, {"step": "5", "path": "/c", "finite": "1", "worker": WORKERS[0]}),
    "checkpoint.failed": (Kind.JOB, {"step": "5", "path": "/c", "errno": "ENOSPC", "reason": "full", "free_bytes": "3", "needed_bytes": "9", "attempt": "2", "retry_s": "4", "worker": WORKERS[0]}),
    "checkpoint.safe": (Kind.JOB, {"kept_by": "node-b", "shared": "", "memory_step": "5", "memory_time": "9.5", "memory_failure": "", "backup_step": "4", "backup_time": "8.5", "backup_failure": "full"}),
    "node.changed": (Kind.NODE, {"what": "kernel", "before": "6.1", "after": "6.8", "known": "1", "seen": "9"}),
    "job.changed": (Kind.JOB, {"what": "option --lr", "before": "1e-3", "after": "1e-4", "known": "1", "seen": "9"}),
    "link.down": (Kind.LINK, {"device": "mlx5_0", "port": "1", "pci": "0000:65:00.0", "rail": "0", "state": "state 1: DOWN", "rate_gbit_per_s": "", "former_rate_gbit_per_s": "400", "missed": "0"}),
    "link.degraded": (Kind.LINK, {"device": "mlx5_0", "port": "1", "pci": "0000:65:00.0", "rail": "0", "state": "state 4: ACTIVE", "rate_gbit_per_s": "200", "former_rate_gbit_per_s": "400", "missed": "0"}),
    "link.up": (Kind.LINK, {"device": "mlx5_0", "port": "1", "pci": "0000:65:00.0", "rail": "0", "state": "state 4: ACTIVE", "rate_gbit_per_s": "400", "former_rate_gbit_per_s": "400", "missed": "0"}),
    "storage.hung": (Kind.MOUNT, {"mount": "/mnt/data", "file_system": "nfs4", "source": "server:/data", "waited_s": "20.0"}),
    "storage.read_only": (Kind.MOUNT, {"mount": "/mnt/data", "file_system": "ext4", "source": "/dev/nvme0n1"}),
    "spool.dropped": (Kind.NODE, {"count": "7"}),
    "alert.firing": (Kind.NODE, {"id": "f1", "alert": "Hot", "severity": "page", "summary": "it is hot"}),
    "alert.resolved": (Kind.NODE, {"id": "f1", "alert": "Hot"}),
}  # fmt: skip
"""Every event of docs/wire.md that is read somewhere: name → (kind of its entity, attributes)."""
LINKS = tuple(f"{node}/mlx5_0:1" for node in NODES)
MOUNTS = tuple(f"{node}/mnt/data" for node in NODES)
_ENTITIES = {Kind.WORKER: WORKERS, Kind.GPU: GPUS, Kind.NODE: NODES, Kind.JOB: (JOB,), Kind.LINK: LINKS, Kind.MOUNT: MOUNTS}


class SampleJob:
    """Records of a job that goes on. Numbers rise from call to call."""

    def __init__(self, job: str = JOB, incarnation: str = "agent") -> None:
        """`incarnation`: of the agents."""
        self.job = job
        self._incarnation = incarnation
        self.schemas = wire.Schemas()
        self._number = 0

    def layout(self, now: float, epoch: int = 1) -> Layout:
        """Where its workers are."""
        placed = [(worker, node) for worker, node in zip(WORKERS, (NODES[0], NODES[0], NODES[1], NODES[1]), strict=True)]
        places = tuple(RankPlacement(worker=worker, node=node, rank=rank, local_rank=rank % 2, gpu=GPUS[rank]) for rank, (worker, node) in enumerate(placed))
        launchers = {node: f"{node}:7000" for node in NODES}
        return Layout(job=self.job, epoch=epoch, time=now, coordinator=NODES[0], launchers=launchers, placements=places, reason="start", restarts_by_kind={"signal": 1})

    def second(self, now: float, step: int, stands_s: float = 0.0) -> Iterator[Record]:
        """Schemas that are new, and a batch of each node. `stands_s`: for how long no worker has made progress."""
        for place, node in enumerate(NODES):
            blocks = []
            for reading in self._readings(place, now, step, stands_s):
                known = len(list(self.schemas))
                schema = self.schemas.schema_of(reading)
                if len(list(self.schemas)) > known:
                    yield schema
                blocks.append(Block(schema_id=schema.id, reading=reading))
            yield Batch(node=node, incarnation=self._incarnation, job=self.job, number=self._next(), time=now, blocks=tuple(blocks), monotonic_s=now)

    def standing(self, now: float) -> list[Record]:
        """What a reader needs beside batches and events."""
        baseline = Baseline(name="isolation_forest", job=self.job, digest="d", fitted=now, data=b"\x80")
        return [self.layout(now), baseline, ConfigChange(digest="c", text=""), *self.schemas]

    def event(self, name: str, now: float) -> Event:
        """One of EVENTS."""
        kind, attributes = EVENTS[name]
        number = self._next()
        entities = _ENTITIES[kind]
        entity = Entity(kind=kind, name=entities[number % len(entities)] if kind is not Kind.JOB else self.job)
        return Event(name=name, job=self.job, entity=entity, time=now, node=NODES[0], incarnation="launcher", number=number, message=name, attributes=attributes, monotonic_s=now)

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _readings(self, place: int, now: float, step: int, stands_s: float) -> Iterator[Reading | StepReading]:
        workers, gpus = WORKERS[2 * place : 2 * place + 2], GPUS[2 * place : 2 * place + 2]
        moment = {"step": float(step), "marks": 10.0 * step} | ({"progress_age_s": stands_s, "step_age_s": stands_s} if stands_s else {})
        yield _reading("training", Kind.WORKER, workers, OF_WORKERS | moment, now)
        yield _reading("host", Kind.NODE, (NODES[place],), OF_NODES, now)
        yield _reading("gpu", Kind.GPU, gpus, OF_GPUS, now)
        yield _reading("fabric", Kind.LINK, (LINKS[place],), OF_LINKS, now)
        yield _reading("storage", Kind.MOUNT, (MOUNTS[place],), OF_MOUNTS, now)
        if stands_s:
            return
        values = np.tile(np.array(list(OF_STEPS.values())), (1, 2, 1))
        ends = np.full((1, 2), now - 0.1)
        yield StepReading(source="training", workers=workers, names=tuple(OF_STEPS), numbers=np.array([step]), epochs=np.array([1]), ends=ends, values=values)


def _reading(source: str, kind: Kind, entities: tuple[str, ...], values: dict[str, float], now: float) -> Reading:
    matrix = np.tile(np.array(list(values.values()), dtype=np.float32), (len(entities), 1))
    return Reading(source=source, kind=kind, entities=entities, names=tuple(values), matrix=matrix, time=now)
