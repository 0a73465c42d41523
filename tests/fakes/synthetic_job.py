"""A synthetic job: it trains, fails and is restarted on a FakeClock, without any process.

    job = SyntheticJob(clock=clock)
    snapshots = job.advance(0.1)            # what the stream would have reported of that tenth of a second
    commander = FakeCommander(answers=job.answers())
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle_eye.clock import FakeClock
from eagle_eye.errors import PermanentError, Stale
from eagle_eye.frames import Frame
from eagle_eye.job_snapshots import snapshot_of
from eagle_eye.step_assembly import LOGGED_NAN
from eagle_eye.types import (
    Culprit,
    Entity,
    Event,
    Evidence,
    Floats,
    Incident,
    JobSnapshot,
    Kind,
    Layout,
    RankPlacement,
    Severity,
    Step,
)
from fakes.fake_commander import SentCommand

WARM_UP_S = 0.6
"""From a restart to the first step's beginning."""


@dataclass(slots=True, kw_only=True)
class SyntheticJob:
    """Steps of `step_s` on `nodes` × `slots` workers; a checkpoint every `checkpoint_every` steps."""

    clock: FakeClock
    name: str = "tenant/gpt/run1"
    nodes: tuple[str, ...] = ("node-a", "node-b")
    """In the order of their ranks."""
    slots: int = 2
    step_s: float = 0.2
    checkpoint_every: int = 10
    budget_left: int = 3
    epoch: int = 1
    step: int = 0
    """The next one to be committed."""
    slow: Callable[[frozenset[str]], float] = field(default=lambda _nodes: 1.0)
    """Nodes that take part → factor on the time of a step."""
    loss: Callable[[int], float] = field(default=lambda _step: 2.0)
    """Step → its loss."""
    bad_batch: int = -1
    """A step whose loss is no number, until it is skipped."""
    stalled: bool = False
    """Nothing moves: a worker is dead, stopped or hangs."""
    silent: bool = False
    """The stream is away: no frame comes."""
    silent_nodes: tuple[str, ...] = ()
    """Nodes whose agent sends nothing."""
    excluded: tuple[str, ...] = ()
    skipped: tuple[int, ...] = ()
    resumed: bool = True
    """A stopped worker goes on when it is continued."""
    _full: int = 0
    _ends: float = 0.0
    _tick: float = 0.0
    _plan: str = ""
    _reason: str = "start"
    _resume: int = -1
    _events: list[Event] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)
    _checkpoints: list[int] = field(default_factory=lambda: [0])
    _poisoned: bool = False
    _numbers: int = 0
    _told: int = 0

    def __post_init__(self) -> None:
        self._tick = self.clock.now()
        self._full = len(self.nodes) * self.slots
        self._begin("start")

    @property
    def layout(self) -> Layout:
        """The present one."""
        present = (self.nodes, self.excluded, self.epoch, self._began, self._reason, self._plan, self._resume, self.skipped)
        if self._laid_out is None or self._laid_out[0] != present:
            self._laid_out = (present, self._lay_out())
        return self._laid_out[1]

    def _lay_out(self) -> Layout:
        nodes = [node for node in self.nodes if node not in self.excluded]
        workers = [(node, slot) for node in nodes for slot in range(self.slots)]
        return Layout(
            job=self.name,
            epoch=self.epoch,
            time=self._began,
            coordinator=nodes[0],
            launchers={node: f"{node}:7000" for node in self.nodes},
            placements=tuple(
                RankPlacement(worker=f"run1/{node}/{slot}", node=node, rank=rank, local_rank=slot)
                for rank, (node, slot) in enumerate(workers)
            ),
            excluded=self.excluded,
            reason=self._reason,
            plan=self._plan,
            resume_step=self._resume,
            skipped=self.skipped,
        )

    _began: float = 0.0
    _laid_out: tuple[tuple[object, ...], Layout] | None = None

    # --- what happens --------------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> list[JobSnapshot]:
        """Let time pass; returns the snapshots: a cut for each event, a tick each second."""
        return [snapshot_of(frame) for frame in self.frames(seconds)]

    def frames(self, seconds: float) -> list[Frame]:
        """The same as frames."""
        self.clock.advance(seconds)
        now = self.clock.now()
        while not self.stalled and self._ends <= now:
            self._commit()
        if self.silent:
            return []
        frames = [self._frame(tick=False, events=(event,)) for event in self._events]
        self._events.clear()
        if now - self._tick >= 1.0 - 1e-9:
            self._tick = now
            frames.append(self._frame(tick=True))
        return frames

    def die(self, worker: str, *, heals: bool = True, reason: str = "death") -> Event:
        """A worker ends; after a moment the coordinator begins a new epoch, if it may. Returns the exit's event."""
        event = self._tell("exit", Entity(kind=Kind.WORKER, name=worker), signal="SIGKILL")
        self.stalled = True
        if heals and self.budget_left > 0:
            self.budget_left -= 1
            self._begin(reason, cause=event.id)
        elif heals:
            self._tell("budget.exhausted", self.entity, heal="restart:3", cause=event.id)
        return event

    def spend(self) -> None:
        """It may not heal itself: its workers are ended, and it waits for a command."""
        self.budget_left, self.stalled = 0, True
        self._tell("budget.exhausted", self.entity, heal="none", epoch=str(self.epoch))

    def lose(self, node: str) -> None:
        """A node dies; the coordinator goes on without it."""
        self.nodes = tuple(other for other in self.nodes if other != node)
        self._begin("node lost")

    def tell(self, name: str, **attributes: str) -> Event:
        """Any event of the job."""
        return self._tell(name, self.entity, **attributes)

    @property
    def entity(self) -> Entity:
        return Entity(kind=Kind.JOB, name=self.name)

    # --- what a commander does to it -----------------------------------------------------------------------------

    def answers(self) -> dict[str, Any]:
        """For a FakeCommander: what the coordinator of this job does with each command."""
        return {
            "restart": self._restart,
            "reattempt": self._reattempt,
            "dump": lambda _sent: {place.worker: {"stack": "in all_reduce"} for place in self.layout.placements},
            "release": self._release,
        }

    def _restart(self, sent: SentCommand) -> dict[str, Any]:
        if sent.epoch < self.epoch:
            raise Stale(f"{self.name} is at epoch {self.epoch}")
        arguments = sent.arguments
        if arguments["own"]:
            if self.budget_left == 0:
                raise PermanentError("the job's own budget is spent")
            self.budget_left -= 1
        self.excluded = tuple(sorted({*self.excluded, *arguments["exclude"]}))
        self.skipped = tuple(sorted({*self.skipped, *arguments["skip"]}))
        if swap := arguments.get("swap"):
            self.nodes = tuple(dict([swap, swap[::-1]]).get(node, node) for node in self.nodes)
        self._begin("command", plan=sent.plan, resume=arguments["resume_step"])
        return {"epoch": self.epoch}

    def _reattempt(self, _sent: SentCommand) -> dict[str, Any]:
        if self.resumed:
            self.stalled = False
            self._ends = self.clock.now() + self._duration()
        return {}

    def _release(self, sent: SentCommand) -> dict[str, Any]:
        self.excluded = tuple(node for node in self.excluded if node != sent.arguments["node"])
        self._begin("node released", plan=sent.plan)
        return {}

    # --- inside --------------------------------------------------------------------------------------------------

    def _begin(self, reason: str, *, cause: str = "", plan: str = "", resume: int = -1) -> None:
        self._reason, self._plan, self._resume = reason, plan, resume
        if reason != "start":
            self.epoch += 1
            self._checkpoints = [step for step in self._checkpoints if resume < 0 or step <= resume]
            self.step = self._checkpoints[-1]
        self.stalled = self._poisoned = False
        self._began = self.clock.now()
        self._ends = self._began + WARM_UP_S + self._duration()
        excluded = ",".join(self.excluded)
        attributes = {"epoch": str(self.epoch), "reason": reason, "cause": cause, "plan": plan, "excluded": excluded}
        self._tell("epoch.started", self.entity, budget_left=str(self.budget_left), **attributes)

    def _duration(self) -> float:
        nodes = frozenset(place.node for place in self.layout.placements)
        return self.step_s * self.slow(nodes) * self._full / max(1, len(self.layout.placements))

    def _commit(self) -> None:
        workers = self.layout.workers
        self._poisoned = self._poisoned or (self.step == self.bad_batch and self.step not in self.skipped)
        told = {
            "step_s": self._duration(),
            "tokens": 2048.0 / len(workers),
            "loss": math.nan if self._poisoned else self.loss(self.step),
            f"loss{LOGGED_NAN}": 1.0 if self._poisoned else math.nan,
        }
        values: dict[str, Floats] = {name: np.full(len(workers), value, dtype=np.float32) for name, value in told.items()}
        self._steps.append(Step(number=self.step, epoch=self.epoch, workers=workers, end=self._ends, values=values))
        self.step += 1
        if self.step % self.checkpoint_every == 0:
            if not self._poisoned:
                self._checkpoints.append(self.step)
            finite = "0" if self._poisoned else "1"
            self._tell("checkpoint.saved", self.entity, step=str(self.step), path="", finite=finite)
        self._ends += self._duration()

    def _tell(self, name: str, entity: Entity, **attributes: str) -> Event:
        self._told += 1
        event = Event(
            name=name,
            job=self.name,
            entity=entity,
            time=self.clock.now(),
            node=self.nodes[0],
            incarnation="incarnation",
            number=self._told,
            attributes=attributes,
        )
        self._events.append(event)
        return event

    def _frame(self, *, tick: bool, events: tuple[Event, ...] = ()) -> Frame:
        self._numbers += 1
        steps, now = tuple(self._steps) if tick else (), self.clock.now()
        if tick:
            self._steps.clear()
        return Frame(
            job=self.name,
            number=self._numbers,
            generation=1,
            time=now,
            tick=tick,
            steps=steps,
            events=events,
            layout=self.layout,
            reporting={node: 0.0 if node in self.silent_nodes else now for node in self.nodes} if tick else {},
        )


def incident(
    job: SyntheticJob,
    cause: str,
    culprit: Entity | None = None,
    *,
    name: str = "i1",
    severity: Severity = Severity.SEV2,
    since: float | None = None,
    event: Event | None = None,
    active: bool = True,
    revision: int = 1,
) -> Incident:
    """What diagnosis would say of it."""
    now = job.clock.now()
    return Incident(
        id=name,
        revision=revision,
        job=job.name,
        cause=cause,
        culprits=(Culprit(entity=culprit, confidence=0.9),) if culprit is not None else (),
        severity=severity,
        findings=(),
        evidence=(Evidence(text="seen", event=event.id if event is not None else ""),),
        since=now if since is None else since,
        time=now,
        active=active,
    )
