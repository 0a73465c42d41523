"""What a job declares at its start, the states that it may be in, and why an epoch is begun."""

from enum import StrEnum

import msgspec

from .parallel_sizes import DATA_PARALLEL, ParallelSizes


class JobPhase(StrEnum):
    """The state of the job."""

    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    WAITING = "waiting"
    """Too few nodes; goes on as soon as there are enough."""
    BACKOFF = "backing off"
    """The workers keep dying without progress: they are started again after a while."""
    SPENT = "spent"
    """The job may not heal itself any more; somebody else may still command a restart."""
    HALTING = "halting"
    """Its elastic workers save what they have and end."""
    ENDED = "ended"


class JobDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared at the start. Times in seconds."""

    job: str
    node: str
    """Of this launcher."""
    min_nodes: int
    max_nodes: int
    min_workers: int = 1
    """An elastic job with fewer saves a checkpoint and stops."""
    respawns: int = -1
    """How many elastic workers that died are replaced; -1: all, as long as the job may heal itself."""
    max_skipped_steps: int = 0
    """Steps that are skipped because the same failure came again in them; 0: the job ends."""
    weight: float = 1.0
    """What the job's progress is worth against that of others."""
    parallel: ParallelSizes = DATA_PARALLEL
    """How the model is split over the ranks."""
    batch_s: float = 0.2
    """How long further joiners are waited for."""
    merge_s: float = 0.005
    """Deaths of elastic workers within this time are one event."""
    join_timeout_s: float = 10.0
    """At the start: how long more than the minimum is waited for."""
    prepare_s: float = 5.0
    """A launcher that takes longer to end its workers, or to vote, is left behind."""
    grant_s: float = 0.25
    """Between two requests for the leader's grant."""
    lease_s: float = 2.0
    """How long an elastic job without a majority waits for one before it stops."""
    silent_s: float = 5.0
    """How long a launcher that has fallen silent is waited for before processes are started without it."""
    reconnect_s: float = 1.0
    """How long a group whose connections broke waits for somebody to be found dead, before it is formed anew."""
    boundary_s: float = 3.0
    """How long workers that are to leave may take to the end of their step, before the others go on without them."""
    halt_s: float = 60.0
    """How long workers may take over their last checkpoint without a word that it is still being written."""
    patience_s: float = 0.0
    """After the budget is spent: how long a command is waited for while the server is connected."""
    server_s: float = 0.0
    """The same while it is not: a server that was ended is started again; 0: the job has none."""
    backoff_s: float = 1.0
    """Before the second restart without progress since the first, which is immediate; twice as long before each further one."""
    backoff_max_s: float = 60.0
    """The longest of these delays."""
    healthy_s: float = 600.0
    """Workers that have run for so long have made progress, also where no step is known."""
    wait_nodes_s: float = 600.0
    """How long a job with too few nodes waits for more."""


DEATH = "death"
"""Reason of an epoch: a worker has died."""
LOST = "node lost"
"""The same: a launcher is gone."""


class EpochRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Why an epoch is begun and what it asks of the workers."""

    reason: str
    cause: str = ""
    """Id of the event behind it."""
    kind: str = ""
    """Of the failure, as the heal budget counts it; '' where the reason says it all."""
    symptom: bool = False
    """It is only what a worker dies of whose peer is gone: what that peer died of is not told yet."""
    step: int = -1
    """That the workers were at when they failed; -1 if it is not known."""
    paid: bool = False
    """It was charged to the heal budget."""
    plan: str = ""
    resume_step: int = -1
    in_place: bool = False
    """The workers live on: they are fenced, asked what they hold, and regrouped."""
    soft: bool = False
    """They finish the step that they are in."""
    halt: str = ""
    """Why the workers of this epoch are only to save a checkpoint and end."""
    final: bool = False
    """`halt` holds for new processes, too: if no worker is left that could save, the job has failed."""

    @property
    def failure(self) -> str:
        """What the heal budget counts it as."""
        return self.kind or self.reason
