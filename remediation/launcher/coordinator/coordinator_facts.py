"""Facts: what a coordinator learns from launchers, workers, operators and its clock. Its state machine turns each into effects.

A fact that is about an epoch carries the epoch's number: one that comes late is recognized by it.
"""

import msgspec

from eagle_eye.types import Layout, WorkerStateReport

from .failure_signature import FailureSignature, kind_of_death, missed_a_peer, signature_of_end
from .membership import Member
from .quorum import Electorate
from .worker_registry import JoinRequest


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """Something that has happened."""


# --- launchers ------------------------------------------------------------------------------------------------------


class LauncherJoined(Fact, frozen=True, kw_only=True):
    """A launcher asks to take part, or its session is back after it broke."""

    member: Member
    last: Layout | None = None
    """The last valid layout that it knows."""
    promised: int = 0
    """The highest epoch that it has voted for."""
    elastic: tuple[JoinRequest, ...] = ()
    """Its elastic workers that live."""
    idle: bool = False
    """It has no worker left of an epoch that has not ended."""
    held: bool = False
    """They are fenced since it lost its coordinator: only another epoch frees them."""
    undecided: tuple[Electorate, ...] = ()
    """Layouts that it knows to be valid, or has voted for."""


class SessionBroke(Fact, frozen=True, kw_only=True):
    """A launcher's session broke. Alone this proves nothing, unless its vote or its workers are waited for."""

    node: str
    silent: bool = False
    """Nothing was heard of it, and nothing says that its process has ended."""


class NoProgress(Fact, frozen=True, kw_only=True):
    """The second witness: no worker has completed anything since the session of a suspect broke."""

    step: int = -1
    """That the workers are at; -1 if unknown."""


# --- votes ----------------------------------------------------------------------------------------------------------


class VoteGiven(Fact, frozen=True, kw_only=True):
    """A launcher has ended, or fenced, its old workers and votes for the epoch."""

    node: str
    epoch: int
    undecided: tuple[Electorate, ...] = ()
    """Other layouts that it knows to be valid, or has voted for before."""
    abstains: str = ""
    """Why it is ready for the epoch and cannot vote: it cannot read its older votes, or not write this one down."""


class PrepareFailed(Fact, frozen=True, kw_only=True):
    """A launcher cannot end its workers: the kernel holds them. It comes back by itself once they have ended."""

    node: str
    epoch: int
    reason: str


class VoteRefused(Fact, frozen=True, kw_only=True):
    """A launcher has already voted for an equal or higher epoch."""

    epoch: int
    promised: int


class GrantAnswer(Fact, frozen=True, kw_only=True):
    """Whether the leader agrees that exactly half of the launchers go on."""

    epoch: int
    granted: bool
    from_leader: bool
    """False: the leader could not be asked."""


class WorkersStarted(Fact, frozen=True, kw_only=True):
    """Every node of the epoch has started, or regrouped, its workers."""

    epoch: int


# --- workers --------------------------------------------------------------------------------------------------------


class WorkerDied(Fact, frozen=True, kw_only=True):
    """A worker ended that should not have. Further deaths of the same epoch belong to the same failure."""

    epoch: int
    cause: str = ""
    """Id of its event."""
    at_start: str = ""
    """What it died of, if it never came to its first step."""
    worker: str = ""
    pid: int = 0
    code: int | None = None
    """As subprocess has it: negative for a signal."""
    step: int = -1
    """That it was at; -1 if unknown."""
    noticed_s: float = 0.0
    """At most so many seconds before the report it died."""
    failure: FailureSignature | None = None
    """The exception that ended it, if it is one of the program's own."""

    symptom: bool = False
    """It raised what also a healthy worker raises when a peer is gone."""
    explained: str = ""
    """Status of hardware, network or storage that its exception, or its last lines, tell: how it ended shows nothing more."""

    @property
    def signature(self) -> FailureSignature | None:
        """What comes back if the program is to blame; None if something else is."""
        if self.failure is not None or self.explained or self.symptom:
            return self.failure
        return signature_of_end(self.code, self.step)

    @property
    def missed_a_peer(self) -> bool:
        """It died of what also a healthy worker dies of when a peer is gone."""
        return missed_a_peer(self.failure, self.explained, symptom=self.symptom)

    @property
    def kind(self) -> str:
        """What the heal budget counts as one cause."""
        return kind_of_death(self.failure, self.code, self.explained)


class LateFailure(WorkerDied, frozen=True, kw_only=True):
    """A worker had failed before its end was ordered, or before its death was told, which is known only now: there is nothing left to heal."""


class WorkerFinished(Fact, frozen=True, kw_only=True):
    """A worker of a job that is not elastic ended with code 0: at the end of the training, or too early for the others."""

    worker: str
    epoch: int
    step: int
    """That it was at; -1 if unknown."""


