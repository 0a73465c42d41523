"""What a coordinator knows: the job's state, its epochs and timers, and the parts that it owns. Changed by transitions alone."""

from eagle_eye.clock import Clock
from eagle_eye.types import Layout
from remediation.launcher.job_declaration import LOST, EpochRequest, JobDeclaration, JobPhase

from .backoff import Backoff
from .coordinator_effects import CommandResult, Effect, EmitEvent, End
from .coordinator_facts import PhaseTimeout, ReconnectTimeout, Timeout, WorkerDied
from .elastic_policy import ElasticPolicy
from .failure_signature import EarlyEndLog, FailureLog
from .heal_budget import HealBudget
from .membership import Member, Membership
from .quorum import Quorum, VoteCount

Effects = list[Effect]


class Timers:
    """One timer for each kind of time-out."""

    def __init__(self, clock: Clock, batch_s: float) -> None:
        """`batch_s`: how long further joiners are waited for."""
        self._clock = clock
        self._batch_s = batch_s
        self._due: dict[type[Timeout], float] = {}

    def arm(self, seconds: float, timer: type[Timeout] = PhaseTimeout) -> None:
        """Let it expire in so many seconds, whatever it was armed for before."""
        self._due[timer] = self._clock.monotonic() + seconds

    def arm_once(self, seconds: float, timer: type[Timeout]) -> None:
        """The same, unless it is armed already."""
        self._due.setdefault(timer, self._clock.monotonic() + seconds)

    def arm_batch(self, timer: type[Timeout] = PhaseTimeout) -> None:
        """Wait a moment for further joiners, counted from the first."""
        batch = self._clock.monotonic() + self._batch_s
        self._due[timer] = min(self._due.get(timer, batch), batch)

    def disarm(self, *timers: type[Timeout]) -> None:
        for timer in timers:
            self._due.pop(timer, None)

    def clear(self) -> None:
        self._due.clear()

    def armed(self, timer: type[Timeout] = PhaseTimeout) -> bool:
        return timer in self._due

    @property
    def wait_s(self) -> float | None:
        """Seconds until the next one expires; None if none is armed."""
        return max(0.0, min(self._due.values()) - self._clock.monotonic()) if self._due else None

    def expired(self) -> list[type[Timeout]]:
        """Those that are due now. Disarm each before it is dealt with."""
        now = self._clock.monotonic()
        return [timer for timer, due in self._due.items() if due <= now]


