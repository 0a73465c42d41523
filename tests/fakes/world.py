"""An engine over a job of paper, with a ledger: what the tests of remediation and of the approval page begin with."""

from dataclasses import dataclass, field

from eagle_eye.clock import FakeClock
from eagle_eye.ledger import Ledger
from eagle_eye.plugins import available, build, load
from eagle_eye.types import Entity, Incident, IncidentState, Outcome
from fakes.fake_commander import FakeCommander
from fakes.synthetic_job import SyntheticJob, incident
from remediation.engine.engine import Engine
from remediation.engine.execution import StartThread, at_once
from remediation.guards import POLICY
from remediation.policy.engine_settings import EngineSettings


@dataclass
class World:
    """An engine over one job of paper. `receiver`: where alerts would go; without one nobody is told."""

    ledger: Ledger
    policy: EngineSettings
    receiver: str = ""
    nodes: tuple[str, ...] = ("node-a", "node-b")
    clock: FakeClock = field(default_factory=FakeClock)
    start: StartThread = at_once
    """What runs the actions."""

    def __post_init__(self) -> None:
        self.job = SyntheticJob(clock=self.clock, nodes=self.nodes)
        self.commander = FakeCommander(answers=self.job.answers())
        self.leads = True
        self.engine = self.new_engine()
        self.run(6)

    def new_engine(self) -> Engine:
        services = {"commander": self.commander, "clock": self.clock, "ledger": self.ledger}
        options = {"notify": {"url": self.receiver}}
        actions = {name: build(load("remediation.actions", name), options.get(name, {}), services) for name in available("remediation.actions")}
        guards = [build(load("remediation.guards", name), {}, {}) for name in POLICY]
        return Engine(
            ledger=self.ledger, actions=actions, guards=guards, clock=self.clock, settings=self.policy,
            start=self.start, leads=lambda: self.leads,
        )

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            for snapshot in self.job.advance(0.1):
                self.engine.receive_snapshot(snapshot)
            self.engine.tick()

    def find(self, cause: str, culprit: Entity | None = None, **more) -> Incident:
        found = incident(self.job, cause, culprit, **more)
        self.engine.receive_incidents([found])
        return found

    @property
    def sent(self) -> list[str]:
        return [sent.action for sent in self.commander.sent]

    def state(self, name: str = "i1") -> IncidentState:
        record = self.ledger.incident_record(name)
        assert record is not None
        return record.state

    def outcomes(self, name: str = "i1") -> list[tuple[str, str]]:
        """(action, state), oldest first."""
        made = sorted(self.ledger.plans(incident=name), key=lambda plan: plan.made)
        kept = [self.ledger.outcome(plan.id) for plan in made]
        return [(outcome.action, outcome.state) for outcome in kept if outcome is not None]

    def outcome(self, action: str, name: str = "i1") -> Outcome:
        return next(outcome for outcome in self.ledger.outcomes(incident=name) if outcome.action == action)
