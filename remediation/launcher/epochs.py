"""How an epoch is formed: from `Prepare` over the votes to a valid layout. The part of the coordinator that counts.

Whatever goes wrong on the way begins another epoch with a higher number.
"""

from collections.abc import Callable

from eagle_eye.clock import Clock
from eagle_eye.types import Layout, RankPlacement

from .effects import AskGrant, CommandResult, Effect, EmitEvent, End, EndWorkers, Prepare, Start
from .heal_budget import HealBudget
from .job_declaration import EpochRequest, JobDeclaration, JobPhase
from .membership import Member, count_votes, election_order, places, voters

Effects = list[Effect]


class Epochs:
    """Members, votes and timers. `_begin` asks for an epoch, `_valid` is where it has become one."""

    def __init__(
        self, declaration: JobDeclaration, budget: HealBudget, clock: Clock, last: Layout | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        """`last`: the last valid layout, after a coordinator election or a restart; `lost`: nodes known to be gone."""
        self.declaration = declaration
        self.budget = budget
        self.last = last
        self.epoch = last.epoch if last is not None else 0
        self.phase = JobPhase.GATHERING
        self.commanded = True
        """Somebody who could command a restart is listening: a spent budget is not the end at once."""
        self.members: dict[str, Member] = {}
        self.excluded: set[str] = set(last.excluded) if last is not None else set()
        self._skipped: set[int] = set(last.skipped) if last is not None else set()
        self._clock = clock
        self._promised = self.epoch
        self._request = EpochRequest(reason="start") if last is None else EpochRequest(reason="node lost" if lost else "node returned")
        self._led = False
        """This launcher has had a valid epoch as coordinator."""
        self._forming: Layout | None = None
        self._acknowledged: set[str] = set()
        self._asked = False
        self._begun = 0
        """The last epoch of which it was told that it has begun."""
        self._finished: set[str] = set()
        self._unanswered: list[str] = []
        self._give_up = 0.0
        self._due: dict[str, float] = {}
        """Name of a timer → when it rings. `phase` is the one that each phase has for itself."""

    # --- what the driver may ask --------------------------------------------------------------------------------

    @property
    def wait_s(self) -> float | None:
        """Seconds until `tick` is due; None if nothing is waited for."""
        return max(0.0, min(self._due.values()) - self._clock.monotonic()) if self._due else None

    @property
    def candidate(self) -> bool:
        """After a coordinator election or a restart, as long as no majority has followed; also one that has lost its majority."""
        return self.phase in {JobPhase.GATHERING, JobPhase.FORMING, JobPhase.WAITING} and self.last is not None and not self._led

    @property
    def missing(self) -> tuple[str, ...]:
        """Launchers of the last valid layout that have no session."""
        return tuple(node for node in voters(self.last) if not self._connected(node)) if self.last is not None else ()

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes of the running epoch whose session is gone: lost as soon as a second witness says so."""
        if self.phase is not JobPhase.RUNNING or self.last is None:
            return ()
        return tuple(node for node in self.last.nodes if not self._connected(node) and node not in self._finished)

    # --- votes --------------------------------------------------------------------------------------------------

    def acknowledged(self, node: str, epoch: int) -> Effects:
        """A launcher has ended, or fenced, its old workers and votes for the epoch."""
        if not self._is_forming(epoch):
            return []
        self._acknowledged.add(node)
        return self._settle()

    def refused(self, epoch: int, promised: int) -> Effects:
        """A launcher has already voted for a higher epoch: take a number above that."""
        self._promised = max(self._promised, promised)
        return self._begin(self._request) if self._is_forming(epoch) else []

    def granted(self, epoch: int, granted: bool) -> Effects:
        """The leader's answer to `AskGrant`."""
        if self._forming is None or not self._is_forming(epoch):
            return []
        if granted:
            return self._valid(self._forming)
        self._asked = False
        self._arm(self.declaration.grant_s)
        return []

    def started(self, epoch: int) -> Effects:
        """Every node of the epoch has started, or regrouped, its workers."""
        if self.last is None or self.last.epoch != epoch or self.phase is not JobPhase.RUNNING or self._begun == epoch:
            return []
        self._begun = epoch
        effects: Effects = []
        if self._request.reason == "start":
            effects.append(self._job_event("job.started", "the workers were started"))
        attributes = {
            "epoch": str(epoch), "reason": self._request.reason, "cause": self._request.cause, "plan": self._request.plan,
            "excluded": ",".join(sorted(self.excluded)), "restarts": str(self.budget.spent),
            "budget_left": str(self.budget.left), "in_place": str(int(self.last.in_place)),
        }  # fmt: skip
        effects.append(EmitEvent(name="epoch.begun", message=f"epoch {epoch}: {self._request.reason}", attributes=attributes))
        return effects + self._answer(epoch=epoch)

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self) -> Effects:
        """Something may be due: call it when `wait_s` is over."""
        now = self._clock.monotonic()
        effects: Effects = []
        for name in [name for name, due in self._due.items() if due <= now]:
            if self._due.pop(name, None) is not None:
                effects += self._rings()[name]()
        return effects

    def _rings(self) -> dict[str, Callable[[], Effects]]:
        """What each timer is for."""
        return {"phase": self._phase_is_late, "majority": self._majority_is_late}

    def _phase_is_late(self) -> Effects:
        if self.phase is JobPhase.FORMING:
            return self._forming_is_late()
        if self.phase is JobPhase.WAITING:
            return self._waited()
        if self.phase is JobPhase.SPENT:
            return self._fail(f"its own budget ({self.budget.heal}) is spent and nobody commanded a restart")
        return []

    # --- forming ------------------------------------------------------------------------------------------------

    def _heal(self, request: EpochRequest) -> Effects:
        """Begin an epoch on the job's own account."""
        if self.budget.take():
            return self._begin(request)
        self.phase = JobPhase.SPENT
        self._arm(self.declaration.patience_s if self.commanded else 0.0)
        attributes = {"heal": self.budget.heal, "restarts": str(self.budget.spent), "cause": request.cause}
        message = f"{request.reason}: the job may not restart itself again ({self.budget.heal})"
        return [
            EmitEvent(name="budget.spent", message=message, attributes=attributes),
            EndWorkers(nodes=self._all_connected(), reason="budget spent"),
        ]

    def _begin(self, request: EpochRequest) -> Effects:
        self._request = request
        members = self._eligible()
        if len(members) < self.declaration.min_nodes:
            return self._wait_for_nodes(len(members))
        return self._form(members, places(self.declaration.job.rsplit("/", 1)[-1], members))

    def _form(self, members: list[Member], ranks: tuple[RankPlacement, ...]) -> Effects:
        self.epoch = max(self.epoch, self._promised) + 1
        self._promised = self.epoch
        self._forming = self._layout(members, ranks)
        self._acknowledged = set()
        self._asked = False
        self.phase = JobPhase.FORMING
        self._arm(self.declaration.prepare_s)
        if not self._request.soft:
            self._wait_for_a_majority()
        return [self._prepare(self._forming, self._all_connected())]

    def _prepare(self, layout: Layout, nodes: tuple[str, ...]) -> Prepare:
        return Prepare(nodes=nodes, layout=layout)

    def _layout(self, members: list[Member], ranks: tuple[RankPlacement, ...]) -> Layout:
        request = self._request
        idle = [member for member in election_order(self.last, self.members.values(), self.declaration.node)
                if member not in members]  # fmt: skip
        return Layout(
            job=self.declaration.job, epoch=self.epoch, time=self._clock.now(), coordinator=self.declaration.node,
            launchers={member.node: member.address for member in (*members, *idle)}, placements=ranks,
            excluded=tuple(sorted(self.excluded)), reason=request.reason, plan=request.plan, resume_step=request.resume_step,
            skipped=tuple(sorted(self._skipped)), restarts=self.budget.spent, in_place=request.in_place,
        )  # fmt: skip

    def _settle(self) -> Effects:
        """Is the epoch valid now?"""
        layout = self._forming
        if layout is None or not self._acknowledged.issuperset(layout.nodes):
            return []
        count = count_votes(self.last, self._acknowledged)
        if count.majority:
            return self._valid(layout)
        silent = [node for node in voters(self.last or layout) if node not in self._acknowledged]
        if any(self._connected(node) for node in silent) or not count.half or self._asked or self.last is None:
            return []
        self._asked = True
        return [AskGrant(layout=layout, missing=tuple(silent))]

    def _forming_is_late(self) -> Effects:
        """Leave those behind that did not acknowledge in time; they are back when they say so."""
        if self._forming is None:
            return []
        late = [node for node in self._forming.launchers if node not in self._acknowledged and self._connected(node)]
        for node in late:
            self.members[node].connected = False
        missing = [node for node in self._forming.nodes if node not in self._acknowledged]
        self._arm(self.declaration.grant_s)
        return self._begin(self._request) if missing else self._settle()

    def _valid(self, layout: Layout) -> Effects:
        self.phase = JobPhase.RUNNING
        self._led = True
        self.last = layout
        self._finished = set()
        for timer in ("phase", "majority"):
            self._disarm(timer)
        if any(self._welcome(member, layout) for member in self.members.values()):
            self._arm_batch()
        return [
            Start(nodes=self._all_connected(), layout=layout, cause=self._request.cause, budget_left=self.budget.left)
        ]

    def _welcome(self, member: Member, layout: Layout) -> bool:
        """A connected launcher that the layout left out though there is room for it."""
        outside = member.connected and member.node not in layout.nodes and member.node not in self.excluded
        return outside and len(layout.nodes) < self.declaration.max_nodes and self.budget.limit > 0

    def _waited(self) -> Effects:
        if len(self._eligible()) >= self.declaration.min_nodes:
            return self._begin(EpochRequest(reason="node returned"))
        left = self._give_up - self._clock.monotonic()
        if left <= 0 and self._is_minority:
            return []  # the others may have gone on: whoever is cut off does not say how the job ends
        if left <= 0:
            return self._fail("too few nodes came back")
        self._arm(left)
        return []

    def _wait_for_nodes(self, here: int) -> Effects:
        if self.phase is not JobPhase.WAITING:
            self._give_up = self._clock.monotonic() + self.declaration.wait_nodes_s
        self.phase = JobPhase.WAITING
        self._arm(self.declaration.wait_nodes_s)
        self._wait_for_a_majority()
        reason = f"{here} node(s) are left, the job needs {self.declaration.min_nodes}"
        return [EndWorkers(nodes=self._all_connected(), reason=reason), *self._answer(error=reason)]

    def _wait_for_a_majority(self) -> None:
        """From now on, whatever is begun until there is one."""
        self._due.setdefault("majority", self._clock.monotonic() + self.declaration.lease_s)

    def _majority_is_late(self) -> Effects:
        """Another part of the job may have gone on without this one: it is to be looked for."""
        if self.phase in {JobPhase.FORMING, JobPhase.WAITING} and not count_votes(self.last, self._all_connected()).majority:
            self._led = False
        return []

    @property
    def _is_minority(self) -> bool:
        """Most launchers of the last valid layout cannot be reached."""
        count = count_votes(self.last, self._all_connected())
        return not (count.majority or count.half)

    # --- the end ------------------------------------------------------------------------------------------------

    def _end(self, event: EmitEvent, error: str, code: int, reason: str) -> Effects:
        self.phase = JobPhase.ENDED
        self._due.clear()
        return [event, *self._answer(error=error), End(code=code, reason=reason)]

    def _done(self) -> Effects:
        event = self._job_event("job.finished", "every worker ended with code 0")
        return self._end(event, "the job has finished", 0, "finished")

    def _fail(self, reason: str) -> Effects:
        return self._end(self._job_event("job.failed", reason), f"the job has failed: {reason}", 1, reason)

    # --- small things -------------------------------------------------------------------------------------------

    def _eligible(self) -> list[Member]:
        ordered = election_order(self.last, self.members.values(), self.declaration.node)
        return [member for member in ordered if member.node not in self.excluded][: self.declaration.max_nodes]

    def _is_forming(self, epoch: int) -> bool:
        return self.phase is JobPhase.FORMING and self._forming is not None and epoch == self._forming.epoch

    def _job_event(self, name: str, message: str, reason: str = "") -> EmitEvent:
        return EmitEvent(name=name, message=message, attributes={"epoch": str(self.epoch), "reason": reason or message})

    def _answer(self, epoch: int = 0, error: str = "") -> Effects:
        answered: Effects = [CommandResult(command=command, epoch=epoch, error=error) for command in self._unanswered]
        self._unanswered.clear()
        return answered

    def _all_connected(self) -> tuple[str, ...]:
        return tuple(node for node, member in self.members.items() if member.connected)

    def _connected(self, node: str) -> bool:
        member = self.members.get(node)
        return member is not None and member.connected

    @property
    def _waits(self) -> bool:
        """The phase's own timer is set."""
        return "phase" in self._due

    def _arm(self, seconds: float, timer: str = "phase") -> None:
        self._due[timer] = self._clock.monotonic() + seconds

    def _disarm(self, timer: str) -> None:
        self._due.pop(timer, None)

    def _arm_batch(self, timer: str = "phase") -> None:
        """Wait a moment for further joiners, counted from the first."""
        batch = self._clock.monotonic() + self.declaration.batch_s
        self._due[timer] = min(self._due.get(timer, batch), batch)