class NodeFinished(Fact, frozen=True, kw_only=True):
    """All workers of a node ended with code 0."""

    node: str
    epoch: int


class WorkerEntered(Fact, frozen=True, kw_only=True):
    """An elastic worker has started and is ready to be part of an epoch."""

    join_request: JoinRequest


class StateHeld(Fact, frozen=True, kw_only=True):
    """Fenced workers have reported which state they hold; the silent ones did not answer."""

    epoch: int
    holdings: tuple[WorkerStateReport, ...]
    silent: tuple[str, ...] = ()


class ConnectionsBroke(Fact, frozen=True, kw_only=True):
    """A worker's connections to its peers broke though nobody is known to be lost: a second witness."""

    worker: str
    epoch: int
    sender: str = ""
    """The worker whose state of `layers` arrived damaged."""
    layers: tuple[int, ...] = ()


class WorkersStalled(Fact, frozen=True, kw_only=True):
    """These workers make no progress, each for so many seconds, while all others wait for them."""

    epoch: int
    workers: dict[str, float]


class WorkersStuck(Fact, frozen=True, kw_only=True):
    """All workers wait for each other, and nothing shows for whom."""

    epoch: int


class WorkerRegrouped(Fact, frozen=True, kw_only=True):
    """A worker is in the group of the epoch and has its whole state."""

    worker: str
    epoch: int
    timings: dict[str, float]


class WorkerResumed(Fact, frozen=True, kw_only=True):
    """A worker has committed its first step of the epoch."""

    worker: str
    epoch: int
    recompute_s: float
    recomputed: tuple[int, ...]


class TrainingFinished(Fact, frozen=True, kw_only=True):
    """An elastic worker has come to the end of the training and will exit."""

    worker: str
    epoch: int


class WorkerExited(Fact, frozen=True, kw_only=True):
    """An elastic worker has ended with code 0."""

    worker: str
    pid: int


class LastCheckpointStatus(Fact, frozen=True, kw_only=True):
    """How the checkpoint gets on that a worker writes because the job stops, or is at its end."""

    worker: str
    step: int
    why: str
    """What keeps it from being written; '' if nothing does."""
    path: str


# --- commands -------------------------------------------------------------------------------------------------------


class JobCommand(Fact, frozen=True, kw_only=True):
    """Asked for by the leader or an operator; the effect `CommandResult` answers it by its key."""

    key: str
    plan: str = ""


class RestartCommand(JobCommand, frozen=True, kw_only=True):
    """All workers under a new epoch, without the evicted nodes.

    Of an elastic job only those concerned, if the command is only about who takes part.
    """

    reason: str = "command"
    kind: str = ""
    """What the heal budget counts it as, such as `python hang`; '' where the reason says it."""
    own: bool = False
    """It is charged to the job's own heal budget."""
    resume_step: int = -1
    skip: tuple[int, ...] = ()
    """Steps whose batches are skipped."""
    exclude: tuple[str, ...] = ()
    """Nodes to evict."""
    release: tuple[str, ...] = ()
    """Nodes that may take part again."""
    workers: tuple[str, ...] = ()
    """Only these, until new ones have taken their place."""
    swap: tuple[str, ...] = ()
    """Two nodes that exchange their ranks; all workers start again."""


class LiftEviction(JobCommand, frozen=True, kw_only=True):
    """An evicted node may take part again."""

    node: str


class StopCommand(JobCommand, frozen=True, kw_only=True):
    """The job is to end. Without a key nobody waits for the result."""


class RebalanceCommand(JobCommand, frozen=True, kw_only=True):
    """Each worker's part of the micro-batches; {}: even parts."""

    shares: dict[str, float]


class ResizeCommand(JobCommand, frozen=True, kw_only=True):
    """Other numbers of workers on some nodes."""

    sizes: dict[str, int]


# --- time -----------------------------------------------------------------------------------------------------------


class Timeout(Fact, frozen=True, kw_only=True):
    """A timer of the coordinator has expired. Each kind of time-out is one timer."""


class PhaseTimeout(Timeout, frozen=True, kw_only=True):
    """The present state has lasted as long as it may, or its batch of joiners is complete."""


class MajorityTimeout(Timeout, frozen=True, kw_only=True):
    """For a lease no majority of the launchers has been there, or has gone on."""


class MergeTimeout(Timeout, frozen=True, kw_only=True):
    """Deaths of elastic workers from now on are another failure."""


class JoinersTimeout(Timeout, frozen=True, kw_only=True):
    """Elastic workers that wait to join have waited for each other long enough."""


class ReconnectTimeout(Timeout, frozen=True, kw_only=True):
    """Connections between workers broke, and nobody was found dead since."""


class ReplacementTimeout(Timeout, frozen=True, kw_only=True):
    """The back-off of a worker that is to be replaced is over."""


class BoundaryTimeout(Timeout, frozen=True, kw_only=True):
    """Workers that are to leave have not come to the end of their step."""
