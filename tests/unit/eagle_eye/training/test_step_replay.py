"""A step that is run again: a device that differs from itself is told, one whose kernels are not deterministic is not, and training has the bits that it would have without it."""

import copy
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from eagle_eye.training import messages, step_replay
from eagle_eye.training.held_signals import HeldSignals
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader
from eagle_eye.training.step_replay import DIFFERING, LEARNED, VALUE, VARIABLE, StepReplay, replayed
from fakes.cuda import Clock

EVERY = 4
"""Steps between two replays, in these tests."""
LEARNING = 1 + LEARNED
"""Replays before the first one that tells anything."""

Told = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the launcher is told. Replays are made often, and there is memory for them."""
    said: Told = []
    monkeypatch.setattr(messages, "tell_launcher", lambda kind, **fields: said.append((kind, fields)))
    monkeypatch.setattr(step_replay, "LEAST", EVERY)
    monkeypatch.setattr(step_replay, "free_memory", lambda: 1 << 40)
    return said


class Model(nn.Module):
    """With all that a forward pass changes beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.count, self.losses, self.flips = 0, list[Tensor](), list[int]()
        """`flips`: passes forward in which the device computes wrongly."""
        self.passes: list[int] = [0]

    def forward(self, given: Tensor) -> Tensor:
        self.calls += 1
        self.count += 1
        output = self.layers(given + torch.rand(()) + random.random() + np.random.rand())
        self.losses.append(output)
        self.late = output
        return output


class Training:
    """A loop, and what is of it at the end."""

    def __init__(self, monitor: Monitor | None, *, wrap: Callable[[nn.Module], nn.Module] = lambda model: model, steps: int = 40) -> None:
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        self.model = Model()
        self.seen = wrap(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.batch = torch.zeros(0)
        self.clock = Clock()
        if monitor is not None:
            monitor.replicas(self.seen, replay=self.loss)
        for number in range(steps):
            self.step(monitor, number)

    def loss(self) -> Tensor:
        return self.seen(self.batch).square().mean()

    def step(self, monitor: Monitor | None, number: int) -> None:
        if monitor is not None:
            monitor.begin(number)
        self.batch = torch.randn(4, 8)
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        if monitor is not None:
            monitor.end()

    def state(self) -> list[Any]:
        gradients = [each.grad for each in self.model.parameters()]
        moments = [each for state in self.optimizer.state_dict()["state"].values() for each in state.values()]
        remembered = [self.model.count, len(self.model.losses), random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()]  # type: ignore[index, union-attr]
        return [*self.model.state_dict().values(), *gradients, *moments, *remembered]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True))


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def replays_of(reader: RingReader) -> dict[int, float]:
    return {step.number: step.values[VALUE] for step in reader.steps(-1) if VALUE in step.values}


@pytest.mark.parametrize("parallel", [False, True])
def test_training_has_the_bits_that_it_has_without(watched: tuple[Monitor, RingReader], alone: None, told: Told, parallel: bool) -> None:
    monitor, reader = watched
    wrap: Callable[[nn.Module], nn.Module] = nn.parallel.DistributedDataParallel if parallel else (lambda model: model)
    with_replays, without = Training(monitor, wrap=wrap), Training(None, wrap=wrap)
    assert same(with_replays.state(), without.state())
    assert with_replays.model.late is with_replays.model.losses[-1]
    assert [len(step.values) > 0 for step in reader.steps(-1)] == [True] * 40
    due = [EVERY * count for count in range(1 + LEARNING, 10)]
    assert replays_of(reader) == dict.fromkeys(due, 0.0), "behind those of which it learns"
    assert told == []
    assert monitor.status()["faults"] == 0


def replay_of(model: nn.Module, loss_of: Callable[[], Any]) -> StepReplay:
    return StepReplay(model, loss_of, Clock())


def run(replay: StepReplay, count: int) -> list[float | None]:
    values = []
    for number in range(count):
        replay.run(number)
        values.append(replay.behind(1e9))
    replay.join()
    return values


class Faulty:
    """A layer whose gradients are those of a broken device in some of the runs."""

    def __init__(self, *bad: int) -> None:
        self.model = nn.Linear(4, 1)
        self.runs, self._bad = 0, bad

    def loss(self) -> Tensor:
        self.runs += 1
        scale = 1.0 + 1e-6 if self.runs in self._bad else 1.0
        return (self.model(torch.ones(2, 4)) * scale).sum()


FIRST = 1 + 2 * LEARNED + 1
"""Run of the first replay that counts."""


def test_fault_a_device_that_differs_from_itself_twice_in_succession_is_told_once(told: Told) -> None:
    faulty = Faulty(*range(FIRST, 100, 2))
    replay = replay_of(faulty.model, faulty.loss)
    assert run(replay, LEARNING + 4) == [None] * LEARNING + [1.0, 2.0, 2.0, 2.0]
    assert told == [("replay_differs", {"step": LEARNING + 1})]


def test_the_replay_behind_one_that_differs_comes_with_the_next_step() -> None:
    faulty = Faulty(FIRST)
    replay = replay_of(faulty.model, faulty.loss)
    run(replay, LEARNING + 1)
    assert replay.due(17)
    replay.run(17)
    assert (replay.due(18), replay.due(19)) == (False, True)


