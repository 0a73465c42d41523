"""The 40 faults, each with what is true of it, and the innocent twins: nothing that is told is compared with anything else."""

import signal
from dataclasses import dataclass
from enum import Enum

from benchmarks.watch.live import strikes
from benchmarks.watch.live.orders import EVERYBODY
from benchmarks.watch.live.strikes import Strike

MARKED, UNMARKED = "marked", "unmarked"


class Truth(Enum):
    """What is at fault, as narrowly as two nodes can show it."""

    WORKER = "the worker"
    PATH = "the path between the two nodes: seen from its ends both links look alike, and neither node is at fault"
    HOST = "the machine, which is the host of both nodes here"
    NODE = "the node"
    STORAGE = "the folder that is full"
    NOBODY = "nobody"


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFault:
    """One row: how it is made, and what has to be told of it."""

    name: str
    script: str
    made: str
    """In words."""
    strike: Strike
    causes: frozenset[str]
    """Right ones (docs/findings.md), names of notices among them; none: an innocent twin."""
    truth: Truth
    rank: int = EVERYBODY
    node: int = 1
    lasting: bool = False
    """It is judged beside what was before it."""
    patience_s: float = 0.0
    """For so long it lasts, and may be told; 0: what suits the above."""
    steps: int = 1_000_000
    options: tuple[str, ...] = ()
    """Of the launcher."""
    clocks: int = 0
    """So many nodes have a clock that can be set."""
    on_small_disk: bool = False
    in_memory_cgroup: bool = False
    alone: bool = False
    """It disturbs other jobs on the machine."""
    further: bool = False
    """Not one of the 40."""

    @property
    def steady_s(self) -> float:
        """Undisturbed training before it."""
        return 30.0 if self.lasting else 10.0

    @property
    def watched_s(self) -> float:
        """How long it lasts at most."""
        return self.patience_s or (75.0 if self.lasting else 45.0)

    @property
    def innocent(self) -> bool:
        return not self.causes

    @property
    def whose(self) -> str:
        """Whom it strikes."""
        if self.truth is Truth.WORKER:
            return f"rank {self.rank}"
        return f"node {self.node}" if self.truth in (Truth.NODE, Truth.PATH) else "all ranks" if self.rank == EVERYBODY else f"rank {self.rank}"


BY_OPTIMIZER = ("--steps-from", "optimizer")
"""A script without marks whose steps the launcher counts."""
OPTIONS = {MARKED: (), UNMARKED: BY_OPTIMIZER}
SLOWER = {MARKED: frozenset({"slow worker", "slower worker"}), UNMARKED: frozenset({"slow worker", "slower worker", "unequal compute"})}
"""Without tokens more work cannot be told from a slow machine: the worker has to be named all the same."""
STALLS = frozenset({"job stalled", "network error", "collective timeout"})


def _once(name: str, made: str, strike: Strike, cause: str, *, counted: bool = False, **ranks: int) -> tuple[LiveFault, ...]:
    """Of one rank of a script with marks, and of another one without; the worker ends, or stands. counted: the steps of that one are."""
    return tuple(
        LiveFault(name=f"{name} ({script})", script=script, made=made, strike=strike, causes=frozenset({cause}), truth=Truth.WORKER, rank=rank, options=OPTIONS[script] if counted else ())
        for script, rank in ranks.items()
    )


def _slower(percent: int, strikes_of: dict[str, tuple[str, Strike]], **ranks: int) -> tuple[LiveFault, ...]:
    return tuple(
        LiveFault(
            name=f"slow {percent} % ({script})", script=script, made=strikes_of[script][0], strike=strikes_of[script][1],
            causes=SLOWER[script], truth=Truth.WORKER, rank=rank, options=OPTIONS[script], lasting=True,
        )
        for script, rank in ranks.items()
    )  # fmt: skip


def _longer(factor: float) -> tuple[str, Strike]:
    return f"all that it computes takes {factor:g} times as long", strikes.ordered("slower", factor)


def _network(name: str, made: str, strike: Strike, causes: frozenset[str], **nodes: int) -> tuple[LiveFault, ...]:
    return tuple(
        LiveFault(name=f"{name} ({script})", script=script, made=made, strike=strike, causes=causes, truth=Truth.PATH, node=node, options=OPTIONS[script], lasting=True)
        for script, node in nodes.items()
    )


