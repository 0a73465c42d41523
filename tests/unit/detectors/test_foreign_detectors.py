"""A detector is foreign code: whatever it raises, claims or says of itself, the others see the same frames and go on."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from detectors.runtime import detector_set
from eagle_eye.frames import Frame
from eagle_eye.types import Claim, Entity, Evidence, Kind
from fakes.runner_partition import NODE, Exited, World, settle


def claim(**other: Any) -> Claim:
    sound = {"entity": NODE, "kind": "node.odd", "score": 1.0, "since": 1.0, "evidence": (Evidence(text="odd"),)}
    return Claim(**{**sound, **other})


def raising(error: BaseException) -> Callable[[], Iterable[Any]]:
    def act() -> Iterable[Any]:
        raise error

    return act


@dataclass
class Foreign:
    act: Callable[[], Any]
    every: Any = 1

    def update(self, frame: Frame, /) -> Any:
        return self.act()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def judged(world: World, *foreign: Foreign) -> list[str]:
    """Kinds of the findings once a worker has exited beside it."""
    runner = world.runner(*foreign, Exited())
    for _ in range(6):
        world.second(runner)
    world.exit()
    settle(runner)
    return [finding.kind for finding in world.findings]


UNUSABLE: list[Callable[[], Any]] = [
    raising(SystemExit(0)), raising(asyncio.CancelledError()), raising(GeneratorExit()), lambda: None, lambda: [None], lambda: "text",
    lambda: [claim(entity=None)], lambda: [claim(entity="node n")], lambda: [claim(entity=Entity(kind="zork", name="n"))],  # type: ignore[arg-type]
    lambda: [claim(entity=Entity(kind=Kind.NODE, name="caf\udce9"))], lambda: [claim(kind=None)], lambda: [claim(active=None)], lambda: [claim(evidence=[Evidence(text="a")])],
    lambda: [claim(since=None)], lambda: [claim(score="sure")],
]  # fmt: skip


@pytest.mark.parametrize("act", UNUSABLE)
def test_what_is_no_claim_mutes_the_detector_alone(world: World, act: Callable[[], Any]) -> None:
    assert judged(world, Foreign(act)) == ["worker.exited"]
    assert world.notices.count("detector.failing") == 3
    assert world.notices.count("detector.muted") == 1
    assert "evaluation.failing" not in world.notices


def test_a_detector_that_claims_for_ever_is_muted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detector_set, "MOST_CLAIMS", 100)
    assert judged(world, Foreign(lambda: (claim() for _ in itertools.count()))) == ["worker.exited"]
    assert "detector.muted" in world.notices


@dataclass
class Unique(Foreign):
    """Holds something that cannot be copied, such as a lock or a connection."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> "Unique":
        raise TypeError("cannot pickle '_thread.lock' object")


def test_a_detector_that_cannot_be_copied_is_left_out_and_told(world: World) -> None:
    assert judged(world, Unique(lambda: [claim()])) == ["worker.exited"]
    assert world.notices == ["detector.muted"]


@pytest.mark.parametrize("every", [0, -1, None, "2", 0.5])
def test_a_detector_that_is_asked_at_no_tick_that_there_is_is_asked_at_each(world: World, every: Any) -> None:
    assert sorted(judged(world, Foreign(lambda: [claim()], every))) == ["node.odd", "worker.exited"]
    assert world.notices == []


def test_evidence_that_has_no_encoding_is_written_with_question_marks(world: World) -> None:
    odd = Evidence(text="cannot parse caf\udce9", event=5)  # type: ignore[arg-type]
    assert sorted(judged(world, Foreign(lambda: [claim(evidence=(odd,))]))) == ["node.odd", "worker.exited"]
    assert world.findings[0].evidence == (Evidence(text="cannot parse caf?", event="5"),)
