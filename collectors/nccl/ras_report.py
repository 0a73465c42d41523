"""What NCCL's RAS subsystem tells of a job, in whichever of its formats: communicators, and the ranks in them that stand out."""

from dataclasses import dataclass, field


class RasError(Exception):
    """RAS gave no report; the message says why, and what to do where that is known."""


@dataclass(frozen=True, slots=True)
class RankProcess:
    """A rank of a communicator, and the process that has it."""

    rank: int
    """Within the communicator."""
    host: str = ""
    """Address that the process uses for NCCL's own connections; '': not told."""
    pid: int = 0
    """As the process itself sees it; 0: not told."""
    gpu: int = -1
    """CUDA's index in that process; -1: not told."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, GPU {self.gpu}" if self.pid else ""


@dataclass(frozen=True, slots=True)
class AbsentRank:
    """A rank from which RAS has no data of the communicator."""

    process: RankProcess
    unresponsive: bool = True
    """Its process does not answer. False: it answers, and is no member (any more, or yet)."""
    dead: bool = False
    """RAS has given its process up, after 60 s without an answer."""


@dataclass(frozen=True, slots=True)
class LaggingRank:
    """How many operations of one kind a rank has launched."""

    process: RankProcess
    count: int


@dataclass(frozen=True, slots=True)
class OperationLag:
    """An operation that some ranks of a communicator have launched more often than others."""

    operation: str
    """Such as AllReduce; '': all kinds together, as NCCL before 2.26 counts them."""
    newest: int
    """The most that a rank has launched."""
    ranks: tuple[LaggingRank, ...]
    """Those that are named of the ranks with fewer."""
    count: int
    """All ranks with fewer: RAS names no half of a communicator in text."""


@dataclass(frozen=True, slots=True)
class FailedRank:
    """A rank whose communicator is in an error state."""

    process: RankProcess
    error: str
    """In NCCL's words."""


@dataclass(frozen=True, slots=True)
class RasCommunicator:
    """One communicator; what stands out in it is empty for a healthy one."""

    name: str
    """Its hash, as NCCL's log lines write it: 0x and hexadecimal digits."""
    size: int = 0
    """Ranks; 0: not told."""
    absent: tuple[AbsentRank, ...] = ()
    absent_count: int = 0
    """All that are absent: in text not all are named."""
    lags: tuple[OperationLag, ...] = ()
    failed: tuple[FailedRank, ...] = ()

    @property
    def stands_out(self) -> bool:
        return bool(self.absent_count or self.lags or self.failed)


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer of RAS."""

    version: str
    """Of NCCL; '': not told."""
    communicators: tuple[RasCommunicator, ...]
    """JSON: all; text: those that stand out."""
    members: dict[str, tuple[RankProcess, ...]] = field(default_factory=dict)
    """Communicator's name → all its ranks; of JSON alone."""
