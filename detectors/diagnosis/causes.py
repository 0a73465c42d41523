"""Table of causes: which finding shows a cause, which consequences it has, which rival causes look the same.

The order is the order of strength: of two findings of which each could follow from the other, the upper one is the
cause. Severities are Unicron's (table 1) where it has the cause: the weakest repair that can help.
"""

from dataclasses import dataclass

from detectors.features.launcher_states import OF_A_STOP
from eagle_eye.types import Severity

from .consequences import (
    MOUNTS_BROKEN,
    OF_A_LOSS,
    OF_LOSSES,
    OWN_END,
    OWN_TROUBLE,
    PORTS_DOWN,
    SAME_GPU,
    SAME_NODE,
    SAME_WORKER,
    SLOWNESS,
    STALLS,
    STOPPED_BEFORE,
    UNUSUAL,
    VICTIMS,
    WAITS_FOR_LAUNCHERS,
    Consequence,
    Scope,
    Selection,
    of_a_preemption,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """One row of the table."""

    word: str
    """As the operator reads it."""
    kind: str
    """Kind of the finding that shows it."""
    severity: Severity
    statuses: tuple[str, ...] = ()
    """Only with one of these statuses (eagle_eye/error_statuses.py); () = with any, "" = with none that another row of the kind has."""
    follows: tuple[Consequence, ...] = ()
    accuses: bool = True
    """False: the worker or node that reports it is no culprit."""
    of_node: bool = True
    """False: where all workers of a node show it the workers are named, not the node; it is the program's, and others may be about to show it."""
    together_s: float = 1.0
    """Findings of the same cause that began so close together are one fault with several culprits."""
    early_s: float = 1.0
    """A consequence may seem to begin so long before its cause: clocks differ, and so does the way of measuring."""
    late_s: float = float("inf")
    """A consequence begins at most so long after its cause; as long as it lasts, if nothing is said."""
    rivals: tuple[tuple[str, str], ...] = ()
    """(another cause that looks like it, what would tell them apart)"""
    outlasting: bool = False
    """What it explains stays explained when it is over, also what accuses somebody."""
    severe_xid: Severity | None = None
    """Only Xids of this severity."""


OF_RULES = "rule.*"
"""Kind of every finding rule.NAME, whatever rules there are."""
PREEMPTED_EARLY_S, PREEMPTED_LATE_S = 30.0, 120.0
"""What a preemption ends is found sooner or later than its first sign: a session by its lease, a node by its silence, all nodes of a job one after the other."""
LONG_LIVED_S = 10.0
"""A lost node or a broken GPU stays so for days: only what begins soon after it follows from it."""
_HARDWARE = (("a fault of the program", "the same worker fails again on another GPU"),)
_STORAGE = (("a full quota of one user or folder", "free bytes and quota of the path in the message, on that node"),)
_PROGRAM = (("a broken GPU", "it comes back on this worker alone; Xid and ECC counters of its GPU"),)

CAUSES = (
    *(
        Cause(
            "preempted", kind, Severity.SEV3,
            follows=of_a_preemption(where),
            accuses=False,
            together_s=60.0,
            early_s=PREEMPTED_EARLY_S,
            late_s=PREEMPTED_LATE_S,
            outlasting=True,
            rivals=(("a fault of the node at the same time", "its own log once it is back"),),
        )
        for kind, where in (("node.preempted", Scope.NODE), ("job.preempted", Scope.ANYWHERE))
    ),
    Cause(
        "node lost",
        "node.lost",
        Severity.SEV1,
        follows=(*SAME_NODE, *STOPPED_BEFORE, *OF_A_LOSS, *WAITS_FOR_LAUNCHERS),
        together_s=5.0,
        early_s=10.0,
        late_s=LONG_LIVED_S,
        rivals=(("network to the node cut", "the network test that the other launchers run by themselves; its own log after it is back"),),
    ),
    Cause(
        "gpu lost", "gpu.lost", Severity.SEV1, follows=(*SAME_NODE, *OF_A_LOSS), early_s=5.0, late_s=LONG_LIVED_S
    ),
    Cause(
        "gpu fault",
        "gpu.xid",
        Severity.SEV1,
        severe_xid=Severity.SEV1,
        follows=(*SAME_NODE, *OF_A_LOSS),
        early_s=5.0,
        late_s=LONG_LIVED_S,
    ),
    *(
        Cause(word, "worker.exception", Severity.SEV1, (status,), (*SAME_WORKER, *SAME_GPU, *VICTIMS), rivals=_HARDWARE)
        for word, status in (
            ("ecc error", "ecc error"),
            ("nvlink error", "nvlink error"),
            ("gpu driver error", "gpu driver error"),
        )
    ),
    *(
        Cause(
            word,
            "launcher.lost",
            Severity.SEV2,
            statuses,
            (Consequence("*", Scope.NODE, early_s=1.0), *STOPPED_BEFORE, *OF_A_LOSS, *WAITS_FOR_LAUNCHERS),
            together_s=5.0,
            early_s=5.0,
            late_s=LONG_LIVED_S,
            rivals=rivals,
        )
        for word, statuses, rivals in (
            ("launcher stopped", (OF_A_STOP,), ()),
            ("launcher lost", (), (("control channel of the node cut", "the network test that the other launchers run by themselves; whether the launcher's process still lives"),)),
        )
    ),
    Cause(
        "gpu error",
        "gpu.xid",
        Severity.SEV2,
        severe_xid=Severity.SEV2,
        follows=(*SAME_NODE, *OF_A_LOSS),
        early_s=5.0,
        late_s=LONG_LIVED_S,
        rivals=_PROGRAM,
    ),
    *(
        Cause(word, "worker.exception", Severity.SEV2, (word,), (*SAME_WORKER, *SAME_GPU, *VICTIMS), rivals=_PROGRAM)
        for word in ("illegal memory access", "out of memory", "cuda error")
    ),
    *(
        Cause("storage error", kind, Severity.SEV2, ("storage error",), (*SAME_WORKER, *VICTIMS, *MOUNTS_BROKEN), accuses=False, rivals=_STORAGE, together_s=10.0)
        for kind in ("worker.exception", "worker.exited")
    ),
    Cause("storage error", "checkpoint.failed", Severity.SEV3, accuses=False, rivals=_STORAGE),
    Cause(
        "exception", "worker.exception", Severity.SEV2, ("other software error",), (*SAME_WORKER, *VICTIMS), of_node=False
    ),
    Cause(
        "worker killed",
        "worker.exited",
        Severity.SEV2,
        ("killed",),
        (*OWN_TROUBLE, *VICTIMS),
        rivals=(
            ("out of memory on the host", "a line of the kernel's out-of-memory killer; memory of the node before"),
            ("preempted, or ended by the scheduler or a person", "the scheduler's log: of all workers of a node at once before all (sacct -j JOB, kubectl describe pod)"),
        ),
    ),
    *(
        Cause(word, "worker.exited", severity, (status,), (*OWN_TROUBLE, *SAME_GPU, *VICTIMS))
        for word, status, severity in (
            ("ecc error", "ecc error", Severity.SEV1),
            ("nvlink error", "nvlink error", Severity.SEV1),
            ("gpu driver error", "gpu driver error", Severity.SEV1),
            ("illegal memory access", "illegal memory access", Severity.SEV2),
            ("out of memory", "out of memory", Severity.SEV2),
            ("cuda error", "cuda error", Severity.SEV2),
            ("worker exited", "exited abnormally", Severity.SEV2),
        )
    ),
    Cause(
        "worker ended early",
        "worker.ended_early",
        Severity.SEV2,
        follows=VICTIMS,
        together_s=10.0,
        rivals=(("the others should not have waited any more", "whether the script means to end its ranks at different steps"),),
    ),
    Cause(
        "worker stopped",
        "worker.stopped",
        Severity.SEV3,
        follows=(*SAME_WORKER, *VICTIMS, Consequence("worker.slow")),
        together_s=3.0,
        early_s=5.0,
        rivals=(("held by a debugger", "the process state is t instead of T"),),
    ),
    *(
        Cause(
            "collective mismatch",
            "collective.mismatch",
            severity,
            statuses,
            (*STALLS, Consequence("worker.exception", what=Selection.VICTIM), Consequence("worker.exited", what=Selection.VICTIM)),
            of_node=False,
            together_s=30.0,
            early_s=600.0,
            rivals=(("a tensor's shape or a branch that follows from data", "whether it comes back in the same collective after a restart"),),
        )
        for severity, statuses in ((Severity.SEV2, ("mismatch stands",)), (Severity.INFO, ()))
    ),
    Cause(
        "python hang",
        "worker.stalled",
        Severity.SEV2,
        follows=(*SAME_WORKER, *VICTIMS),
        together_s=3.0,
        early_s=5.0,
        rivals=(
            ("a hung call into a driver or a file system", "the stacks of the worker: in Python, or below it"),
            ("a step that takes this long", "whether its marks move again"),
        ),
    ),
    Cause(
        "loss not finite",
        "loss.not_finite",
        Severity.SEV2,
        follows=(*OF_LOSSES, Consequence("worker.exception", what=Selection.VICTIM), Consequence("worker.exited", what=Selection.VICTIM)),
        late_s=LONG_LIVED_S,
        rivals=(
            ("a bad batch", "whether it comes back in the same step after the roll-back"),
            ("silent corruption", "whether it comes back on the same worker in another step"),
        ),
    ),
    Cause(
        "slow worker",
        "worker.slow",
        Severity.SEV2,
        statuses=("",),  # above the row below, so that one for which nobody waits hides none for which all do
        follows=(
            *STALLS,
            Consequence("worker.slower", Scope.WORKER),
            Consequence("worker.unequal_compute", Scope.WORKER),
            Consequence("host.contended", Scope.NODE),
            Consequence("cpu.throttled", Scope.NODE),
            *UNUSUAL,
            Consequence("node.unlike_peers", Scope.NODE),
            Consequence("gpu.unlike_peers", Scope.NODE),
            Consequence("gpu.xid", Scope.NODE),
        ),
        together_s=30.0,
        early_s=30.0,
        rivals=(
            ("more work than its peers", "tokens and micro-batches per worker"),
            ("other processes on its host", "time in the run queue"),
        ),
    ),
    Cause(
        "slow worker off the critical path", "worker.slow", Severity.SEV3, ("off the critical path",),
        (Consequence("worker.slower", Scope.WORKER), Consequence("worker.unequal_compute", Scope.WORKER)), together_s=30.0, early_s=30.0,
        rivals=(("a part of the step that is not measured", "whether steps become shorter once that worker keeps up"),),
    ),
    *(
        Cause(word, kind, Severity.SEV3, (status,), (*VICTIMS, *OWN_END, *PORTS_DOWN), accuses=False, together_s=10.0, early_s=10.0)
        for word, status in (
            ("network error", "connection refused or reset"),
            ("network error", "other network error"),
            ("collective timeout", "nccl timeout"),
        )
        for kind in ("worker.exception", "worker.exited")
    ),
    Cause(
        "job stalled",
        "job.stalled",
        Severity.SEV2,
        follows=(*STALLS, Consequence("worker.exception", what=Selection.VICTIM), Consequence("worker.exited", what=Selection.VICTIM), *PORTS_DOWN),
        accuses=False,
        early_s=5.0,
        rivals=(
            ("a broken link", "the network test between the launchers, which runs by itself; the flight recorders: on which connections a collective waits"),
            ("a worker that hangs inside the collective", "the stacks of all workers"),
        ),
    ),
    Cause(
        "quorum lost",
        "job.waiting",
        Severity.INFO,
        ("trains",),
        accuses=False,
        early_s=5.0,
        rivals=(("launchers that have stopped", "the network test, which runs by itself: whether their hosts answer; and what their logs say"),),
    ),
    Cause(
        "job waiting",
        "job.waiting",
        Severity.SEV2,
        accuses=False,
        early_s=5.0,
        rivals=(("a broken network between the launchers", "the network test between them, which runs by itself; and what their logs say"),),
    ),
    Cause("launcher stopped", "launcher.stopped", Severity.INFO, accuses=False, together_s=10.0),
    Cause("node unused", "node.unused", Severity.INFO, accuses=False, together_s=10.0),
    Cause(
        "silent corruption",
        "replay.differs",
        Severity.SEV3,
        follows=(*OF_LOSSES, Consequence("replica.differs")), together_s=0.0, early_s=float("inf"),
        rivals=(
            ("kernels that are not deterministic with the batches of this worker alone", "whether other workers' replays differ, too, and whether it comes back on the same machine"),
            ("a broken GPU or memory", "whether it comes back on the same machine: its ECC counters, and the GPU's diagnosis (dcgmi diag -r 3)"),
        ),
    ),
    Cause(
        "silent corruption",
        "replica.differs",
        Severity.SEV3,
        follows=OF_LOSSES, together_s=0.0, early_s=float("inf"),
        rivals=(
            ("a script that changes the parameters of one rank", "whether it comes back on the same rank after a restart"),
            ("a broken GPU or memory", "whether it comes back on the same machine: its ECC counters, and the GPU's diagnosis (dcgmi diag -r 3)"),
        ),
    ),
    Cause(
        "loss scale collapsed",
        "loss_scale.collapsed",
        Severity.INFO,
        follows=(Consequence("loss.spike"), Consequence("loss.risen"), Consequence("grad_norm.jump")),
        early_s=30.0,
        rivals=(
            ("a weight that is no number any more", "the digests or norms of the parameters, and whether the loss is a number with bf16 or fp32"),
            ("a learning rate, or data, that fp16 cannot hold", "whether it comes back in the same step after the roll-back"),
        ),
    ),
    Cause(
        "repeated data",
        "data.repeated",
        Severity.INFO,
        rivals=(("data that hold the same several times", "the samples of these steps"), ("a script that trains on one batch for several steps on purpose", "its loop")),
    ),
    Cause("loss risen", "loss.risen", Severity.INFO, follows=(Consequence("loss.spike"), Consequence("grad_norm.jump")), early_s=float("inf")),
    Cause("loss plateau", "loss.plateau", Severity.INFO),
    Cause("gradient norm jump", "grad_norm.jump", Severity.INFO, follows=(Consequence("loss.spike"),), early_s=30.0),
    Cause(
        "bad step",
        "loss.bad_step",
        Severity.INFO,
        follows=(Consequence("grad_norm.jump"), Consequence("loss.spike")),
        rivals=(("a batch that was masked as a whole", "the samples of that worker in that step"), ("a machine that computes wrong", "whether it comes back on the same worker with other data")),
    ),
    Cause("loss spike", "loss.spike", Severity.INFO),
    Cause("thread exception", "thread.exception", Severity.INFO, accuses=False, together_s=10.0),
    Cause("gpu notice", "gpu.xid", Severity.INFO),
    Cause(
        "pause",
        "job.paused",
        Severity.INFO,
        follows=(Consequence("job.slow"), Consequence("job.very_slow"), Consequence("nccl.outlier_ranks")),
        accuses=False,
        rivals=(("a hang", "what the worker does that the others wait for: the evidence says what was seen of its process"),),
    ),
    Cause("input stalled", "input.stalled", Severity.INFO, follows=(Consequence("job.slow"), Consequence("job.very_slow"))),
    Cause(
        "cpu quota",
        "cpu.throttled",
        Severity.INFO,
        follows=(*SLOWNESS, Consequence("worker.slower", Scope.NODE), Consequence("host.contended", Scope.NODE), *UNUSUAL),
        together_s=30.0,
        early_s=float("inf"),
    ),
    Cause(
        "host contended",
        "host.contended",
        Severity.INFO,
        follows=(*SLOWNESS, Consequence("worker.slower", Scope.NODE), *UNUSUAL),
        together_s=30.0,
        early_s=float("inf"),
    ),
    *(
        Cause(
            word,
            "worker.slower",
            Severity.SEV3,
            statuses,
            (Consequence("worker.unequal_compute", Scope.WORKER),),
            together_s=30.0,
            early_s=30.0,
            rivals=(
                ("clocks, temperature or power of its GPU", "eagle-eye history of its GPU beside those of its peers, since that time"),
                ("more work than its peers", "micro-batches and sequence lengths per worker"),
            ),
        )
        for word, statuses in (("slower from the start", ("slower from the start",)), ("slower worker", ()))
    ),
    Cause(
        "unequal compute",
        "worker.unequal_compute",
        Severity.INFO,
        follows=SLOWNESS,
        accuses=False,
        together_s=30.0,
        early_s=30.0,
        rivals=(("a slow machine", "tokens per worker, if the script logs them"), ("more work than its peers", "tokens per worker, if the script logs them")),
    ),
    *(
        Cause(word, kind, Severity.INFO, accuses=False, rivals=(rival,))
        for word, kind, rival in (
            ("unequal stages", "stage.unequal", ("a slow machine in that stage, where there is one replica alone", "clocks, temperature and power of its GPUs beside those of the other stages")),
            ("unequal work", "work.unequal", ("machines whose speed varies", "the length of the sequences of each worker, if the script logs it")),
        )
    ),
    Cause(
        "slow link", "link.slow", Severity.INFO, follows=(Consequence("communication.slow"), *SLOWNESS), accuses=False, together_s=30.0, early_s=60.0,
        rivals=(("another job's traffic", "what else uses that link or switch"), ("a host that hands its messages over late", "processors and run queue of that node")),
    ),
    Cause(
        "slow communication",
        "communication.slow",
        Severity.INFO,
        follows=SLOWNESS,
        early_s=float("inf"),
        rivals=(("a slow link", "the network test between the launchers, which runs by itself; bytes per second and errors of each node's interfaces"), ("another job's traffic", "what else uses the switch")),
    ),
    Cause("slow input", "input.slow", Severity.INFO, follows=SLOWNESS, early_s=float("inf")),
    Cause("garbage collection", "garbage_collection.slow", Severity.INFO, follows=SLOWNESS, early_s=float("inf")),
    Cause(
        "throughput lost",
        "job.throughput_lost",
        Severity.INFO,
        follows=(Consequence("job.slow"), Consequence("job.very_slow")),
        early_s=float("inf"),
        rivals=(
            ("a machine that got slower", "clocks, temperature and power of each GPU; compute time of each worker"),
            ("a slow link, where the backward pass hides the communication", "bytes per second of each node's interfaces"),
            ("other work than before", "tokens per step, if the script logs them"),
        ),
    ),
    Cause("job slow", "job.very_slow", Severity.INFO, follows=(Consequence("job.slow"),), early_s=30.0),
    Cause("job slow", "job.slow", Severity.INFO),
    Cause("unusual node", "node.unusual", Severity.INFO, together_s=30.0),
    Cause("unusual node", "node.unforeseen", Severity.INFO, together_s=30.0),
    Cause("unusual GPU", "gpu.unusual", Severity.INFO, accuses=False, together_s=30.0),
    Cause("unusual worker", "worker.unusual", Severity.INFO, accuses=False, together_s=30.0),
    *(
        Cause(
            "unlike its peers",
            kind,
            Severity.INFO,
            accuses=False,
            together_s=30.0,
            rivals=(("throttling, heat or a power cap", "clocks, throttle reasons and temperature of its GPUs"), ("another program on it", "its processes"), ("less work than its peers", "compute time of its workers")),
        )
        for kind in ("node.unlike_peers", "gpu.unlike_peers")
    ),
    *(
        Cause("stuck reading", kind, Severity.INFO, accuses=False, together_s=30.0, rivals=(("a machine that stands still", "whether its job makes progress, and its other metrics change"),))
        for kind in ("node.reading_stuck", "gpu.reading_stuck", "job.reading_stuck")
    ),
    Cause("kernel error", "kernel.error", Severity.INFO, accuses=False, together_s=10.0),
    Cause("nccl outlier ranks", "nccl.outlier_ranks", Severity.INFO, accuses=False, together_s=30.0, rivals=(("ranks that wait in another communicator", "their stacks and flight recorders"),)),
    Cause("log error", "log.error", Severity.INFO, accuses=False, together_s=10.0),
    Cause("telemetry failing", "collector.failing", Severity.INFO),
    Cause("telemetry late", "telemetry.late", Severity.INFO, accuses=False, together_s=30.0, rivals=(("a node that is cut off from the stream alone", "the agent's log and spool on that node"),)),
    Cause("clock skewed", "clock.skewed", Severity.INFO, accuses=False, together_s=30.0, rivals=(("telemetry that is held up on its way, always as long", "the agent's log and spool on that node, and chronyc tracking there"),)),
    Cause("doubtful timers", "timers.doubtful", Severity.INFO, accuses=False, together_s=30.0, rivals=(("phases that overlap on that worker alone", "what its script, and no other, times within another phase"),)),
    Cause("site alert", "site.alert", Severity.INFO, accuses=False),
    Cause("rule fired", OF_RULES, Severity.INFO, accuses=False, together_s=30.0),
    Cause("preemption notice", "scheduler.preemption", Severity.INFO, accuses=False, together_s=60.0),
    Cause("node state", "scheduler.node_state", Severity.INFO, accuses=False, together_s=10.0),
    Cause("link down", "link.down", Severity.INFO, accuses=False, together_s=10.0, rivals=(("a switch that is down", "whether links of other nodes went down with it"),)),
    Cause("link degraded", "link.degraded", Severity.INFO, accuses=False, together_s=10.0),
    Cause("link errors", "link.errors", Severity.INFO, accuses=False, together_s=30.0),
    Cause("storage hung", "storage.hung", Severity.INFO, accuses=False, together_s=30.0, rivals=(("the network to its server", "the storage test that each launcher runs by itself: whether it answers on other nodes; and links of the node"),)),
    Cause("storage read-only", "storage.read_only", Severity.INFO, accuses=False, together_s=30.0),
    Cause("storage slow", "storage.slow", Severity.INFO, accuses=False, together_s=60.0, rivals=(("other jobs' traffic", "what else uses the server"),)),
    Cause("network tested", "network.tested", Severity.INFO, accuses=False),
    Cause("storage tested", "storage.tested", Severity.INFO, accuses=False),
    Cause("unknown", "*", Severity.INFO, accuses=False, together_s=10.0),
)

LASTING = frozenset({"job.throughput_lost"})
"""Findings that tell how the job does: an incident that holds one is not over before it is."""
RECOVERY_S = 15.0
"""What is over so long before the job is back was not the cause of all of it."""
WHOLE_NODE = {"slow worker": "slow node", "slower worker": "slower node"}
"""What a cause is called when it is all workers of a node."""
PROGRAM_ON_GPU = {"illegal memory access": "program error on the gpu", "cuda error": "program error on the gpu"}
"""What a cause is called when the driver's Xids put it down to the program."""
EVERYWHERE = "the same everywhere: this looks like the program or its input, not like a machine"
"""Evidence when all workers of a job show the same: then nobody is accused."""
