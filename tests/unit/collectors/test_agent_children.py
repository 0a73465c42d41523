"""Programs that collectors start are a part of what the agent costs."""

from collections.abc import Sequence
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest

from collectors.agent import agent as agents
from collectors.agent.agent import Agent
from collectors.agent.agent_budget import CHECK_S, AgentBudget
from collectors.agent.job_registry import JobRegistry
from collectors.agent.schedule import CollectorResult, CollectorThread, Schedule
from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event


class Idle:
    """A collector that is never run: the test tells what it gave."""

    def collect(self) -> Sequence[Any]:
        return ()


class Node:
    """An agent whose processor time is what a test says."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.inbox, self.events = FakeClock(), Queue[Any](), list[Event]()
        self.own_s = self.children_s = 0.0
        monkeypatch.setattr(agents, "children_s", lambda: self.children_s)
        monkeypatch.setattr(agents, "processor_s", lambda: self.own_s + self.children_s)
        collectors = [CollectorThread(name, Idle(), Schedule()) for name in ("gpu", "kernel_log")]
        jobs = JobRegistry(folder, folder / "n1.json", self.clock.now())
        budget = AgentBudget(10.0, 1e6)
        self.agent = Agent("n1", collectors, SimpleNamespace(write=self._write), jobs, self.inbox, clock=self.clock, incarnation="b", idle=True, budget=budget)
        self.agent.run_once()

    def _write(self, _topic: str, _key: str, value: bytes, *, keep: bool = False) -> None:
        if keep and isinstance(record := wire.RecordReader().read(value), Event):
            self.events.append(record)

    def runs(self, name: str, own: float = 0.0, children: float = 0.0) -> None:
        """A collector has run, with processor time of its own and of a program that it waited for."""
        self.own_s += own
        self.children_s += children
        self.inbox.put(CollectorResult(name, processor_s=own))
        self.agent.run_once()

    def slowed(self) -> list[str]:
        self.clock.advance(CHECK_S)
        self.agent.run_once()
        return [event.attributes["collector"] for event in self.events if event.name == "agent.budget"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


def test_beyond_the_budget_the_collector_whose_program_costs_most_is_slowed(node: Node) -> None:
    node.runs("gpu", own=0.2)
    node.runs("kernel_log", own=0.01, children=2.0)
    node.runs("gpu", own=0.2)
    assert node.slowed() == ["kernel_log"]


def test_twin_programs_within_the_budget_slow_nobody(node: Node) -> None:
    node.runs("kernel_log", own=0.01, children=0.5)
    assert node.slowed() == []