def _of_worker(name: str, script: str, made: str, strike: Strike, cause: str, rank: int) -> LiveFault:
    """What a worker shows beside its own earlier steps."""
    return LiveFault(
        name=f"{name} ({script})", script=script, made=made, strike=strike, causes=frozenset({cause}), truth=Truth.WORKER, rank=rank, options=OPTIONS[script], lasting=True,
    )  # fmt: skip


_TURNS = "stopped by SIGSTOP for a third of the time, five times a second", strikes.stopped_by_turns(1 / 3)

FAULTS: tuple[LiveFault, ...] = (
    *_once("kill", "kill -9", strikes.signalled(signal.SIGKILL), "worker killed", marked=1, unmarked=2),
    *_once("stop", "SIGSTOP", strikes.signalled(signal.SIGSTOP), "worker stopped", marked=3, unmarked=0),
    *_once("hang in Python", "the same lock twice", strikes.ordered("deadlock"), "python hang", marked=2),
    *_once("hang in Python", "an event that nobody sets", strikes.ordered("event"), "python hang", unmarked=1),
    *_once("hang in C", "pause() with the interpreter's lock held", strikes.ordered("interpreter"), "python hang", marked=0),
    *_once("hang in the kernel", "clone(CLONE_VFORK) whose child sleeps", strikes.ordered("kernel"), "python hang", unmarked=3),
    LiveFault(
        name="out of memory (marked)", script=MARKED, made="a cgroup of the job is full: the kernel kills", strike=strikes.ordered("kernel_kill"),
        causes=frozenset({"out of memory"}), truth=Truth.WORKER, rank=1, in_memory_cgroup=True,
    ),
    *_once("out of memory", "more than ulimit -v allows", strikes.ordered("host_memory"), "out of memory", unmarked=3),
    *_once("exit 0", "sys.exit(0) while the others go on", strikes.ordered("exit_0"), "worker ended early", marked=2, unmarked=0),
    *_once("exception", "ValueError", strikes.ordered("bad_value"), "exception", marked=0),
    *_once("exception", "KeyError", strikes.ordered("missing_key"), "exception", unmarked=2),
    *_slower(10, {MARKED: _longer(1.1), UNMARKED: _longer(1.1)}, marked=1, unmarked=3),
    *_slower(25, {MARKED: _longer(1.25), UNMARKED: _longer(1.25)}, marked=2, unmarked=0),
    *_slower(50, {MARKED: _TURNS, UNMARKED: _longer(1.5)}, marked=3, unmarked=1),
    *_network("link of 50 Mbit/s", "tc: a token bucket, both ways", strikes.slow_link(50.0), frozenset({"slow communication"}), marked=1, unmarked=0),
    *_network("loss of 10 %", "tc: a filter that drops by chance what the node sends", strikes.lossy_link(0.1), frozenset({"slow communication"}), marked=1, unmarked=0),
    *_network("one-way drop", "tc: a filter that drops all that the node sends", strikes.lossy_link(1.0), STALLS, marked=0, unmarked=1),
    LiveFault(
        name="full disk (marked)", script=MARKED, made="eagle_eye saves a checkpoint to a file system of 1 MiB", strike=strikes.ordered("own_checkpoint"),
        causes=frozenset({"storage error"}), truth=Truth.STORAGE, rank=0, on_small_disk=True,
    ),
    LiveFault(
        name="full disk (unmarked)", script=UNMARKED, made="torch.save to a file system of 1 MiB", strike=strikes.ordered("full_disk_save"),
        causes=frozenset({"storage error"}), truth=Truth.STORAGE, rank=0, on_small_disk=True,
    ),
    *_once("NaN in one gradient", "one number that flows back into its first layer", strikes.ordered("bad_gradient"), "loss not finite", counted=True, marked=2, unmarked=1),
    _of_worker("flipped bit", MARKED, "bit 27 of one weight, which is in the exponent", strikes.ordered("flipped_bit", 27), "silent corruption", 1),
    _of_worker("flipped bit", UNMARKED, "bit 20 of one weight, which is in the mantissa", strikes.ordered("flipped_bit", 20), "silent corruption", 2),
    _of_worker("gc storm", MARKED, "200,000 objects in cycles, and two full collections, at each step", strikes.ordered("garbage", 200_000), "garbage collection", 3),
    _of_worker("gc storm", UNMARKED, "200,000 objects in cycles, and two full collections, at each step", strikes.ordered("garbage", 200_000), "garbage collection", 0),
    _of_worker("slow data of one rank", MARKED, "each batch comes 80 ms later", strikes.ordered("slow_data", 0.08), "slow input", 1),
    LiveFault(
        name="slow data of all ranks (marked)", script=MARKED, made="each batch comes 80 ms later", strike=strikes.ordered("slow_data", 0.08),
        causes=frozenset({"slow input"}), truth=Truth.NOBODY, lasting=True,
    ),
    *(
        LiveFault(
            name=f"co-tenant ({script})", script=script, made="four processes of somebody else compute on each core", strike=strikes.others_compute(4),
            causes=frozenset({"host contended"}), truth=Truth.HOST, options=OPTIONS[script], alone=True, lasting=True,
        )
        for script in (MARKED, UNMARKED)
    ),
    LiveFault(
        name="clock 30 s ahead (marked)", script=MARKED, made="the clock of one node jumps", strike=strikes.clock_set(30.0),
        causes=frozenset({"clock.skewed"}), truth=Truth.NODE, clocks=1,
    ),
    LiveFault(
        name="clock 60 s behind (unmarked)", script=UNMARKED, made="the clock of one node jumps", strike=strikes.clock_set(-60.0),
        causes=frozenset({"clock.skewed", "clock.behind"}), truth=Truth.NODE, clocks=1,
    ),
)  # fmt: skip