class CoordinatorState:
    """Handed to every transition. The parts know nothing of one another."""

    isolated = False
    """No majority has been there for a lease: nothing is begun, no worker is ended, and others are asked whether they have gone on."""
    held_back = False
    """An epoch is wanted, and is not begun: too few launchers can be reached, or one that is silent is waited for."""
    unbroken = False
    """Every worker of the last epoch is where it was: none has died, none was ordered to end, and no launcher was started again."""
    death: WorkerDied | None = None
    """Of a worker of the last epoch, told since it began: the first that is no mere symptom, if there is one."""
    restarted = False
    """A launcher of the last epoch was started again since it began."""
    exhausted = ""
    """Why the job may not heal itself any more."""
    swap: tuple[str, ...] = ()
    """Two nodes that exchange their ranks in the next valid epoch."""
    suspected: WorkerDied | None = None
    """An end without an exception that came again, before it is known what the peers died of."""

    def __init__(
        self, declaration: JobDeclaration, budget: HealBudget, clock: Clock, last: Layout | None, lost: tuple[str, ...]
    ) -> None:
        """`last`: the last valid layout, after a coordinator election or a restart; `lost`: nodes known to be gone."""
        self.declaration = declaration
        self.budget = budget
        self.clock = clock
        self.phase = JobPhase.GATHERING
        self.last = last
        """The last valid layout."""
        self.epoch = last.epoch if last is not None else 0
        """The highest number that this coordinator has given out."""
        self.forming: Layout | None = None
        """The layout that is voted on, or was last."""
        self.request = EpochRequest(reason="start") if last is None else EpochRequest(reason=LOST if lost else "node returned")
        """Why that epoch was begun."""
        self.timers = Timers(clock, declaration.batch_s)
        self.membership = Membership(declaration.node, declaration.max_nodes, last.excluded if last is not None else ())
        self.quorum = Quorum(self.epoch)
        self.elastic = ElasticPolicy(declaration, budget, clock)
        self.restarts = Backoff(clock, declaration.backoff_s, declaration.backoff_max_s, declaration.healthy_s)
        """Of the workers as a whole."""
        self.commanded = True
        """The server, which could command a restart, is connected: an exhausted budget is not the end at once."""
        self.led = False
        """This launcher has had a valid epoch as coordinator, and a majority since."""
        self.own_loss = bool(lost)
        """The election was caused by a lost node: the new epoch is charged to the job's own budget."""
        self.awaited = set(last.voters) - set(lost) if last is not None else set()
        """Launchers that are waited for before the first epoch of this coordinator."""
        self.skipped: set[int] = set(last.skipped) if last is not None else set()
        """Steps whose batches are skipped."""
        self.started = 0
        """The last epoch that every node has started."""
        self.finished: set[str] = set()
        """Nodes of which all workers ended with code 0."""
        self.early_ends = EarlyEndLog()
        self.failures = FailureLog()
        """What ended workers: what comes again is no fault of a node."""
        self.unanswered: list[str] = []
        """Keys of the commands that the epoch which is being formed will answer."""
        self.give_up_at = 0.0
        """When a job with too few nodes fails."""

    def note_death(self, died: WorkerDied) -> None:
        """What the last epoch has lost for sure, whoever could not be reached beside it."""
        if self.is_current(died.epoch) and (self.death is None or self.death.missed_a_peer):
            self.death = died

    # --- the server -------------------------------------------------------------------------------------------------

    def server_is(self, connected: bool) -> None:
        """Its session has opened or broken: where only a command saves the job, one is waited for anew."""
        self.commanded = connected
        if self.phase is JobPhase.SPENT:
            self.await_command()

    def await_command(self) -> None:
        """SPENT: for as long as a server that is connected needs, or one that is not needs to be started again; not for ever if it comes and goes."""
        seconds = self.declaration.patience_s if self.commanded else self.declaration.server_s
        self.timers.arm(max(0.0, min(seconds, self.give_up_at - self.clock.monotonic())))

    # --- questions --------------------------------------------------------------------------------------------------

    @property
    def in_place(self) -> bool:
        """The running epoch is one of elastic workers, and they may heal in place."""
        return self.last is not None and self.last.in_place and self.budget.rule.in_place

    @property
    def training(self) -> bool:
        """The workers are at work: also while a soft epoch is formed."""
        return self.phase is JobPhase.RUNNING or (self.phase is JobPhase.FORMING and self.request.soft)

    @property
    def serving(self) -> tuple[str, ...]:
        """Living workers of the running epoch, by rank."""
        return tuple(worker for worker in self.last.workers if worker in self.elastic.serving) if self.last is not None else ()

    @property
    def candidate(self) -> bool:
        """After an election or a restart, until a majority has followed; also a coordinator that has lost its majority and trains no more."""
        return self.phase in {JobPhase.GATHERING, JobPhase.FORMING, JobPhase.WAITING} and self.last is not None and not self.led

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes of the running epoch whose session is gone: lost as soon as a second witness confirms it."""
        if self.phase is not JobPhase.RUNNING or self.last is None:
            return ()
        return tuple(node for node in self.last.nodes if not self.membership.is_connected(node) and node not in self.finished)

    @property
    def stalls(self) -> bool:
        """RUNNING: perhaps nobody comes to the end of this step: a launcher of the epoch cannot be reached, or connections between workers broke."""
        return bool(self.suspects) or (self.phase is JobPhase.RUNNING and self.timers.armed(ReconnectTimeout))

    @property
    def only_silent(self) -> bool:
        """Launchers of the running epoch cannot be reached, and nothing says of any of them that its process has ended."""
        return bool(self.suspects) and all(node in self.membership.members and self.membership.members[node].silent for node in self.suspects)

    @property
    def all_here(self) -> bool:
        """Every launcher of the last epoch can be reached, and none was started again since."""
        return self.last is not None and not self.restarted and all(map(self.membership.is_connected, self.last.nodes))

    @property
    def eligible(self) -> list[Member]:
        """Members that an epoch may use, in the election order."""
        return self.membership.eligible(self.last)

    @property
    def reachable(self) -> VoteCount:
        """How many launchers of the last valid layout have a session; of one that may be valid without our knowledge, if fewer of those have."""
        return self.quorum.reached(self.last, self.membership.connected)

    @property
    def missing(self) -> tuple[str, ...]:
        """Launchers without a session whose votes count."""
        return tuple(node for node in self.quorum.entitled(self.last) if not self.membership.is_connected(node))

    @property
    def may_go_on(self) -> bool:
        """A majority of the launchers is here, or a server that could let half of them go on: else nobody's workers may be touched."""
        count = self.reachable
        return count.majority or (count.grantable and self.commanded)

    @property
    def lives_on(self) -> bool:
        """Elastic workers are left that can go on in place."""
        return self.in_place and any(self.membership.is_connected(worker.node) for worker in self.elastic.registry.entered.values())

    def is_forming(self, epoch: int) -> bool:
        """The epoch of that number is being voted on."""
        return self.phase is JobPhase.FORMING and self.forming is not None and epoch == self.forming.epoch

    def is_current(self, epoch: int) -> bool:
        """The epoch of that number is the last valid one."""
        return self.last is not None and epoch == self.last.epoch

    # --- effects that several transitions have in common --------------------------------------------------------------

    def job_event(self, name: str, message: str, reason: str = "", *, trains: bool = False) -> EmitEvent:
        """`trains`: it concerns no worker."""
        attributes = {"epoch": str(self.epoch), "reason": reason or message}
        return EmitEvent(name=name, message=message, attributes=attributes | ({"trains": "1"} if trains else {}))

    def answer(self, epoch: int = 0, error: str = "") -> Effects:
        """The results of the commands that wait for an epoch. What failed is not done later."""
        if error:
            self.swap = ()
        answered: Effects = [CommandResult(command=command, epoch=epoch, error=error) for command in self.unanswered]
        self.unanswered.clear()
        return answered

    def finish(self) -> Effects:
        """The training is done."""
        event = self.job_event("job.finished", "every worker ended with code 0")
        return self._end(event, "the job has finished", 0, "finished")

    def fail(self, reason: str) -> Effects:
        """The job cannot go on."""
        return self._end(self.job_event("job.failed", reason), f"the job has failed: {reason}", 1, reason)

    def _end(self, event: EmitEvent, error: str, code: int, reason: str) -> Effects:
        self.phase = JobPhase.ENDED
        self.timers.clear()
        return [event, *self.answer(error=error), End(code=code, reason=reason)]
