"""What workers say of their checkpoints becomes events of the job, and reaches who counts what is safe."""

from typing import Any

import pytest

from eagle_eye import wire
from eagle_eye.clock import FakeClock
from eagle_eye.types import Event
from remediation.launcher.checkpoint_events import CheckpointEvents
from remediation.launcher.event_log import EventLog

WORKER = "r/n0/1"


class Heard:
    """Events, and what was called."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.calls: list[tuple[Any, ...]] = []
        self.events_of = CheckpointEvents(EventLog("t/j/r", "n0", "b", FakeClock(), lambda _topic, _key, value: self.written.append(value)))
        self.events_of.stored = lambda step, epoch: self.calls.append(("stored", step, epoch))
        self.events_of.refused = lambda *words: self.calls.append(words)

    def take(self, kind: str, **message: Any) -> Event | None:
        self.written.clear()
        self.events_of.take(WORKER, kind, {"kind": kind, **message})
        [event] = [wire.RecordReader().read(value) for value in self.written] or [None]
        assert event is None or isinstance(event, Event)
        return event


@pytest.mark.parametrize(
    ("kind", "message", "name", "call"),
    [
        ("checkpoint", {"step": 7, "path": "/c/7", "finite": True, "epoch": 3}, "checkpoint.saved", ("stored", 7, 3)),
        ("checkpoint", {"step": 7, "path": "/c/7", "finite": False}, "checkpoint.saved", None),
        ("checkpoint_failed", {"step": 7, "path": "/c", "reason": "disk {full}"}, "checkpoint.failed", (WORKER, "storage", "disk {full}", "")),
        ("memory_checkpoint_failed", {"step": 7, "path": "/m", "reason": "no room", "file": "ee-0.memory"}, "checkpoint.memory_failed", (WORKER, "memory", "no room", "ee-0.memory")),
        ("memory_checkpoint_reduced", {"slots": 2, "wanted": 3, "reason": "no room"}, "checkpoint.memory_reduced", None),
        ("memory_checkpoint_loaded", {"step": 7, "tier": "neighbour", "source": "n1", "why": ""}, "checkpoint.loaded", None),
    ],
)
def test_a_message_is_an_event_of_its_worker_and_what_it_means_for_the_newest_safe_step_is_passed_on(kind: str, message: dict[str, Any], name: str, call: tuple[Any, ...] | None) -> None:
    heard = Heard()
    event = heard.take(kind, **message)
    assert event is not None
    assert (event.name, event.attributes["worker"]) == (name, WORKER)
    assert event.attributes.get("reason", "") == message.get("reason", "")
    assert heard.calls == ([call] if call else [])


def test_a_message_about_something_else_says_nothing() -> None:
    assert Heard().take("a newer kind", step=1) is None
