"""What collectors return that no record can hold fails themselves, and never the agent."""

import itertools
import math
import sys
from collections.abc import Callable, Iterable
from queue import Queue
from typing import Any

import msgspec
import numpy as np
import pytest

from collectors.agent.result_check import checked
from collectors.agent.schedule import CollectorResult, CollectorThread, Schedule
from collectors.agent.unsigned_event import unsigned_event
from eagle_eye.types import Event, Kind, Reading, StepReading

NOW = 1_700_000_000.5


class Scripted:
    def __init__(self, act: Callable[[], Any]) -> None:
        self.collect = act


def reading(**other: Any) -> Reading:
    sound = {"source": "own", "kind": Kind.NODE, "entities": ("n1",), "names": ("a_b",), "matrix": np.zeros((1, 1), np.float32), "time": NOW}
    return Reading(**{**sound, **other})


def steps(**other: Any) -> StepReading:
    sound = {"source": "own", "workers": ("r/n1/0",), "names": ("step_s",), "numbers": np.array([1]), "epochs": np.array([0]), "ends": np.ones((1, 1)), "values": np.ones((1, 1, 1))}
    return StepReading(**{**sound, **other})


def event(**other: Any) -> Event:
    return msgspec.structs.replace(unsigned_event("own", Kind.NODE, "n1", NOW, "said"), **other)


def of(act: Callable[[], Any]) -> CollectorResult:
    """What comes of one run of a collector, in its own thread."""
    results: Queue[CollectorResult] = Queue()
    thread = CollectorThread("own", Scripted(act), Schedule())
    thread.start(results.put)
    thread.request()
    try:
        return results.get(timeout=30)
    finally:
        thread.close()


NONE_THAT_A_RECORD_HOLDS: list[Callable[[], Iterable[Any]]] = [
    lambda: [None], lambda: "text", lambda: 5, lambda: [reading(), {"name": "a"}],
    lambda: [reading(matrix=np.zeros((3, 4), np.float32))], lambda: [reading(matrix=[[1.0]])], lambda: [reading(matrix=np.array([["a"]]))],
    lambda: [reading(kind="no kind")], lambda: [reading(entities=None)], lambda: [reading(names=["a"])], lambda: [reading(time=math.nan)], lambda: [reading(time=None)],
    lambda: [steps(workers=(1,))], lambda: [steps(numbers=np.array([1, 2]))], lambda: [steps(ends=[[0.0]])], lambda: [steps(numbers=np.array([0.5]))],
    lambda: [event(time=None)], lambda: [event(time=math.inf)], lambda: [event(attributes={"a": object()})], lambda: [event(attributes={"a": 1 << 70})], lambda: [event(job=None)],
    lambda: (reading() for _ in itertools.count()),
]  # fmt: skip


@pytest.mark.parametrize("act", NONE_THAT_A_RECORD_HOLDS)
def test_a_result_that_no_record_can_hold_is_its_collectors_failure(act: Callable[[], Any]) -> None:
    result = of(act)
    assert result.error
    assert result.found == ()


@pytest.mark.parametrize("raised", [SystemExit(0), KeyboardInterrupt(), GeneratorExit()])
def test_a_collector_that_would_end_its_thread_is_asked_again(raised: BaseException) -> None:
    def act() -> Any:
        raise raised

    assert of(act).error.startswith(type(raised).__name__)
    assert of(sys.exit).error.startswith("SystemExit")


def test_twin_what_a_record_can_hold_is_handed_on_as_it_is() -> None:
    found = (reading(), steps(), event(), reading(matrix=np.array([[math.nan]])), steps(ends=np.array([[math.nan]])))
    assert checked(iter(found)) == found


def test_a_name_that_is_no_utf_8_is_written_with_question_marks() -> None:
    [cleaned] = checked([reading(entities=("proc caf\udce9",))])
    assert isinstance(cleaned, Reading)
    assert cleaned.entities == ("proc caf?",)
