"""The job's coordinator as a state machine: facts in, effects out, no sockets and no processes.

It raises the job's epoch. An epoch begins with `Prepare` to every launcher (each ends its old workers; its
acknowledgement is its vote), is valid once enough of the launchers of the last valid layout have voted, and only
then gets a store and workers. Whatever goes wrong on the way begins another epoch with a higher number.

    GATHERING → FORMING → RUNNING → (FORMING | WAITING | SPENT)* → ENDED
"""

from enum import StrEnum

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.types import Layout

from .effects import Answer, AskGrant, Effect, End, Halt, Prepare, Start, Tell
from .healing import Budget
from .membership import Member, places, succession, tally, voters

Effects = list[Effect]


class Phase(StrEnum):
    """Where the job stands."""

    GATHERING = "gathering"
    FORMING = "forming"
    RUNNING = "running"
    WAITING = "waiting"
    """Too few nodes; goes on as soon as there are enough."""
    SPENT = "spent"
    """The job may not heal itself any more; somebody else may still command a restart."""
    ENDED = "ended"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What was declared at the start. Times in seconds."""

    job: str
    node: str
    """Of this launcher."""
    min_nodes: int
    max_nodes: int
    batch_s: float = 0.2
    """How long further joiners are waited for."""
    join_timeout_s: float = 10.0
    """At the start: how long more than the minimum is waited for."""
    prepare_s: float = 5.0
    """A launcher that takes longer to end its workers is left behind."""
    grant_s: float = 0.25
    """Between two requests for the leader's voice."""
    patience_s: float = 0.0
    """After the budget is spent: how long a command is waited for."""
    wait_nodes_s: float = 600.0
    """How long a job with too few nodes waits for more."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """Why an epoch is begun and what it asks of the workers."""

    reason: str
    cause: str = ""
    plan: str = ""
    resume_step: int = -1


class Coordinator:
    """Every public method states one fact and returns what is to be done about it."""

    def __init__(
        self, rules: Rules, budget: Budget, clock: Clock, last: Layout | None = None, lost: tuple[str, ...] = ()
    ) -> None:
        """`last`: the last valid layout, after a succession or a restart; `lost`: nodes known to be gone."""
        self.rules = rules
        self.budget = budget
        self.last = last
        self.epoch = last.epoch if last is not None else 0
        self.phase = Phase.GATHERING
        self.commanded = True
        """Somebody who could command a restart is listening: a spent budget is not the end at once."""
        self.members: dict[str, Member] = {}
        self.excluded: set[str] = set(last.excluded) if last is not None else set()
        self._skipped: set[int] = set(last.skipped) if last is not None else set()
        self._clock = clock
        self._promised = self.epoch
        self._wish = Wish(reason="start") if last is None else Wish(reason="node lost" if lost else "node returned")
        self._own_loss = bool(lost)
        self._awaited = set(voters(last)) - set(lost) if last is not None else set()
        self._led = False
        """This launcher has had a valid epoch as coordinator."""
        self._forming: Layout | None = None
        self._acknowledged: set[str] = set()
        self._asked = False
        self._finished: set[str] = set()
        self._unanswered: list[str] = []
        self._give_up = 0.0
        self._deadline: float | None = None
        self._arm(rules.join_timeout_s if last is None else rules.batch_s)

    # --- what the driver may ask --------------------------------------------------------------------------------

    @property
    def wait_s(self) -> float | None:
        """Seconds until `tick` is due; None if nothing is waited for."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock.monotonic())

    @property
    def candidate(self) -> bool:
        """After a succession or a restart, as long as no majority has followed."""
        return self.phase in {Phase.GATHERING, Phase.FORMING} and self.last is not None and not self._led

    @property
    def suspects(self) -> tuple[str, ...]:
        """Nodes of the running epoch whose session is gone: lost as soon as a second witness says so."""
        if self.phase is not Phase.RUNNING or self.last is None:
            return ()
        return tuple(node for node in self.last.nodes if not self._connected(node) and node not in self._finished)

    # --- members ------------------------------------------------------------------------------------------------

    def joined(self, member: Member, last: Layout | None = None, promised: int = 0) -> Effects:
        """A launcher asks to take part (or is back after its session broke).

        `last`: the last valid layout that it knows, `promised`: the highest epoch that it has voted for.
        """
        before = self.members.get(member.node)
        same = before is not None and before.boot == member.boot
        self.members[member.node] = member
        self._promised = max(self._promised, promised)
        if self.phase is Phase.GATHERING:
            self._adopt(last)
            return self._gathered()
        if self.phase is Phase.FORMING:
            return self._joined_while_forming(member, same)
        if member.node in self.excluded or self.phase not in {Phase.RUNNING, Phase.WAITING}:
            return []
        if self.phase is Phase.RUNNING and self.last is not None:
            in_step = same and last is not None and last.epoch == self.last.epoch
            taken = member.node in self.last.nodes
            full = not taken and len(self.last.nodes) >= self.rules.max_nodes
            if (taken and in_step) or full:
                return []
            if self.budget.limit == 0:
                return self._heal(Wish(reason="node lost")) if taken else []
        self._arm_batch()
        return []

    def left(self, node: str) -> Effects:
        """A launcher's session is gone. Alone this proves nothing, unless its vote or its workers are waited for."""
        member = self.members.get(node)
        if member is None or not member.connected:
            return []
        member.connected = False
        if self.phase in {Phase.GATHERING, Phase.ENDED}:
            return []
        told: Effects = [
            Tell(name="peer.lost", message=f"the session of the launcher on {node} broke", node=node,
                 attributes={"seen_by": self.rules.node})
        ]  # fmt: skip
        if self.phase is Phase.FORMING and self._forming is not None:
            return told + (self._begin(self._wish) if node in self._forming.nodes else self._settle())
        return told

    # --- votes --------------------------------------------------------------------------------------------------

    def acknowledged(self, node: str, epoch: int) -> Effects:
        """A launcher has ended its old workers and votes for the epoch."""
        if self.phase is not Phase.FORMING or self._forming is None or epoch != self._forming.epoch:
            return []
        self._acknowledged.add(node)
        return self._settle()

    def refused(self, epoch: int, promised: int) -> Effects:
        """A launcher has already voted for a higher epoch: take a number above that."""
        self._promised = max(self._promised, promised)
        if self.phase is Phase.FORMING and self._forming is not None and epoch == self._forming.epoch:
            return self._begin(self._wish)
        return []

    def granted(self, epoch: int, granted: bool) -> Effects:
        """The leader's answer to `AskGrant`."""
        if self.phase is not Phase.FORMING or self._forming is None or epoch != self._forming.epoch:
            return []
        if granted:
            return self._valid(self._forming)
        self._asked = False
        self._arm(self.rules.grant_s)
        return []

    def started(self, epoch: int) -> Effects:
        """Every node of the epoch has started its workers."""
        if self.last is None or self.last.epoch != epoch or self.phase is not Phase.RUNNING:
            return []
        effects: Effects = []
        if self._wish.reason == "start":
            effects.append(self._job_event("job.started", "the workers were started"))
        attributes = {
            "epoch": str(epoch), "reason": self._wish.reason, "cause": self._wish.cause, "plan": self._wish.plan,
            "excluded": ",".join(sorted(self.excluded)), "restarts": str(self.budget.spent),
            "budget_left": str(self.budget.left),
        }  # fmt: skip
        effects.append(Tell(name="epoch.begun", message=f"epoch {epoch}: {self._wish.reason}", attributes=attributes))
        return effects + self._answer(epoch=epoch)

    # --- workers ------------------------------------------------------------------------------------------------

    def died(self, epoch: int, cause: str = "", at_start: str = "") -> Effects:
        """A worker ended that should not have. Further deaths of the same epoch belong to the same event.

        `cause`: id of its event; `at_start`: what it died of, if it never came to its first step.
        """
        if self.phase is not Phase.RUNNING or self.last is None or epoch != self.last.epoch:
            return []
        if at_start and self.last.reason == "start":
            return self._fail(f"the script ended before its first step: {at_start}")
        reason = "node lost" if self.suspects else "death"
        return self._heal(Wish(reason=reason, cause=cause))

    def standing_still(self) -> Effects:
        """The second witness: no worker has moved since the session of a suspect broke."""
        return self._heal(Wish(reason="node lost")) if self.suspects else []

    def finished(self, node: str, epoch: int) -> Effects:
        """All workers of a node ended with code 0."""
        if self.phase is not Phase.RUNNING or self.last is None or epoch != self.last.epoch:
            return []
        self._finished.add(node)
        if not self._finished.issuperset(self.last.nodes):
            return []
        self.phase = Phase.ENDED
        self._deadline = None
        return [
            self._job_event("job.finished", "every worker ended with code 0"),
            *self._answer(error="the job has finished"),
            End(code=0, reason="finished"),
        ]

    # --- commands -----------------------------------------------------------------------------------------------

    def restart(
        self, command: str, *, plan: str = "", reason: str = "command", own: bool = False, resume_step: int = -1,
        skip: tuple[int, ...] = (), exclude: tuple[str, ...] = (), release: tuple[str, ...] = (),
    ) -> Effects:  # fmt: skip
        """All workers under a new epoch, without the excluded nodes; `own` spends the job's own budget."""
        if self.phase not in {Phase.RUNNING, Phase.WAITING, Phase.SPENT}:
            return [Answer(command=command, error=f"the job is {self.phase}: ask again in its next epoch")]
        excluded = (self.excluded | set(exclude)) - set(release)
        left = sum(member.connected and member.node not in excluded for member in self.members.values())
        if left < self.rules.min_nodes:
            error = f"without {', '.join(sorted(excluded))} {left} node(s) are left, the job needs {self.rules.min_nodes}"
            return [Answer(command=command, error=error)]
        if own and not self.budget.take():
            return [Answer(command=command, error=f"the job's own budget ({self.budget.heal}) is spent")]
        self.excluded = excluded
        self._skipped |= set(skip)
        self._unanswered.append(command)
        return self._begin(Wish(reason=reason, plan=plan, resume_step=resume_step))

    def release(self, command: str, node: str, plan: str = "") -> Effects:
        """An excluded node may take part again."""
        self.excluded.discard(node)
        room = self.last is not None and len(self.last.nodes) < self.rules.max_nodes
        if not self._connected(node) or self.phase not in {Phase.RUNNING, Phase.WAITING} or not room:
            return [Answer(command=command, epoch=self.epoch)]
        self._unanswered.append(command)
        return self._begin(Wish(reason="node released", plan=plan))

    def stop(self, command: str = "") -> Effects:
        """Somebody wants the job to end."""
        if self.phase is Phase.ENDED:
            return [Answer(command=command, epoch=self.epoch)] if command else []
        self.phase = Phase.ENDED
        answer: Effects = [Answer(command=command, epoch=self.epoch)] if command else []
        return [*answer, self._job_event("job.finished", "stopped", reason="stopped"), End(code=130, reason="stopped")]

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self) -> Effects:
        """Something may be due: call it when `wait_s` is over."""
        if self._deadline is None or self._clock.monotonic() < self._deadline:
            return []
        self._deadline = None
        if self.phase is Phase.GATHERING:
            return self._gathered(patient=False)
        if self.phase is Phase.FORMING:
            return self._forming_is_late()
        if self.phase is Phase.RUNNING:
            return self._take_back()
        if self.phase is Phase.WAITING:
            return self._waited()
        if self.phase is Phase.SPENT:
            return self._fail(f"its own budget ({self.budget.heal}) is spent and nobody commanded a restart")
        return []

    # --- inside -------------------------------------------------------------------------------------------------

    def _gathered(self, patient: bool = True) -> Effects:
        """Begin if everybody is here, or if enough are and the patience is over."""
        if self.last is not None:
            return self._succeed(patient)
        here = len(self._participants())
        if here >= self.rules.max_nodes or (here >= self.rules.min_nodes and self._deadline is None and not patient):
            return self._begin(self._wish)
        if self._deadline is None and here >= self.rules.min_nodes:
            self._arm_batch()
        return []

    def _succeed(self, patient: bool) -> Effects:
        """After a succession: all that are awaited, or at least half of the last layout."""
        here = {node for node, member in self.members.items() if member.connected}
        count = tally(self.last, here)
        if not (self._awaited <= here or (not patient and (count.majority or count.half))):
            if self._deadline is None and patient:
                self._arm_batch()
            return []
        return self._heal(self._wish) if self._own_loss else self._begin(self._wish)

    def _adopt(self, last: Layout | None) -> None:
        """A joiner knows a newer valid layout than we do."""
        if last is None or (self.last is not None and last.epoch <= self.last.epoch):
            return
        if self.last is None:
            self._wish = Wish(reason="node returned")
        self.last = last
        self.epoch = max(self.epoch, last.epoch)
        self.excluded, self._skipped = set(last.excluded), set(last.skipped)
        self.budget.spent = max(self.budget.spent, last.restarts)
        self._awaited = set(voters(last))
        self._arm_batch()

    def _joined_while_forming(self, member: Member, same: bool) -> Effects:
        layout = self._forming
        if layout is None:
            return []
        if member.node in layout.nodes and not same:
            return self._begin(self._wish)
        stuck = self._acknowledged.issuperset(layout.nodes)
        if stuck and member.node not in layout.nodes and member.node not in self.excluded:
            return self._begin(self._wish)
        return [Prepare(nodes=(member.node,), layout=layout)]

    def _participants(self) -> list[Member]:
        ordered = succession(self.last, self.members.values(), self.rules.node)
        return [member for member in ordered if member.node not in self.excluded][: self.rules.max_nodes]

    def _heal(self, wish: Wish) -> Effects:
        """Begin an epoch on the job's own account."""
        if self.budget.take():
            return self._begin(wish)
        self.phase = Phase.SPENT
        self._arm(self.rules.patience_s if self.commanded else 0.0)
        attributes = {"heal": self.budget.heal, "restarts": str(self.budget.spent), "cause": wish.cause}
        message = f"{wish.reason}: the job may not restart itself again ({self.budget.heal})"
        return [
            Tell(name="budget.spent", message=message, attributes=attributes),
            Halt(nodes=self._all_connected(), reason="budget spent"),
        ]

    def _begin(self, wish: Wish) -> Effects:
        self._wish = wish
        participants = self._participants()
        if len(participants) < self.rules.min_nodes:
            return self._wait_for_nodes(len(participants))
        self.epoch = max(self.epoch, self._promised) + 1
        self._promised = self.epoch
        self._forming = self._layout(participants, wish)
        self._acknowledged = set()
        self._asked = False
        self.phase = Phase.FORMING
        self._arm(self.rules.prepare_s)
        return [Prepare(nodes=self._all_connected(), layout=self._forming)]

    def _layout(self, participants: list[Member], wish: Wish) -> Layout:
        idle = [member for member in succession(self.last, self.members.values(), self.rules.node)
                if member not in participants]  # fmt: skip
        return Layout(
            job=self.rules.job, epoch=self.epoch, time=self._clock.now(), coordinator=self.rules.node,
            launchers={member.node: member.address for member in (*participants, *idle)},
            places=places(self.rules.job.rsplit("/", 1)[-1], participants), excluded=tuple(sorted(self.excluded)),
            reason=wish.reason, plan=wish.plan, resume_step=wish.resume_step, skipped=tuple(sorted(self._skipped)),
            restarts=self.budget.spent,
        )  # fmt: skip

    def _waited(self) -> Effects:
        if len(self._participants()) >= self.rules.min_nodes:
            return self._begin(Wish(reason="node returned"))
        left = self._give_up - self._clock.monotonic()
        if left <= 0:
            return self._fail("too few nodes came back")
        self._arm(left)
        return []

    def _wait_for_nodes(self, here: int) -> Effects:
        if self.phase is not Phase.WAITING:
            self._give_up = self._clock.monotonic() + self.rules.wait_nodes_s
        self.phase = Phase.WAITING
        self._arm(self.rules.wait_nodes_s)
        reason = f"{here} node(s) are left, the job needs {self.rules.min_nodes}"
        return [Halt(nodes=self._all_connected(), reason=reason), *self._answer(error=reason)]

    def _settle(self) -> Effects:
        """Is the epoch valid now?"""
        layout = self._forming
        if layout is None or not self._acknowledged.issuperset(layout.nodes):
            return []
        count = tally(self.last, self._acknowledged)
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
        self._arm(self.rules.grant_s)
        return self._begin(self._wish) if missing else self._settle()

    def _valid(self, layout: Layout) -> Effects:
        self.phase = Phase.RUNNING
        self._led = True
        self.last = layout
        self._finished = set()
        self._deadline = None
        joiner = any(self._welcome(member, layout) for member in self.members.values())
        if joiner:
            self._arm_batch()
        return [
            Start(nodes=self._all_connected(), layout=layout, cause=self._wish.cause, budget_left=self.budget.left)
        ]

    def _take_back(self) -> Effects:
        """Joiners have gathered: one epoch for all of them."""
        return self._begin(Wish(reason="node returned"))

    def _welcome(self, member: Member, layout: Layout) -> bool:
        """A connected launcher that the layout left out though there is room for it."""
        outside = member.connected and member.node not in layout.nodes and member.node not in self.excluded
        return outside and len(layout.nodes) < self.rules.max_nodes and self.budget.limit > 0

    def _fail(self, reason: str) -> Effects:
        self.phase = Phase.ENDED
        self._deadline = None
        return [
            self._job_event("job.failed", reason),
            *self._answer(error=f"the job has failed: {reason}"),
            End(code=1, reason=reason),
        ]

    def _job_event(self, name: str, message: str, reason: str = "") -> Tell:
        return Tell(name=name, message=message, attributes={"epoch": str(self.epoch), "reason": reason or message})

    def _answer(self, epoch: int = 0, error: str = "") -> Effects:
        answered: Effects = [Answer(command=command, epoch=epoch, error=error) for command in self._unanswered]
        self._unanswered.clear()
        return answered

    def _all_connected(self) -> tuple[str, ...]:
        return tuple(node for node, member in self.members.items() if member.connected)

    def _connected(self, node: str) -> bool:
        member = self.members.get(node)
        return member is not None and member.connected

    def _arm(self, seconds: float) -> None:
        self._deadline = self._clock.monotonic() + seconds

    def _arm_batch(self) -> None:
        """Wait a moment for further joiners, counted from the first."""
        batch = self._clock.monotonic() + self.rules.batch_s
        self._deadline = batch if self._deadline is None else min(self._deadline, batch)
