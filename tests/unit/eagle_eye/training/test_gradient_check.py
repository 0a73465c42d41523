"""Gradients that are no numbers are seen before they are exchanged, with the tensor that is nearest to the loss; the loop is not disturbed."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eagle_eye.training import gradient_check, messages
from eagle_eye.training.gradient_check import MEASURED, VALUE, VARIABLE, GradientChecks, name_of
from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter
from fakes.cuda import Clock

NAN, INFINITE = float("nan"), float("inf")
GAP_S = 10.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 1))


def passed(model: nn.Module, scale: float = 1.0) -> None:
    """One backward pass."""
    (model(torch.ones(2, 4)).sum() * scale).backward()


class Damaged(torch.autograd.Function):
    """What flows back through here is no number in one place."""

    @staticmethod
    def forward(context: Any, given: Tensor, value: float) -> Tensor:
        context.value = value
        return given.clone()

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        bad = gradients[0].clone()
        bad.view(-1)[0] = context.value
        return bad, None


def damaged_between(model: nn.Sequential, value: float) -> None:
    """Between the first layer and the others."""
    model[2:](model[1](Damaged.apply(model[0](torch.ones(2, 4)), value))).sum().backward()


@pytest.mark.parametrize("value", [NAN, INFINITE, -INFINITE])
def test_the_bad_tensor_nearest_to_the_loss_is_told_by_its_place(clock: Clock, value: float) -> None:
    model = layers()
    checks = GradientChecks(model.parameters(), clock)
    damaged_between(model, value)
    assert float(checks.end(0, GAP_S)) == 2, "the bias of the first layer: the layers behind it have numbers"
    model.zero_grad()
    passed(model)
    assert float(checks.end(1, GAP_S)) == 0
    passed(model, NAN)
    assert float(checks.end(2, GAP_S)) == 6


def test_a_bad_micro_batch_is_seen_among_good_ones(clock: Clock) -> None:
    model = layers()
    checks = GradientChecks(model.parameters(), clock)
    damaged_between(model, NAN)
    passed(model)
    assert float(checks.end(0, GAP_S)) == 2


def test_twin_what_cannot_be_checked_is_left_out(clock: Clock) -> None:
    wide = nn.Parameter(torch.full((2,), 1e300, dtype=torch.float64))
    frozen, number = nn.Parameter(torch.ones(3), requires_grad=False), torch.ones(3)
    table = nn.Embedding(4, 2, sparse=True)
    checks = GradientChecks([wide, frozen, number, torch.ones(3, dtype=torch.int32), *table.parameters()], clock)
    (table(torch.tensor([1])).sum() * NAN).backward()
    (wide * 1e5).sum().backward()
    assert checks.end(0, GAP_S) is None
    assert GradientChecks([], clock).end(0, GAP_S) is None


def test_a_gradient_whose_storage_another_hook_has_freed_is_not_read(clock: Clock) -> None:
    parameter = torch.nn.Parameter(torch.ones(1 << 20))

    def free(each: torch.Tensor) -> None:
        assert each.grad is not None
        each.grad.untyped_storage().resize_(0)

    parameter.register_post_accumulate_grad_hook(free)
    checks = GradientChecks([parameter], clock)
    parameter.sum().backward()
    assert checks.end(0, 1.0) is None


def test_half_precision_that_adds_up_to_more_than_it_holds_is_a_number(clock: Clock) -> None:
    weight = nn.Parameter(torch.zeros(4096, dtype=torch.float16))
    checks = GradientChecks([weight], clock)
    (weight * torch.full((4096,), 60_000.0, dtype=torch.float16)).sum().backward()
    assert float(checks.end(0, GAP_S)) == 0


def test_a_step_without_a_backward_pass_has_no_value(clock: Clock) -> None:
    checks = GradientChecks(layers().parameters(), clock)
    assert checks.end(0, GAP_S) is None


def test_what_costs_too_much_is_looked_at_in_part_and_then_seldom_and_the_first_tensor_always(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    plain = torch.sum

    def slow(*arguments: Any, **named: Any) -> Tensor:
        clock.pass_ms(1)
        found: Tensor = plain(*arguments, **named)
        return found

    monkeypatch.setattr(torch, "sum", slow)
    checks = GradientChecks(model.parameters(), clock)
    values = []
    for number in range(4 * MEASURED):
        damaged_between(model, NAN)
        values.append(checks.end(number, 0.1))
        model.zero_grad()
    assert [float(value) for value in values[:MEASURED]] == [2] * MEASURED
    told = [(number, float(value)) for number, value in enumerate(values) if value is not None and number >= 2 * MEASURED]
    assert told == [(number, 1) for number in range(2 * MEASURED, 4 * MEASURED, 2)]


def test_twin_the_first_calls_that_load_their_kernels_cost_no_tensor(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    model, plain, calls = layers(), torch.sum, []

    def cold(*arguments: Any, **named: Any) -> Tensor:
        calls.append(1)
        if len(calls) < 20:
            clock.pass_ms(40)
        found: Tensor = plain(*arguments, **named)
        return found

    monkeypatch.setattr(torch, "sum", cold)
    checks = GradientChecks(model.parameters(), clock)
    for number in range(2 * MEASURED):
        passed(model)
        checks.end(number, 0.1)
    assert all(each._post_accumulate_grad_hooks for each in model.parameters())


def test_a_model_that_the_script_lets_go_of_is_gone(clock: Clock) -> None:
    model = layers()
    checks, weights = GradientChecks(model.parameters(), clock), weakref.ref(model[0].weight)
    passed(model)
    checks.end(0, GAP_S)
    del model
    gc.collect()
    assert weights() is None
    checks.tell(0, 1.0)


def test_an_error_in_a_hook_ends_the_checks_and_the_backward_pass_goes_on(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    model = layers()
    checks = GradientChecks(model.parameters(), clock)

    def broken(*_: Any, **__: Any) -> Tensor:
        raise RuntimeError("no kernel of this kind")

    monkeypatch.setattr(torch, "sum", broken)
    passed(model)
    monkeypatch.undo()
    assert all(each.grad is not None for each in model.parameters())
    passed(model, NAN)
    assert [checks.end(number, GAP_S) for number in range(2)] == [None, None]


def test_once_stopped_nothing_is_looked_at(clock: Clock) -> None:
    model = layers()
    checks = GradientChecks(model.parameters(), clock)
    checks.stop()
    passed(model, NAN)
    assert checks.end(0, GAP_S) is None
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


# --- the name


def test_a_tensor_is_called_as_the_outermost_module_calls_it() -> None:
    inner = layers()
    outer = nn.Sequential(nn.Identity(), inner)
    assert name_of(inner[2].weight) == "1.2.weight"
    assert name_of(nn.Parameter(torch.ones(1))) == ""
    assert outer[1] is inner


def test_a_module_that_was_never_made_as_a_whole_hides_no_name() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:  # without nn.Module's own
            self.begun = True

    half, model = Half(), layers()
    assert name_of(model[2].bias) == "2.bias"
    assert half.begun


def test_the_launcher_is_told_once_a_minute(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, Any]] = []
    monkeypatch.setattr(gradient_check, "_tell", lambda step, parameter: told.append((step, parameter)))
    model = layers()
    checks = GradientChecks(model.parameters(), clock)
    for step, place in ((3, 0.0), (4, 2.0), (5, 2.0), (6, 99.0)):
        checks.tell(step, place)
        checks.join()
    clock.pass_ms(61_000)
    checks.tell(7, 1.0)
    checks.join()
    parameters = list(model.parameters())
    assert [step for step, _ in told] == [4, 7]
    assert told[0][1] is parameters[1]


def test_the_message_has_the_name_and_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(messages, "send", lambda path, line: sent.append(messages.decode(line) | {"path": path}))
    monkeypatch.setenv("EAGLE_EYE_SOCKET", "/run/launcher")
    monkeypatch.setenv("EAGLE_EYE_WORKER", "run/a/0")
    monkeypatch.setenv("EAGLE_EYE_EPOCH", "3")
    model = layers()
    gradient_check._tell(7, model[0].weight)
    assert sent == [{"v": 1, "kind": "bad_gradient", "worker": "run/a/0", "epoch": 3, "step": 7, "tensor": "0.weight", "shape": "4x4", "path": "/run/launcher"}]


# --- with the probe


@pytest.fixture
def monitored(tmp_path: Path, clock: Clock) -> Iterator[tuple[Monitor, RingReader]]:
    writer = RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0)
    with RingReader.open(tmp_path / "ring") as reader:
        yield Monitor(writer, clock_ns=clock), reader


def trained(monitor: Monitor, clock: Clock) -> nn.Sequential:
    """Four steps; in step 2 one worker's gradient is no number."""
    model = layers()
    monitor.replicas(model.parameters())
    for number in monitor.steps(range(4)):
        clock.pass_ms(1000)
        damaged_between(model, NAN) if number == 2 else passed(model)
        model.zero_grad()
    return model


def test_each_step_tells_of_its_gradients(monitored: tuple[Monitor, RingReader], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(GradientChecks, "tell", lambda _, step, place: told.append(step))
    monitor, reader = monitored
    trained(monitor, clock)
    assert [step.values[VALUE] for step in reader.steps(-1)] == [0, 0, 2, 0]
    assert told == [2]
    assert monitor.status()["faults"] == 0


def test_they_can_be_left_out(monitored: tuple[Monitor, RingReader], clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    monitor, reader = monitored
    model = trained(monitor, clock)
    assert all(VALUE not in step.values for step in reader.steps(-1))
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


def test_of_parameters_that_are_given_again_each_has_one_hook(monitored: tuple[Monitor, RingReader], clock: Clock) -> None:
    monitor, _ = monitored
    model = trained(monitor, clock)
    monitor.replicas(model.parameters())
    assert [len(each._post_accumulate_grad_hooks) for each in model.parameters()] == [1] * 6
