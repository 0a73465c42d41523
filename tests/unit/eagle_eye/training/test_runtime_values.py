"""What Python and torch do beside a step stands in its record."""

import gc
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eagle_eye.training.probe import Monitor
from eagle_eye.training.ring_buffer import RingReader, RingWriter, StepRecord
from eagle_eye.training.runtime_values import EVERY_NS, PEAK_VARIABLE, peak_flops, peak_of

MEMORY = {"allocated_bytes": {"all": {"current": 3}}, "reserved_bytes": {"all": {"current": 7}}, "num_alloc_retries": 2, "num_ooms": 0}


class Loop:
    """One that is watched, and whose clock stands still."""

    def __init__(self, folder: Path) -> None:
        self.now = time.monotonic_ns()
        self.monitor = Monitor(RingWriter.create(folder / "ring", worker="run/a/0", offset_ns=0), clock_ns=lambda: self.now)
        self.monitor.watch_runtime()
        self._reader = RingReader.open(folder / "ring")

    def step(self, number: int, seconds: float = 0.0) -> StepRecord:
        self.monitor.begin(number)
        self.now += int(seconds * 1e9)
        self.monitor.end()
        return self._reader.steps(-1)[-1]


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    monkeypatch.setattr(gc, "callbacks", gc.callbacks)
    before = list(gc.callbacks)
    yield Loop(tmp_path)
    gc.callbacks[:] = before


def collect(loop: Loop, seconds: float) -> None:
    """A garbage collection of so long."""
    for call in gc.callbacks[-1:]:
        call("start", {})
        loop.now += int(seconds * 1e9)
        call("stop", {})


def test_pauses_of_the_garbage_collector_are_of_the_step_in_which_they_were(loop: Loop) -> None:
    loop.monitor.begin(0)
    collect(loop, 0.2)
    collect(loop, 0.1)
    loop.monitor.end()
    assert loop._reader.steps(-1)[-1].values["garbage_collection_s"] == pytest.approx(0.3)
    assert "garbage_collection_s" not in loop.step(1).values


def test_python_itself_calls_it(loop: Loop) -> None:
    ticks = iter(range(1, 1000))
    loop.monitor._runtime._clock = lambda: next(ticks) * 1_000_000_000  # type: ignore[union-attr]
    gc.collect()
    assert loop.step(0).values["garbage_collection_s"] >= 1.0


def test_graphs_that_are_compiled_anew_are_counted(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    counters: Any = defaultdict(Counter)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    assert "compiled_graphs" not in loop.step(0).values
    counters["stats"]["unique_graphs"] += 3
    assert loop.step(1).values["compiled_graphs"] == 3
    assert "compiled_graphs" not in loop.step(2).values
    counters.clear()  # torch.compiler.reset
    counters["stats"]["unique_graphs"] += 1
    assert "compiled_graphs" not in loop.step(3).values


def test_memory_of_the_allocator_is_read_once_a_second(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, memory_stats_as_nested_dict=lambda: read.append(1) or MEMORY)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    values = loop.step(0).values
    assert (values["gpu_memory_allocated_bytes"], values["gpu_memory_reserved_bytes"], values["gpu_memory_retries"]) == (3, 7, 2)
    assert "gpu_memory_failures" not in values
    loop.step(1)
    assert len(read) == 1
    loop.step(2, EVERY_NS / 1e9)
    assert len(read) == 2


def test_a_step_that_tells_its_operations_has_their_share_of_the_peak(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PEAK_VARIABLE, "1e12")
    loop.monitor.begin(0)
    loop.monitor.log(flops=1e12)
    loop.now += 2_000_000_000
    loop.monitor.end()
    assert loop._reader.steps(-1)[-1].values["mfu_percent"] == pytest.approx(50.0)
    assert "mfu_percent" not in loop.step(1, 1.0).values


@pytest.mark.parametrize(("name", "peak"), [
    ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("NVIDIA H20", 148e12), ("NVIDIA H200", 989e12), ("NVIDIA A10G", 70e12),
    ("AMD Instinct MI300X", 1307e12), ("Tesla V100-SXM2-32GB", 125e12),
])  # fmt: skip
def test_the_peak_of_a_gpu_is_found_by_its_name(name: str, peak: float) -> None:
    assert peak_of(name) == peak


@pytest.mark.parametrize(("told", "name"), [("nonsense", "NVIDIA H100"), ("-1", ""), ("", "NVIDIA GeForce GTX 1080")])
def test_twin_without_a_peak_there_is_no_share(monkeypatch: pytest.MonkeyPatch, told: str, name: str) -> None:
    cuda = SimpleNamespace(is_initialized=lambda: True, get_device_name=lambda: name)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert math.isnan(peak_flops({PEAK_VARIABLE: told}))


def test_a_step_is_recorded_where_nothing_can_be_read(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: 1 / 0)))
    assert loop.step(7).number == 7
    assert loop.monitor.status()["faults"] == 1


def test_twin_a_script_without_torch_tells_nothing_of_it(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "torch._dynamo.utils"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not {"compiled_graphs", "gpu_memory_allocated_bytes"} & loop.step(0).values.keys()
