"""What the agent tells of itself."""

import time

import numpy as np
import pytest

from collectors.agent import agent_budget
from collectors.agent_metrics import NAMES, AgentMetricsCollector
from detectors.features.node_metrics import CONSTANT
from eagle_eye.clock import FakeClock
from eagle_eye.stream.spool import SpoolStatus
from eagle_eye.types import Kind


class Agent:
    """A collector on a clock that obeys, in this process."""

    def __init__(self, *, spool: bool = True) -> None:
        self.clock = FakeClock()
        self.status = SpoolStatus(waiting=0, spooled=0, dropped=3, oldest_age_s=0.0, away=False)
        self.collector = AgentMetricsCollector(node="n1", spool_status=(lambda: self.status) if spool else None, clock=self.clock)

    def look(self) -> dict[str, float]:
        (reading,) = self.collector.collect()
        assert (reading.source, reading.kind, reading.entities) == ("agent", Kind.NODE, ("n1",))
        return dict(zip(reading.names, reading.matrix[0].tolist(), strict=True))


def test_processor_time_is_a_share_of_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, used = Agent(), iter((7.0, 7.5))
    monkeypatch.setattr(time, "process_time", lambda: next(used))
    monkeypatch.setattr(agent_budget, "children_s", lambda: 0.0)
    assert np.isnan(agent.look()["agent_cpu_percent"])
    agent.clock.advance(2.0)
    assert agent.look()["agent_cpu_percent"] == 25.0


def test_what_programs_that_it_started_took_is_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, children = Agent(), iter((1.0, 1.5))
    monkeypatch.setattr(time, "process_time", lambda: 7.0)
    monkeypatch.setattr(agent_budget, "children_s", lambda: next(children))
    agent.look()
    agent.clock.advance(2.0)
    assert agent.look()["agent_cpu_percent"] == 25.0


def test_its_memory_is_that_of_this_process() -> None:
    assert 1e6 < Agent().look()["agent_memory_bytes"] < 1e11


def test_a_stream_that_is_away_shows_in_what_waits_and_what_was_dropped() -> None:
    agent = Agent()
    assert np.isnan(agent.look()["spool_dropped_per_s"]), "what was dropped before is no rate"
    agent.clock.advance(2.0)
    agent.status = SpoolStatus(waiting=2, spooled=40, dropped=13, oldest_age_s=21.0, away=True)
    found = agent.look()
    assert (found["spool_records"], found["spool_age_s"], found["spool_dropped_per_s"]) == (42, 21, 5)


def test_without_a_spool_nothing_is_said_of_one() -> None:
    agent = Agent(spool=False)
    agent.look()
    agent.clock.advance(1.0)
    found = agent.look()
    assert [name for name in NAMES if np.isnan(found[name])] == ["spool_records", "spool_age_s", "spool_dropped_per_s"]


def test_no_node_is_unusual_for_what_its_agent_does() -> None:
    assert set(NAMES) <= CONSTANT
