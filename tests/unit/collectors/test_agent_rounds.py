"""Whatever fails in one round of the agent is told, and the next round is run: a node must not fall silent."""

import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from collectors.agent import agent as agents
from collectors.agent.agent import Agent
from collectors.agent.job_registry import JobRegistry
from collectors.agent.schedule import CollectorResult
from eagle_eye import wire
from eagle_eye.clock import SystemClock
from eagle_eye.types import Event


class Writer:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.told = threading.Condition()

    def write(self, _topic: str, _key: str, value: bytes, *, keep: bool = False) -> None:
        record = wire.RecordReader().read(value)
        if isinstance(record, Event):
            with self.told:
                self.events.append(record)
                self.told.notify_all()

    def until(self, name: str) -> None:
        with self.told:
            assert self.told.wait_for(lambda: any(event.name == name for event in self.events), 30)


def test_a_round_that_fails_is_told_once_and_the_agent_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(agents, "PAUSE_S", 0.0)
    clock, writer = SystemClock(), Writer()
    inbox: SimpleQueue[Any] = SimpleQueue()
    agent = Agent("n1", [], writer, JobRegistry(tmp_path, tmp_path / "n1.json", clock.now()), inbox, clock=clock, incarnation="b", idle=True)
    for _ in range(3):
        inbox.put(CollectorResult("of no collector that there is"))
    stop = threading.Event()
    thread = threading.Thread(target=agent.run, args=(stop,))
    thread.start()
    try:
        writer.until("collector.failing")
        writer.until("collector.recovered")
        assert [event.attributes["collector"] for event in writer.events] == ["agent", "agent"]
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
