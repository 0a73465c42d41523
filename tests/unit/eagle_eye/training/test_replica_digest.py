"""Digests of the parameters: another bit is another digest, the same bits are the same digest, and nothing of it disturbs the loop."""

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

from eagle_eye.training import batch_digest
from eagle_eye.training.probe import Monitor
from eagle_eye.training.replica_digest import (
    LEAST,
    OF_GRADIENTS,
    PRIME,
    VALUE,
    VARIABLE,
    DigestSchedule,
    digest_of,
    interval,
    is_plain,
)
from eagle_eye.training.ring_buffer import RingReader, RingWriter
from fakes.cuda import Clock


def number_of(*tensors: torch.Tensor) -> int:
    found, on_gpu = digest_of(tensors)
    assert found is not None
    assert on_gpu == 0
    return int(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.float8_e4m3fn])
@pytest.mark.parametrize("begin", [0, 1])
def test_whichever_bit_is_turned_round_the_digest_is_another_one(dtype: torch.dtype, begin: int) -> None:
    """In the numbers that are summed eight bytes at a time, and in the rest; in a tensor that begins in the middle of its memory, too."""
    other, tensor = torch.ones(3), torch.randn(10).to(dtype)[begin:]
    healthy = number_of(other, tensor)
    assert 0 <= healthy < PRIME
    assert float(torch.tensor(float(PRIME - 1), dtype=torch.float32)) == PRIME - 1, "a step's value is a float32"
    raw = tensor.view(torch.uint8)
    for byte in [*range(tensor.element_size()), *range(len(raw) - tensor.element_size(), len(raw))]:
        for bit in range(8):
            raw[byte] ^= 1 << bit
            assert number_of(other, tensor) != healthy, (byte, bit)
            raw[byte] ^= 1 << bit
    assert number_of(other, tensor) == healthy


def test_what_cannot_be_read_is_left_out() -> None:
    plain = torch.ones(8)
    others = [torch.ones(4, 4).t()[:, :2], torch.ones(4, dtype=torch.complex64), torch.ones(3).to_sparse(), torch.empty(3, device="meta"), torch.empty(0)]
    assert number_of(plain, *others) == number_of(plain)
    assert digest_of(others)[0] is None


def freed(tensor: torch.Tensor) -> torch.Tensor:
    """As FSDP1 leaves what it has given back."""
    tensor.untyped_storage().resize_(0)
    return tensor


UNREADABLE = {
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(7), 0.1, 0, torch.qint8),
    "of four bits": lambda: torch.quantize_per_channel(torch.randn(4, 4), torch.ones(4), torch.zeros(4), 0, torch.quint4x2),
    "nested": lambda: torch.nested.nested_tensor([torch.randn(3), torch.randn(2)]),
    "negated": lambda: torch.randn(1, dtype=torch.complex64).conj().imag,
    "conjugated": lambda: torch.randn(8, dtype=torch.complex64).conj(),
    "freed": lambda: freed(torch.randn(1 << 20)),
    "of no type that is known": lambda: torch.empty(8, dtype=torch.uint8).view(torch.bits8),
}


@pytest.mark.parametrize("make", UNREADABLE.values(), ids=UNREADABLE.keys())
@pytest.mark.parametrize("work", ["digest", "batch"])
@pytest.mark.filterwarnings("ignore")
def test_what_is_no_plain_number_in_memory_ends_no_process(make: Callable[[], torch.Tensor], work: str) -> None:
    """Read as integers, a quantized or a freed one ended it with SIGSEGV: so the look itself is tested, and what is read is not."""
    tensor = make()
    assert not is_plain(tensor)
    if work == "digest":
        assert digest_of([tensor, torch.nn.Parameter(tensor, requires_grad=False)] if not tensor.is_nested else [tensor]) == (None, 0)
    else:
        assert batch_digest._flat(tensor) is None


@pytest.mark.parametrize("tensor", [torch.ones(3, 4), torch.ones(3, 4).t(), torch.ones(8)[2:5], torch.empty(0), torch.ones(3, dtype=torch.bool), torch.ones(4).expand(3, 4)], ids=str)
def test_twin_views_of_plain_numbers_are_plain(tensor: torch.Tensor) -> None:
    assert is_plain(tensor)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_interval_is_a_power_of_two_that_keeps_the_cost_below_half_a_percent(clock: Clock) -> None:
    def slow() -> Iterator[torch.Tensor]:
        clock.pass_ms(10)
        yield torch.ones(4)

    digests = DigestSchedule(slow, clock)
    taken = [number for number in range(600) if digests.behind(number, 0.02) is not None]
    assert taken == [15, 127, 255, 383, 511]
    assert interval(1e9, 0.001) == 1 << 20


def test_a_step_holds_the_digest_that_its_optimizer_left(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = torch.nn.Parameter(torch.ones(10))

    def digests_of_steps() -> dict[int, float]:
        writer = RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0)
        with RingReader.open(tmp_path / "ring") as reader:
            monitor = Monitor(writer, clock_ns=clock)
            monitor.replicas([weights])
            for _ in monitor.steps(range(2 * LEAST)):
                clock.pass_ms(10)
                with torch.no_grad():
                    weights.add_(1.0)
            return {step.number: step.values[VALUE] for step in reader.steps(-1) if VALUE in step.values}

    found = digests_of_steps()
    assert list(found) == [LEAST - 1, 2 * LEAST - 1]
    assert found[2 * LEAST - 1] == number_of(weights)
    monkeypatch.setenv(VARIABLE, "0")
    assert digests_of_steps() == {}


