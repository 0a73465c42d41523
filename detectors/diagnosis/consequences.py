"""Consequences: which findings follow from a cause, where, and how long before or after it; and those that several causes have alike."""

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """Where a consequence may be, relative to its cause."""

    ANYWHERE = "in the same job"
    NODE = "on the same node"
    GPU = "on the same GPU, or of its worker"
    WORKER = "in the same worker"


class Selection(Enum):
    """Which findings of a kind are consequences."""

    ANY = "all"
    VICTIM = "what also a healthy worker shows when a peer dies: a symptom, or an end after the cause's"
    ENDED = "the same, and ends by a signal from outside"


@dataclass(frozen=True, slots=True)
class Consequence:
    """Findings that follow from a cause: their kind, where they are, and which of them."""

    kind: str
    """Kind of finding; '*' = every one."""
    where: Scope = Scope.ANYWHERE
    what: Selection = Selection.ANY
    early_s: float | None = None
    """It may seem to begin so long before its cause; None: as the cause's row says."""


STALLS = (
    Consequence("job.paused"),
    Consequence("job.stalled"),
    Consequence("worker.stalled"),
    Consequence("input.stalled"),
    Consequence("job.slow"),
    Consequence("job.very_slow"),
    Consequence("job.throughput_lost"),
    Consequence("communication.slow"),
    Consequence("input.slow"),
    Consequence("nccl.outlier_ranks"),
)
SLOWNESS = (
    Consequence("job.throughput_lost"),
    Consequence("job.slow"),
    Consequence("job.very_slow"),
)
"""What a job shows that does less than it did."""
UNUSUAL = tuple(Consequence(kind, Scope.NODE) for kind in ("node.unusual", "node.unforeseen", "gpu.unusual", "worker.unusual"))
"""What the metrics of a node, and of what is on it, show where something is wrong."""
VICTIMS = (
    Consequence("worker.exception", what=Selection.VICTIM),
    Consequence("worker.exited", what=Selection.VICTIM),
    Consequence("thread.exception", what=Selection.VICTIM),
    Consequence("log.error", early_s=5.0),
    *STALLS,
)
OF_LOSSES = (Consequence("loss.bad_step"), Consequence("loss.spike"), Consequence("loss.risen"), Consequence("grad_norm.jump"), Consequence("loss_scale.collapsed"))
"""What the numbers of a training show that has gone wrong."""
OF_A_LOSS = (*VICTIMS, Consequence("worker.ended_early"))
"""Of a node or GPU: who cries for its workers need not cry for one that has ended."""
WAITS_FOR_LAUNCHERS = (Consequence("job.waiting"),)
"""Of a launcher that is gone, or all of its node: those that are left may not be enough."""
PORTS_DOWN = (Consequence("link.down", early_s=60.0),)
"""The ports that connections broke at: they went down before, and say where (network_place.py)."""
MOUNTS_BROKEN = (Consequence("storage.hung", early_s=60.0), Consequence("storage.read_only", early_s=60.0))
"""Of a file that was refused: the mounts that broke before, or are seen to be broken then, say where (narrowest_place.py)."""
SAME_WORKER = (Consequence("*", Scope.WORKER),)
OWN_TROUBLE = (
    Consequence("worker.stalled", Scope.WORKER),
    Consequence("worker.stopped", Scope.WORKER),
    Consequence("worker.slow", Scope.WORKER),
    Consequence("kernel.error", Scope.NODE, early_s=5.0),
)
"""What a worker's end explains of itself: no exception, for that came before it; and what the kernel said of its end."""
OWN_END = (Consequence("worker.exited", Scope.WORKER),)
SAME_NODE = (Consequence("*", Scope.NODE),)
STOPPED_BEFORE = (Consequence("launcher.stopped", Scope.NODE, early_s=float("inf")),)
"""However long its launcher was stopped before the job went on without it."""
SAME_GPU = (Consequence("gpu.xid", Scope.GPU, early_s=5.0),)
"""What a program did to its GPU; the Xids of broken hardware are stronger than any exception."""


def of_a_preemption(where: Scope) -> tuple[Consequence, ...]:
    """What ends with a node, or with a job, that its scheduler takes away. A GPU that breaks meanwhile is none of it."""
    return (
        Consequence("scheduler.preemption", where, early_s=float("inf")),
        Consequence("node.lost", where),
        Consequence("launcher.lost", where),
        Consequence("worker.exited", where, Selection.ENDED),
        Consequence("worker.ended_early", where),
        Consequence("log.error", where),
        Consequence("collector.failing", where),
        *VICTIMS,
    )
