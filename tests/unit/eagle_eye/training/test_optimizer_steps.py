"""Steps of loops that mark none: what torch itself is called with is enough to count them."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch.optim import optimizer as torch_optimizer
from torch.utils.data import DataLoader, dataloader

from eagle_eye.training import batch_digest, optimizer_steps
from eagle_eye.training.optimizer_steps import OTHERS, OptimizerSteps
from eagle_eye.training.probe import Monitor
from eagle_eye.training.replica_digest import digest_of
from eagle_eye.training.ring_buffer import RingReader, RingWriter, StepRecord


class Watched:
    """A process whose steps are counted."""

    def __init__(self, monitor: Monitor, reader: RingReader, steps_of: OptimizerSteps) -> None:
        self.monitor, self.steps_of = monitor, steps_of
        self._reader = reader

    @property
    def steps(self) -> list[StepRecord]:
        return self._reader.steps(-1)

    @property
    def numbers(self) -> list[int]:
        return [step.number for step in self.steps]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """With torch as it was before, afterwards."""
    monkeypatch.setattr(torch.autograd, "backward", torch.autograd.backward)
    monkeypatch.setattr(dataloader._BaseDataLoaderIter, "__next__", dataloader._BaseDataLoaderIter.__next__)
    monkeypatch.setattr(torch.distributed.Work, "wait", torch.distributed.Work.wait)
    monkeypatch.setattr(optimizer_steps.atexit, "register", lambda function: None)
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(torch_optimizer, hooks, type(getattr(torch_optimizer, hooks))())
    writer = RingWriter.create(tmp_path / "ring", worker="run/a/0", offset_ns=0)
    with RingReader.open(tmp_path / "ring") as reader:
        monitor = Monitor(writer)
        steps = OptimizerSteps(monitor)
        steps.install()
        yield Watched(monitor, reader, steps)


def model() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    made = torch.nn.Linear(4, 1)
    return made, torch.optim.SGD(made.parameters(), lr=0.01)


def train(made: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, micro_batches: int = 1) -> None:
    loader = DataLoader(torch.ones(steps * micro_batches, 4), batch_size=1)
    for number, batch in enumerate(loader):
        made(batch).sum().backward()
        if (number + 1) % micro_batches == 0:
            optimizer.step()
            optimizer.zero_grad()


def spent(step: StepRecord) -> float:
    """Seconds in all of its phases."""
    return sum(seconds for name, seconds in step.values.items() if name.endswith("_s") and name != "step_s")


def test_each_step_of_the_optimizer_is_a_step_with_its_phases(watched: Watched) -> None:
    train(*model(), steps=5)
    assert watched.numbers == [0, 1, 2, 3, 4]
    for step in watched.steps[1:]:
        phases = {name for name, seconds in step.values.items() if seconds > 0.0}
        assert phases >= {"step_s", "data_s", "forward_s", "backward_s", "optimizer_s"}
        assert spent(step) == pytest.approx(step.values["step_s"])


def test_the_parameters_of_the_leading_optimizer_are_told_as_a_digest(watched: Watched) -> None:
    made, optimizer = model()
    train(made, optimizer, steps=16)
    digests = {step.number: step.values["replica_digest"] for step in watched.steps if "replica_digest" in step.values}
    found, _ = digest_of(made.parameters())
    assert digests == {15: float(found)}  # type: ignore[arg-type]


def test_a_step_tells_a_digest_of_what_the_loader_has_given_it(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_digest, "SHARE", 1e9)
    made, optimizer = model()
    rows = torch.arange(24.0).reshape(6, 4)[[0, 1, 2, 1, 2, 3]]
    for batch in DataLoader(rows, batch_size=1):
        made(batch).sum().backward()
        optimizer.step()
    digests = [step.values["batch_digest"] for step in watched.steps[1:]]  # no step has begun where the first batch is asked for
    assert digests[0:2] == digests[2:4]
    assert len(set(digests)) == 3


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def phase_of(watched: Watched) -> str:
    return str(watched.monitor.status()["phase"])


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_wait_for_others_is_communication_and_no_mark_and_behind_it_is_the_phase_before(
    watched: Watched, alone: None, monkeypatch: pytest.MonkeyPatch, asynchronous: bool
) -> None:
    phases: list[str] = []
    monkeypatch.setattr(torch.distributed.Work, "wait", lambda _work: phases.append(phase_of(watched)))
    watched.steps_of._watch_collectives()
    made, optimizer = model()
    for _ in range(2):
        made(torch.ones(1, 4)).sum().backward()
        marks = watched.monitor.status()["marks"]
        work = torch.distributed.all_reduce(made.weight.grad, async_op=asynchronous)
        if work is not None:
            work.wait()
        assert (phase_of(watched), watched.monitor.status()["marks"]) == ("forward", marks)
        optimizer.step()
    assert phases == ["communication"] * 2


def waits_long(_state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Reduces a bucket as a slow network does."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    threading.Timer(WAIT_S, future.set_result, (bucket.buffer(),)).start()
    return future


WAIT_S = 0.05


def test_what_distributed_data_parallel_waits_for_behind_its_last_gradient_is_communication(watched: Watched, alone: None) -> None:
    made, optimizer = model()
    parallel = torch.nn.parallel.DistributedDataParallel(made)
    parallel.register_comm_hook(None, waits_long)
    train(parallel, optimizer, steps=4)
    assert watched.numbers == list(range(4))
    for step in watched.steps[1:]:
        assert step.values["communication_s"] >= 0.8 * WAIT_S > step.values["backward_s"] > 0.0
        assert spent(step) == pytest.approx(step.values["step_s"])


def test_no_hook_stays_on_a_loss_and_those_of_others_are_called_behind_ours(watched: Watched, alone: None) -> None:
    made, _ = model()
    loss, called = made(torch.ones(1, 4)).sum(), []
    loss.register_hook(lambda gradient: called.append(phase_of(watched)))
    loss.backward(retain_graph=True)
    first = made.weight.grad.clone()
    made.weight.grad = None
    loss.backward()
    assert torch.equal(made.weight.grad, first)
    assert (called, len(loss._backward_hooks)) == (["backward"] * 2, 1)


@pytest.mark.parametrize("given", [list, tuple, iter, lambda losses: (loss for loss in losses), lambda losses: [torch.autograd.graph.get_gradient_edge(loss) for loss in losses]])
def test_whatever_the_backward_pass_is_given_its_gradients_are_what_they_would_be(watched: Watched, alone: None, given: Callable[..., Any]) -> None:
    made, optimizer = model()
    for _ in range(2):
        losses = [made(torch.ones(1, 4)).sum(), made(2.0 * torch.ones(1, 4)).sum()]
        optimizer.zero_grad()
        torch.autograd.backward(given(losses))
        assert made.weight.grad.tolist() == [[3.0] * 4]
    torch.autograd.backward(tensors=made(torch.ones(1, 4)).sum())
    assert made.weight.grad.tolist() == [[4.0] * 4]


def test_checkpoints_that_compute_again_are_a_part_of_the_backward_pass(watched: Watched, alone: None) -> None:
    made, optimizer = model()
    phases: list[str] = []
    for _ in range(3):
        inner = torch.utils.checkpoint.checkpoint(made, torch.ones(1, 4, requires_grad=True), use_reentrant=True)
        inner.register_hook(lambda _gradient: phases.append(phase_of(watched)))
        made(inner.expand(1, 4)).sum().backward()
        phases.append(phase_of(watched))
        optimizer.step()
    assert phases == ["backward", "forward"] * 3
    assert watched.numbers == [0, 1, 2]


def test_a_backward_pass_that_raises_leaves_no_phase_behind(watched: Watched, alone: None) -> None:
    made, optimizer = model()
    train(made, optimizer, steps=1)
    loss = made(torch.ones(1, 4)).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert phase_of(watched) == "forward"
    train(made, optimizer, steps=1)
    assert watched.numbers == [0, 1]


def test_twin_a_collective_before_the_training_begins_no_step(watched: Watched, alone: None) -> None:
    torch.distributed.barrier()
    assert watched.monitor.step == -1


def test_twin_a_worker_without_process_groups_waits_for_nobody(watched: Watched) -> None:
    train(*model(), steps=3)
    assert all("communication_s" not in step.values for step in watched.steps)


def test_micro_batches_are_no_steps(watched: Watched) -> None:
    train(*model(), steps=3, micro_batches=4)
    assert watched.numbers == [0, 1, 2]


def test_of_two_optimizers_the_first_one_counts(watched: Watched) -> None:
    generator, critic = model(), model()
    for _ in range(4):
        train(*critic, steps=1)
        train(*generator, steps=1)
    assert watched.numbers == [0, 1, 2, 3]


@pytest.mark.parametrize("number", [1, 2, 5, 12, 150])
@pytest.mark.parametrize("passes", ["one", "one each"])
def test_however_many_optimizers_step_behind_a_pass_it_is_one_step(watched: Watched, number: int, passes: str) -> None:
    parts = [model() for _ in range(number)]
    for _ in range(8):
        if passes == "one":
            torch.stack([made(torch.ones(1, 4)).sum() for made, _ in parts]).sum().backward()
        for made, optimizer in parts:
            if passes == "one each":
                made(torch.ones(1, 4)).sum().backward()
            optimizer.step()
    assert watched.numbers == list(range(8))


def test_optimizers_that_step_within_the_backward_pass_are_one_step(watched: Watched) -> None:
    made = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(6)))
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in made.parameters()}
    for parameter in made.parameters():
        parameter.register_post_accumulate_grad_hook(lambda each: optimizers[each].step())
    for _ in range(8):
        made(torch.ones(1, 4)).sum().backward()
    assert watched.numbers == list(range(8))


@pytest.mark.parametrize("micro_batches", [1, 8])
def test_of_optimizers_that_alternate_the_first_one_counts(watched: Watched, micro_batches: int) -> None:
    generator, critic = model(), model()
    for _ in range(8):
        for made, optimizer in (critic, critic, generator):
            train(made, optimizer, steps=1, micro_batches=micro_batches)
    assert watched.numbers == list(range(16))


def test_the_next_one_that_leads_is_one_even_where_there_are_many(watched: Watched) -> None:
    warm_up = model()
    train(*warm_up, steps=2)
    parts = [model() for _ in range(12)]
    for _ in range(OTHERS + 5):
        torch.stack([made(torch.ones(1, 4)).sum() for made, _ in parts]).sum().backward()
        for _, optimizer in parts:
            optimizer.step()
    assert watched.numbers == list(range(2 + 5))


def test_one_that_is_not_used_any_more_counts_no_longer(watched: Watched) -> None:
    """Warm-up with one optimizer, training with another."""
    warm_up, training = model(), model()
    train(*warm_up, steps=2)
    train(*training, steps=OTHERS + 5)
    assert watched.numbers == list(range(2 + 5))


def test_behind_one_that_is_gone_the_next_one_counts_at_once(watched: Watched) -> None:
    """Whatever its id is: it may be that of the one that is gone."""
    train(*model(), steps=2)
    gc.collect()
    train(*model(), steps=3)
    assert watched.numbers == list(range(2 + 3))


def test_a_closure_is_part_of_its_step(watched: Watched) -> None:
    made = torch.nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(made.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = made(torch.ones(2, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    assert watched.numbers == [0, 1, 2]


def test_an_evaluation_before_the_training_begins_no_step_and_one_within_it_is_movement(watched: Watched) -> None:
    made, optimizer = model()
    loader = DataLoader(torch.ones(8, 4))
    list(loader)
    assert watched.monitor.status()["running"] is False
    train(made, optimizer, steps=2)
    marks = watched.monitor.status()["marks"]
    list(loader)
    assert watched.monitor.status()["marks"] > marks + 8
    assert watched.numbers == [0, 1]


def test_a_script_that_marks_its_steps_is_left_alone(watched: Watched) -> None:
    made, optimizer = model()
    for _ in watched.monitor.steps(range(3), start=100):
        train(made, optimizer, steps=2)
    assert watched.numbers == [100, 101, 102]


def test_a_script_that_begins_to_mark_later_is_left_alone_from_then_on(watched: Watched) -> None:
    made, optimizer = model()
    train(made, optimizer, steps=2)
    for _ in watched.monitor.steps(range(3), start=100):
        train(made, optimizer, steps=2)
    train(made, optimizer, steps=2)
    assert watched.numbers == [0, 1, 100, 101, 102]


def test_another_thread_that_trains_something_else_counts_nothing(watched: Watched) -> None:
    ours = model()
    train(*ours, steps=1)
    other = threading.Thread(target=lambda: train(*model(), steps=4))
    other.start()
    other.join()
    train(*ours, steps=2)
    assert watched.numbers == [0, 1, 2]


def test_exceptions_of_the_script_pass_through(watched: Watched) -> None:
    made, optimizer = model()
    with pytest.raises(RuntimeError, match="element 0 of tensors"):
        torch.ones(1).backward()
    train(made, optimizer, steps=2)
    assert watched.numbers == [0, 1]


def test_a_loader_ends_as_ever(watched: Watched) -> None:
    train(*model(), steps=1)
    assert [len(batch) for batch in DataLoader(torch.ones(5, 4), batch_size=2)] == [2, 2, 1]


def test_a_torch_with_other_parts_runs_unwatched(watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delattr(torch_optimizer, "register_optimizer_step_pre_hook")
    steps = OptimizerSteps(watched.monitor)
    steps.install()
    assert "steps are not counted" in caplog.text


@pytest.mark.parametrize("environment", [{}, {"EAGLE_EYE_STEPS_FROM": ""}, {"EAGLE_EYE_STEPS_FROM": "marks"}])
def test_nothing_is_put_around_torch_where_nobody_asked(watched: Watched, environment: dict[str, str]) -> None:
    before = torch.autograd.backward
    optimizer_steps.begin(watched.monitor, environment)
    assert torch.autograd.backward is before


def test_a_module_that_is_imported_later_is_watched_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "later_torch.py").write_text("value = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[ModuleType] = []
    finder = optimizer_steps._AfterImport("later_torch", lambda: seen.append(sys.modules["later_torch"]))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    import later_torch

    assert seen == [later_torch]
    assert later_torch.value == 3
    assert finder not in sys.meta_path
    assert type(later_torch.__spec__.loader).__name__ == "SourceFileLoader"
