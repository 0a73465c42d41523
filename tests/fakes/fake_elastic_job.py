"""An elastic job of paper: it goes on in place without a worker that died, and is resized and rebalanced between two steps."""

from dataclasses import dataclass, field
from typing import Any

from eagle_eye.errors import PermanentError
from eagle_eye.types import Demand, Entity, Event, Kind, Layout, RankPlacement
from fakes.fake_commander import SentCommand
from fakes.synthetic_job import SyntheticJob


@dataclass(slots=True, kw_only=True)
class ElasticJob(SyntheticJob):
    """Its step takes as long as its slowest worker needs for its share."""

    declared: dict[str, int] = field(default_factory=lambda: {"n1": 3})
    workers_per_node: dict[str, int] = field(default_factory=dict)
    weight: float = 1.0
    respawns: bool = False
    """A dead worker is replaced at once."""
    refuses: bool = False
    """It cannot start a worker more."""
    speeds: dict[str, float] = field(default_factory=dict)
    """Slow worker → its speed."""
    shares: dict[str, float] = field(default_factory=dict)
    """What it was told to share its micro-batches out by."""
    standing_plan: str = ""
    """Id of the plan that answers its next death."""

    def __post_init__(self) -> None:
        self.workers_per_node = dict(self.declared)
        self.nodes = tuple(self.declared)
        SyntheticJob.__post_init__(self)
        self._full = sum(self.declared.values())

    @property
    def demand(self) -> Demand:
        return Demand(declared=self.declared, workers_per_node=self._here, weight=self.weight)

    @property
    def _here(self) -> dict[str, int]:
        """Without nodes that are out."""
        return {node: count for node, count in self.workers_per_node.items() if node not in self.excluded}

    @property
    def run_name(self) -> str:
        return self.name.rsplit("/", 1)[-1]

    @property
    def layout(self) -> Layout:
        """The present one."""
        present = (self.nodes[0], *self._here.items(), *self.declared, self.excluded, self.epoch, self._began, self._reason, self._plan)
        if self._laid_out is None or self._laid_out[0] != present:
            self._laid_out = (present, self._lay_out())
        return self._laid_out[1]

    def _lay_out(self) -> Layout:
        workers = [(node, slot) for node, count in self._here.items() for slot in range(count)]
        places = tuple(RankPlacement(worker=f"{self.run_name}/{node}/{slot}", node=node, rank=rank, local_rank=slot) for rank, (node, slot) in enumerate(workers))
        return Layout(
            job=self.name, epoch=self.epoch, time=self._began, coordinator=self.nodes[0], launchers={node: f"{node}:7000" for node in self.declared},
            placements=places, reason=self._reason, plan=self._plan, excluded=self.excluded, in_place=self.epoch > 1,
        )  # fmt: skip

    def lose_worker(self, node: str = "n1") -> Event:
        """Killed, and gone on without in place."""
        worker = f"{self.run_name}/{node}/{self.workers_per_node[node] - 1}"
        event = self._tell("exit", Entity(kind=Kind.WORKER, name=worker), signal="SIGKILL")
        if not self.respawns:
            self.workers_per_node = {**self.workers_per_node, node: self.workers_per_node[node] - 1}
        self._next("death", cause=event.id, plan=self.standing_plan)
        return event

    def _next(self, reason: str, *, cause: str = "", plan: str = "") -> None:
        """An epoch in place: nothing is done again."""
        self._reason, self._plan = reason, plan
        self.epoch += 1
        self._began = self.clock.now()
        self._ends = self._began + self._duration()
        self._tell("epoch.started", self.entity, epoch=str(self.epoch), reason=reason, cause=cause, plan=plan, excluded=",".join(self.excluded), in_place="1")
        self._tell("transition.done", self.entity, reason=reason, notice_s="0.005", plan_s="0.001", group_s="0.03", state_s="0.004", recompute_s="0.1")

    def _duration(self) -> float:
        workers = self.layout.workers
        if not self.shares:
            return self.step_s * self._full / max(1, len(workers)) / min(self.speeds.values(), default=1.0)
        return self.step_s * self._full / sum(self.speeds.get(worker, 1.0) for worker in workers)

    def resize(self, sent: SentCommand) -> dict[str, Any]:
        wanted = {**self.workers_per_node, **sent.arguments["workers"]}
        if self.refuses and sum(wanted.values()) > sum(self.workers_per_node.values()):
            raise PermanentError(f"{self.name} cannot start a worker on n1")
        self.workers_per_node = {node: count for node, count in wanted.items() if count}
        self._next("command", plan=sent.plan)
        return {"epoch": self.epoch, "workers": self.workers_per_node}

    def restart(self, sent: SentCommand) -> dict[str, Any]:
        """Only of those that it leaves out: the others live on."""
        assert sent.arguments["resume_step"] < 0
        self.excluded = tuple(sorted({*self.excluded, *sent.arguments["exclude"]}))
        self._next("command", plan=sent.plan)
        return {"epoch": self.epoch}

    def rebalance(self, sent: SentCommand) -> dict[str, Any]:
        self.shares = dict(sent.arguments["shares"])
        self._next("rebalance", plan=sent.plan)
        return {"epoch": self.epoch}


def commands(*jobs: ElasticJob) -> dict[str, Any]:
    """For a FakeCommander that reaches several of them."""
    by_name = {job.name: job for job in jobs}
    return {"resize": lambda sent: by_name[sent.job].resize(sent), "restart": lambda sent: by_name[sent.job].restart(sent), "rebalance": lambda sent: by_name[sent.job].rebalance(sent)}