def test_an_error_in_it_ends_the_digests_and_nothing_else(tmp_path: Path, clock: Clock) -> None:
    writer = RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0)
    asked: list[int] = []

    def broken() -> list[torch.Tensor]:
        asked.append(1)
        raise RuntimeError("no parameters any more")

    with RingReader.open(tmp_path / "ring") as reader:
        monitor = Monitor(writer, clock_ns=clock)
        monitor.replicas(broken)
        for _ in monitor.steps(range(3 * LEAST)):
            clock.pass_ms(1)
        assert [step.number for step in reader.steps(-1)] == list(range(3 * LEAST))
    assert len(asked) == 1
    assert monitor.status()["faults"] == 1


@pytest.fixture
def no_other_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(torch_optimizer, hooks, type(getattr(torch_optimizer, hooks))())


def trained(monitor: Monitor, model: torch.nn.Linear, optimizer: torch.optim.Optimizer, *, skipped: int = -1) -> list[int]:
    """The digest of the gradient of each step when its optimizer is called; the gradients are gone behind it."""
    found = []
    for number in monitor.steps(range(2 * LEAST)):
        (model(torch.full((2, 4), float(number + 1))).sum() * 0.5).backward()
        found.append(number_of(model.weight.grad, model.bias.grad))  # type: ignore[arg-type]
        if number != skipped:
            optimizer.step()
        optimizer.zero_grad()
    return found


def of_gradients(reader: RingReader) -> dict[int, float]:
    return {step.number: step.values[OF_GRADIENTS] for step in reader.steps(-1) if OF_GRADIENTS in step.values}


@pytest.mark.parametrize("whole", [True, False])
def test_a_step_holds_the_digest_of_the_gradients_that_its_optimizer_was_given(watched: tuple[Monitor, RingReader], no_other_hooks: None, whole: bool) -> None:
    monitor, reader = watched
    model = torch.nn.Linear(4, 1)
    monitor.replicas(model if whole else model.parameters())
    found = trained(monitor, model, torch.optim.SGD(model.parameters(), lr=0.1), skipped=2 * LEAST - 1)
    assert of_gradients(reader) == {LEAST - 1: found[LEAST - 1]}, "in the last one the update was left out"
    assert [step.number for step in reader.steps(-1) if VALUE in step.values] == [LEAST - 1, 2 * LEAST - 1]


def test_of_several_optimizers_the_first_that_updates_half_of_the_parameters_is_waited_for(watched: tuple[Monitor, RingReader], no_other_hooks: None) -> None:
    monitor, reader = watched
    model, other = torch.nn.Linear(4, 1), torch.nn.Linear(4, 4)
    monitor.replicas(lambda: [*model.parameters(), *other.parameters()])
    several = [torch.optim.SGD(part, lr=0.1) for part in ([model.bias], [*model.parameters()], [*other.parameters()])]
    expected = 0
    for number in monitor.steps(range(LEAST)):
        (other(torch.ones(2, 4)).sum() * model.weight.sum() + model.bias.sum()).backward()
        several[0].step()
        model.bias.grad.fill_(float(number))  # type: ignore[union-attr]
        expected = number_of(*(each.grad for each in [*model.parameters(), *other.parameters()]))  # type: ignore[misc]
        several[1].step()
        other.weight.grad.zero_()  # type: ignore[union-attr]
        several[2].step()
    assert of_gradients(reader) == {LEAST - 1: expected}


def test_what_the_script_has_said_stays_when_an_integration_finds_another_model(watched: tuple[Monitor, RingReader], no_other_hooks: None) -> None:
    monitor, reader = watched
    said, found = torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)
    monitor.found_replicas(torch.nn.Linear(4, 1))
    monitor.found_replicas(found)
    for _ in monitor.steps(range(LEAST)):
        pass
    monitor.replicas(said)
    monitor.found_replicas(found)
    for _ in monitor.steps(range(LEAST, 2 * LEAST), start=LEAST):
        pass
    assert [step.values[VALUE] for step in reader.steps(-1) if VALUE in step.values] == [number_of(*found.parameters()), number_of(*said.parameters())]


def test_a_model_that_the_script_lets_go_of_is_gone(watched: tuple[Monitor, RingReader], no_other_hooks: None) -> None:
    monitor, _ = watched
    model = torch.nn.Linear(4, 1)
    gone = weakref.ref(model)
    monitor.found_replicas(model)
    del model
    gc.collect()
    assert gone() is None
    for _ in monitor.steps(range(LEAST)):
        pass
    assert monitor.status()["faults"] == 0


def test_an_error_before_an_update_is_no_error_of_the_update(watched: tuple[Monitor, RingReader], no_other_hooks: None) -> None:
    monitor, reader = watched
    model = torch.nn.Linear(4, 1)
    monitor.replicas(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups.append({})
    monitor.begin(LEAST - 1)
    monitor.before_update(optimizer)
    monitor.end()
    assert (of_gradients(reader), monitor.status()["faults"]) == ({}, 1)
