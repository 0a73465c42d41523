"""How seldom the rings of workers are read, and what becomes of workers that do not answer."""

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from collectors.worker.ring_reader import (
    AGAIN_S,
    AGENT_SHARE,
    LEAST_S,
    OLD_S,
    WORKER_SHARE,
    FlightRingReader,
    RingRequest,
)
from fakes.flight_ring import ring_answer, ring_entry

RING = ring_answer(ring_entry(1, "all_reduce", [[1000]]))


@dataclass
class Workers:
    """Their recorders, and what a read costs."""

    wall_s: float = 0.001
    agent_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    answers: dict[str, list[bytes] | None] = field(default_factory=dict)
    clock: float = 0.0
    processor: float = 0.0

    def ask(self, path: str, _timeout: float, _largest: int) -> list[bytes] | None:
        self.asked.append(path)
        self.clock += self.wall_s
        self.processor += self.agent_s
        return self.answers.get(path, [RING])

    def reader(self) -> FlightRingReader:
        return FlightRingReader(ask=self.ask, elapsed=lambda: self.clock, used=lambda: self.processor)


def request(slot: int = 0, over: int = 1) -> RingRequest:
    return RingRequest((f"r1/n1/{slot}", 1, 10 + slot, 5), f"/nowhere/{slot}.fr", 0, over, {"0": 2})


def test_one_worker_is_read_in_a_look_and_all_take_turns() -> None:
    workers = Workers()
    reader = workers.reader()
    for second in range(9):
        reader.look([request(slot) for slot in range(8)], float(second))
    assert sorted(workers.asked) == [f"/nowhere/{slot}.fr" for slot in range(8)], "each once, since none has moved"
    assert all(reader.sizes(request(slot).life, 9.0) for slot in range(8))


def reads(workers: Workers, requests: int, seconds: int) -> int:
    reader = workers.reader()
    for second in range(seconds):
        reader.look([request(slot, over=second + 1) for slot in range(requests)], float(second))
    return len(workers.asked)


def test_a_worker_is_asked_so_seldom_that_it_costs_the_stated_share() -> None:
    """A full ring takes 40 ms; an empty one is asked every LEAST_S."""
    found = reads(Workers(wall_s=0.04), 1, 3600)
    assert found * 0.04 <= WORKER_SHARE * 3600 + 0.04
    assert found >= 40
    assert reads(Workers(wall_s=0.0001), 1, 3600) == 3600 / LEAST_S


def test_many_workers_cost_the_agent_the_stated_share_together() -> None:
    workers = Workers(agent_s=0.01)
    found = reads(workers, 100, 3600)
    assert found * 0.01 <= AGENT_SHARE * 3600 + 0.01
    assert len(set(workers.asked)) == 100, "none is forgotten"


def test_a_worker_that_begins_no_collective_is_not_asked_again() -> None:
    workers = Workers()
    reader = workers.reader()
    for second in range(100):
        reader.look([request(over=7)], float(second))
    assert len(workers.asked) == 1


def test_a_ring_that_is_too_old_tells_nothing() -> None:
    workers = Workers()
    reader = workers.reader()
    reader.look([request()], 0.0)
    assert reader.sizes(request().life, OLD_S)
    assert not reader.sizes(request().life, OLD_S + 1)


def test_a_long_ring_that_is_read_seldom_counts_until_the_next_read() -> None:
    """A second for each read: every 2,000 s."""
    workers = Workers(wall_s=1.0)
    reader = workers.reader()
    reader.look([request()], 0.0)
    assert reader.sizes(request().life, 2500.0)


def test_a_worker_that_does_not_answer_is_told_once_and_asked_less_and_less_often(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    silent = tmp_path / "0.fr"
    silent.touch()
    workers = Workers(answers={str(silent): None})
    reader = workers.reader()
    for second in range(3600):
        reader.look([request()._replace(recorder=str(silent), over=second)], float(second))
    assert 5 <= len(workers.asked) <= 3600 / AGAIN_S / 10
    assert [record.getMessage() for record in caplog.records] == [f"flight recorder of r1/n1/0 ({silent}): it does not answer; the bytes of its collectives are not known"]
    workers.answers.clear()
    reader.look([request()._replace(recorder=str(silent), over=9999)], 20_000.0)
    assert reader.sizes(request().life, 20_000.0), "it answers again"


@pytest.mark.parametrize("answer", [b"{", b'{"entries": 3}'])
def test_a_torn_answer_keeps_what_was_known_and_does_not_touch_others(answer: bytes) -> None:
    workers = Workers()
    reader = workers.reader()
    reader.look([request(0)], 0.0)
    workers.answers["/nowhere/0.fr"] = [answer]
    for second in range(20, 30):
        reader.look([request(0, over=second), request(1)], float(second))
    assert reader.sizes(request(0).life, 30.0)
    assert reader.sizes(request(1).life, 30.0)


def test_a_recorder_of_another_user_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("collectors.worker.ring_reader.may_name", lambda _user, _path: False)
    workers = Workers()
    workers.reader().look([request()], 0.0)
    assert workers.asked == []


def test_of_a_worker_that_is_gone_nothing_is_kept() -> None:
    reader = Workers().reader()
    reader.look([request()], 0.0)
    reader.keep(set())
    assert not reader.sizes(request().life, 0.0)


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("a mistake of ours")])
def test_a_worker_whose_ring_cannot_be_read_is_not_first_again_and_again(error: Exception) -> None:
    workers = Workers()

    def ask(path: str, timeout: float, largest: int) -> list[bytes] | None:
        found = workers.ask(path, timeout, largest)
        if path == "/nowhere/0.fr":
            raise error
        return found

    reader = FlightRingReader(ask=ask, elapsed=lambda: workers.clock, used=lambda: workers.processor)
    for second in range(20):
        with suppress(RuntimeError):
            reader.look([request(0, over=second), request(1, over=second)], float(second))
    assert workers.asked == ["/nowhere/0.fr", "/nowhere/1.fr", "/nowhere/1.fr"]
    assert reader.sizes(request(1).life, 20.0)
