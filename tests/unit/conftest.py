"""What several unit tests share: a clock, a ledger of their own, an engine over a job of paper."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sqlalchemy import Engine as SqlEngine

from collectors.training import TrainingCollector
from eagle_eye.clock import FakeClock
from eagle_eye.ledger import Ledger, sqlite
from eagle_eye.plugins import available, build, load
from eagle_eye.types import Entity, Incident, IncidentState, Mode, Outcome
from fakes.fake_commander import FakeCommander
from fakes.process_looks import FakeProcesses
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


def pytest_configure() -> None:
    """Before torch is imported: its threads spin while they wait for one another, and each process of a test run has one core.
    Before a property is declared: how long an example takes says how busy the machine is."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    hypothesis.settings.register_profile("any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
    hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def statements_compiled_once() -> Iterator[None]:
    """SQLAlchemy keeps what it compiled for each engine alone, and every test opens a ledger of its own: all share what the first one's has."""
    create_engine, first = sqlite.create_engine, sqlite.create_engine("sqlite://")

    def sharing(*args: Any, **kwargs: Any) -> SqlEngine:
        engine = create_engine(*args, **kwargs)
        engine.dialect, engine._compiled_cache = first.dialect, first._compiled_cache
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "create_engine", sharing)
        yield


THREAD_END_S = 10.0
OF_THE_PROCESS = ("eagle-eye-probe", "eagle-eye-worker_threads", "_poll_wrapper")
"""Threads that live as long as their process, by design: the probe's socket, idle threads for calls into torch, gRPC's poller."""


@pytest.fixture(autouse=True)
def left_as_it_was():
    """What a test starts ends with it: a thread that went on would log, count and raise in the tests that follow.
    Streamlit's AppTest leaves a script of its own as __main__, which a spawned child would run again."""
    before, main = set(threading.enumerate()), sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main
    left = [thread for thread in threading.enumerate() if thread not in before and not any(name in thread.name for name in OF_THE_PROCESS)]
    for thread in left:
        thread.join(THREAD_END_S)
    assert not (alive := [thread.name for thread in left if thread.is_alive()]), f"threads that outlive their test: {alive}"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


@pytest.fixture
def collector(tmp_path: Path, clock: FakeClock, processes: FakeProcesses) -> TrainingCollector:
    return TrainingCollector(run_dir=tmp_path, node="n1", clock=clock, inspector=processes.inspector(clock))


@pytest.fixture
def ledger(ledger_path: Path) -> Iterator[Ledger]:
    ledger = Ledger.open(ledger_path)
    yield ledger
    ledger.close()


@pytest.fixture
def make_world(empty_ledger, tmp_path):
    opened = []

    def world(mode: Mode = Mode.AUTO, nodes=("node-a", "node-b"), receiver="", **policy) -> World:
        path = tmp_path / f"ledger{len(opened)}.sqlite"
        shutil.copy(empty_ledger, path)
        opened.append(Ledger.open(path))
        return World(ledger=opened[-1], policy=EngineSettings(mode=mode, **policy), nodes=nodes, receiver=receiver)

    yield world
    for ledger in opened:
        ledger.close()
