"""Two elastic jobs of paper under one engine, for tests of what goes on between jobs."""



from eagle_eye.clock import FakeClock
from eagle_eye.ledger import Ledger
from eagle_eye.plugins import available, build, load
from eagle_eye.types import Entity, IncidentState, Kind, Mode, Outcome, Plan
from fakes.fake_commander import FakeCommander
from fakes.fake_elastic_job import ElasticJob, commands
from fakes.synthetic_job import incident
from remediation.engine.engine import Engine
from remediation.engine.execution import at_once
from remediation.guards import POLICY
from remediation.policy.engine_settings import EngineSettings


class Cluster:
    """A heavy and a light job with three workers each, and the engine."""

    def __init__(self, ledger: Ledger, mode: Mode, **policy: float) -> None:
        self.clock, self.ledger = FakeClock(), ledger
        self.heavy = ElasticJob(clock=self.clock, name="t/heavy/h1", weight=3.0)
        self.light = ElasticJob(clock=self.clock, name="t/light/l1")
        self.jobs = (self.heavy, self.light)
        self.commander = FakeCommander(answers=commands(*self.jobs))
        self.settings, self.leads = EngineSettings(mode=mode, **policy), True
        self.next_leader()
        self.run(8)

    def next_leader(self) -> None:
        services = {"commander": self.commander, "clock": self.clock, "ledger": self.ledger}
        options = {"notify": {"url": "http://127.0.0.1:9/hook"}}
        actions = {name: build(load("remediation.actions", name), options.get(name, {}), services) for name in available("remediation.actions")}
        guards = [build(load("remediation.guards", name), {}, {}) for name in POLICY]
        self.engine = Engine(
            ledger=self.ledger, actions=actions, guards=guards, clock=self.clock, settings=self.settings, start=at_once, leads=lambda: self.leads
        )
        for job in self.jobs:
            self.ledger.save_job(job.name, job.layout, "127.0.0.1:7001", "in-place", 100, 1, job.demand)
        self.engine.resume()

    def die(self) -> bool:
        self.leads = False
        return True

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            for job in self.jobs:
                for snapshot in job.advance(0.0):
                    self.engine.receive_snapshot(snapshot)
                self.engine.declare_job(job.name, heal="in-place", budget_left=100, demand=job.demand)
            self.engine.tick()

    def kill(self, job: ElasticJob, name: str = "i1") -> None:
        event = job.lose_worker()
        self.engine.receive_incidents([incident(job, "worker killed", Entity(kind=Kind.WORKER, name=event.entity.name), event=event, name=name)])

    @property
    def sent(self) -> list[tuple[str, str, dict[str, int]]]:
        return [(sent.action, sent.job, sent.arguments["workers"]) for sent in self.commander.sent if sent.action == "resize"]

    def plan(self, action: str = "resize") -> Plan:
        return next(plan for plan in self.ledger.plans(incident="i1") if plan.action == action)

    def outcome(self, plan: Plan) -> Outcome:
        found = self.ledger.outcome(plan.id)
        assert found is not None
        return found

    def state(self, name: str = "i1") -> IncidentState:
        record = self.ledger.incident_record(name)
        assert record is not None
        return record.state
