"""Digests of the parameters: another bit is another digest, the same bits are the same digest, and nothing of it disturbs the loop."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from eagle_eye.training.probe import Monitor
from eagle_eye.training.replica_digest import LEAST, PRIME, VALUE, VARIABLE, DigestSchedule, digest_of, interval
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