FURTHER: tuple[LiveFault, ...] = (
    LiveFault(
        name="repeated data of one rank (marked)", script=MARKED, made="its loader gives one batch again and again", strike=strikes.ordered("same_data"),
        causes=frozenset({"repeated data"}), truth=Truth.WORKER, rank=2, lasting=True, further=True,
    ),
    LiveFault(
        name="repeated data of all ranks (marked)", script=MARKED, made="their loaders give one batch again and again", strike=strikes.ordered("same_data"),
        causes=frozenset({"repeated data"}), truth=Truth.NOBODY, lasting=True, further=True,
    ),
)  # fmt: skip
"""Made as well, and not counted with them."""


def _twin(name: str, script: str, made: str, strike: Strike, rank: int = EVERYBODY, *, lasting: bool = False, clocks: int = 0, steps: int = 1_000_000) -> LiveFault:
    """Nearest to a fault, and none."""
    return LiveFault(
        name=f"innocent: {name} ({script})", script=script, made=made, strike=strike, causes=frozenset(), truth=Truth.NOBODY, rank=rank,
        lasting=lasting, clocks=clocks, steps=steps, options=OPTIONS[script] if lasting else (), patience_s=40.0,
    )  # fmt: skip


TWINS: tuple[LiveFault, ...] = (
    _twin("a pause of all", MARKED, "all ranks sleep for 20 s", strikes.ordered("sleep", 20.0)),
    _twin("an evaluation", UNMARKED, "rank 0 computes for 20 s, the others wait", strikes.ordered("compute", 20.0), 0),
    _twin("a slow checkpoint", MARKED, "rank 0 saves for 15 s, marked as checkpoint", strikes.ordered("checkpoint", 15.0), 0),
    _twin("all are slower", MARKED, "all that all ranks compute takes 1.25 times as long", strikes.ordered("slower", 1.25), lasting=True),
    _twin("one is faster", MARKED, "all that one rank computes takes 0.7 times as long", strikes.ordered("slower", 0.7), 2, lasting=True),
    _twin("garbage once", UNMARKED, "one rank collects garbage for 3 s", strikes.ordered("collect_garbage", 3.0), 1, lasting=True),
    _twin("a fast link", UNMARKED, "tc: a token bucket of 10 Gbit/s", strikes.slow_link(10_000.0), lasting=True),
    _twin("the clocks of all", MARKED, "the clocks of both nodes jump by 30 s", strikes.clock_set(30.0), clocks=2),
    _twin("the end", UNMARKED, "all ranks end with exit code 0", strikes.nothing, steps=250),
)
"""Nobody may be accused, and nothing be done."""