def test_twin_one_difference_alone_is_not_told(told: Told) -> None:
    faulty = Faulty(FIRST, FIRST + 4)
    assert run(replay_of(faulty.model, faulty.loss), LEARNING + 4)[LEARNING:] == [1.0, 0.0, 1.0, 0.0]
    assert told == []


@pytest.mark.parametrize("odd", [2, 2 * LEARNED])
def test_twin_kernels_that_are_not_deterministic_end_it_and_are_told_once(told: Told, odd: int) -> None:
    faulty = Faulty(odd)
    replay = replay_of(faulty.model, faulty.loss)
    assert set(run(replay, LEARNING)) == {None}
    assert [kind for kind, _ in told] == ["replay_ended"]
    assert "not deterministic" in told[0][1]["reason"]
    assert replay.over
    assert not replay.due(EVERY - 1)


def test_an_error_of_the_script_s_own_ends_it_and_leaves_what_was(told: Told) -> None:
    model = Model()
    before = copy.deepcopy(model.state_dict())

    def broken() -> Tensor:
        model(torch.ones(4, 8)).sum().backward()
        raise ValueError("no such batch")

    assert run(replay_of(model, broken), 1) == [None]
    assert told == [("replay_ended", {"step": 0, "reason": "ValueError: no such batch"})]
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    assert [each.grad for each in model.parameters()] == [None] * len(list(model.parameters()))
    assert (model.count, model.losses, hasattr(model, "late")) == (0, [], False)


def test_a_replay_with_a_collective_is_refused_before_anything_is_sent(told: Told, alone: None, monkeypatch: pytest.MonkeyPatch) -> None:
    model, sent = nn.Linear(4, 1), list[Tensor]()

    def loss_of() -> Tensor:
        output = model(torch.ones(2, 4)).sum()
        value = output.detach().clone()
        dist.all_reduce(value)
        sent.append(value)
        return output

    run(replay_of(model, loss_of), 2)
    assert sent == []
    assert "allreduce" in told[0][1]["reason"]


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda model, _: model.weight.register_hook(lambda gradient: gradient), "hooks"),
        (lambda _, monkeypatch: monkeypatch.setitem(sys.modules, "megatron.core", object()), "megatron.core"),
    ],
)
def test_what_could_not_be_put_back_is_not_begun(told: Told, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Any, Any], Any], why: str) -> None:
    model = nn.Linear(4, 1)
    spoil(model, monkeypatch)
    replay = replay_of(model, lambda: pytest.fail("it was run"))
    replay.join()
    assert replay.over
    assert why in told[0][1]["reason"]
    listed = replay_of(list(model.parameters()), lambda: None)  # type: ignore[arg-type]
    assert listed.over


def test_no_batch_yet_is_no_error(told: Told) -> None:
    assert run(replay_of(nn.Linear(4, 1), lambda: None), 3) == [None] * 3
    assert told == []


def test_the_interval_keeps_the_cost_of_both_runs_below_half_a_percent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 1)

    def slow() -> Tensor:
        clock.pass_ms(100)
        return model(torch.ones(2, 4)).sum()

    replay = StepReplay(model, slow, clock)
    replay.behind(0.1)
    replay.run(0)
    assert [number for number in range(1024) if replay.due(number)] == [511, 1023]
    monkeypatch.setattr(step_replay, "LEAST", 1)
    replay.behind(0.2)
    replay.run(1)
    assert [number for number in range(512) if replay.due(number)] == [255, 511]


def test_what_the_script_marks_and_logs_meanwhile_is_of_no_step(watched: tuple[Monitor, RingReader], told: Told) -> None:
    monitor, reader = watched
    model = nn.Linear(4, 1)

    def loss_of() -> Tensor:
        before = monitor.status()
        with monitor.phase("forward"), monitor.wait():
            monitor.log(again=1.0)
            monitor.batch(torch.ones(2))
            assert monitor.status() == before
            return model(torch.ones(2, 4)).sum()

    monitor.replicas(model, replay=loss_of)
    for _ in monitor.steps(range(2 * EVERY)):
        pass
    assert [step.values.keys() & {"again", "forward_s"} for step in reader.steps(-1)] == [set()] * (2 * EVERY)
    assert (monitor.status()["phase"], monitor.status()["faults"]) == ("other", 0)
    assert told == []
    monitor.begin(8)
    monitor.mark("forward")
    assert monitor.status()["phase"] == "forward"


def test_the_environment_leaves_it_out(watched: tuple[Monitor, RingReader], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    monitor, _ = watched
    monitor.replicas(nn.Linear(4, 1), replay=lambda: pytest.fail("it was run"))
    for _ in monitor.steps(range(2 * EVERY)):
        pass
    assert monitor.status()["faults"] == 0


def test_a_bit_in_the_gradient_is_another_digest_and_the_same_dropout_is_the_same() -> None:
    model = Model()
    batch = torch.randn(4, 8)
    found = replayed(torch, model, lambda: model(batch).square().mean(), 4, HeldSignals())
    assert found is not None
    assert len(set(found)) == 1
    assert DIFFERING == 2
