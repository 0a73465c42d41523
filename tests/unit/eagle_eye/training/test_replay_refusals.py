"""What a step that is run again must not do to the training: what could not be put back is refused before it is done, what can be is put back, and what only looks like it is let through."""

import contextlib
import copy
import os
import random
import signal
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.utils.checkpoint import checkpoint

from eagle_eye.training import messages, step_replay
from eagle_eye.training.probe import Monitor
from eagle_eye.training.replay_state import refusal
from eagle_eye.training.ring_buffer import RingReader
from eagle_eye.training.step_replay import StepReplay
from fakes.cuda import Clock

Told = list[tuple[str, dict[str, Any]]]
BATCH = torch.arange(12.0).reshape(3, 4) / 12


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What the launcher is told. Replays are made often, and there is memory for them."""
    said: Told = []
    monkeypatch.setattr(messages, "tell_launcher", lambda kind, **fields: said.append((kind, fields)))
    monkeypatch.setattr(step_replay, "LEAST", 1)
    monkeypatch.setattr(step_replay, "free_memory", lambda: 1 << 40)
    return said


@pytest.fixture
def alone() -> Iterator[None]:
    """A group of one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def unseen(value: Any) -> Callable[[], Any]:
    """Reached by the model, and not by whoever walks through what it holds."""
    return lambda: value


class Case(nn.Module):
    """A model whose forward pass does something beside; `watched` is what the training would miss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)
        self.kept = torch.zeros(4)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.1)
        self.generator, self.own, self.array = torch.Generator(), random.Random(1), np.random.default_rng(1)
        self.recent, self.by_name, self.ordered = deque[int](maxlen=3), defaultdict[str, list[int]](list), OrderedDict(a=1, b=2)
        self.nested: dict[str, Any] = {"list": [0], "tuple": ([0],)}
        self.beside, self.elsewhere = unseen(nn.BatchNorm1d(4)), unseen(torch.Generator())

    def watched(self) -> list[Any]:
        kept = [*self.parameters(), self.kept, *self.beside().buffers(), self.generator.get_state(), self.elsewhere().get_state(), torch.get_rng_state()]
        python = [self.own.getstate(), self.array.bit_generator.state, list(self.recent), dict(self.by_name), list(self.ordered.items()), self.nested]
        return [*(each.detach().clone() for each in kept), *(each.requires_grad for each in self.parameters()), *copy.deepcopy(python)]

    def plain(self) -> Tensor:
        return self.layer(BATCH).square().sum()


def same(one: list[Any], other: list[Any]) -> bool:
    return all(torch.equal(a, b) if isinstance(a, Tensor) else a == b for a, b in zip(one, other, strict=True))


def moving_data(case: Case) -> Tensor:
    """As a momentum encoder."""
    case.frozen.weight.data = case.frozen.weight.data * 0.9 + case.layer.weight.data * 0.1
    return (case.layer(BATCH) * case.frozen(BATCH)).sum()


@torch.no_grad()
def _average(case: Case) -> None:
    case.frozen.weight.mul_(0.9).add_(case.layer.weight, alpha=0.1)


def moving_average(case: Case) -> Tensor:
    _average(case)
    return (case.layer(BATCH) * case.frozen(BATCH)).sum()


def plain_attribute(case: Case) -> Tensor:
    found: Tensor = case.layer(BATCH)
    case.kept.mul_(0.9).add_(found.detach().mean(0))
    return (found - case.kept).square().sum()


def written_out(case: Case) -> Tensor:
    torch.add(BATCH[0], 1, out=case.kept)
    return case.plain()


def norm_beside_the_model(case: Case) -> Tensor:
    """The schema of its operator does not say that it writes."""
    norm = case.beside()
    return nn.functional.batch_norm(case.layer(BATCH), norm.running_mean, norm.running_var, training=True).square().sum()


def own_generator(case: Case) -> Tensor:
    return case.plain() + torch.rand((), generator=case.elsewhere())


def optimizer_step(case: Case) -> Tensor:
    case.plain().backward()
    case.optimizer.step()
    return case.plain()


def over_the_refusal(case: Case) -> Tensor:
    with contextlib.suppress(RuntimeError):
        _average(case)
    return case.plain()


@pytest.mark.parametrize(
    ("loss_of", "why"),
    [
        (moving_data, "other memory"),
        (moving_average, "that was there before"),
        (plain_attribute, "that was there before"),
        (written_out, "that was there before"),
        (norm_beside_the_model, "native_batch_norm"),
        (own_generator, "random numbers"),
        (optimizer_step, "that was there before"),
        (over_the_refusal, "that was there before"),
    ],
)
def test_a_step_that_writes_elsewhere_ends_the_replays_and_training_has_what_it_had(told: Told, loss_of: Callable[[Case], Tensor], why: str) -> None:
    case = Case()
    before = case.watched()
    replay = replayed(case, lambda: loss_of(case), 3)
    assert replay.over
    assert why in told[0][1]["reason"]
    assert len(told) == 1
    assert same(before, case.watched())


def replayed(module: nn.Module, loss_of: Callable[[], Any], count: int) -> StepReplay:
    replay = StepReplay(module, loss_of, Clock())
    for number in range(count):
        if not replay.over:
            replay.run(number)
    replay.join()
    return replay


def memory_of_python(case: Case) -> Tensor:
    case.recent.append(len(case.recent))
    case.by_name["x"].append(1)
    case.by_name["y"] = []
    case.ordered.move_to_end("a")
    case.nested["list"].append(1)
    case.nested["tuple"][0].append(1)
    case.layer.weight.requires_grad_(True)
    case.frozen.weight.requires_grad_(len(case.recent) > 0)
    return case.plain() + torch.rand((), generator=case.generator) + case.own.random() + case.array.random()


def own_memory(_: Case) -> Tensor:
    """Writes, but to what it has made."""
    given = BATCH.clone()
    given[0] = 1.0
    given.mul_(2).view(-1)[1:].zero_()
    total = torch.tensor(0.0)
    total.add_(given.sum())
    torch.add(given, 1, out=given)
    return nn.functional.dropout(given.sum() + total, 0.5)


def own_backward(case: Case) -> Tensor:
    case.plain().backward()
    return case.plain()


@pytest.mark.parametrize("loss_of", [memory_of_python, lambda case: case.plain() + own_memory(case), own_backward, lambda case: checkpoint(case.plain, use_reentrant=False)])
def test_twin_what_is_put_back_or_of_the_run_alone_is_let_through(told: Told, loss_of: Callable[[Case], Tensor]) -> None:
    case = Case()
    before = case.watched()
    assert not replayed(case, lambda: loss_of(case), 4).over
    assert told == []
    assert same(before, case.watched())


def test_modules_that_hold_very_much_are_not_copied(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.nested["list"] = list(range(1000))
    monkeypatch.setattr("eagle_eye.training.replay_state.MOST_ENTRIES", 900)
    assert replayed(case, case.plain, 1).over
    assert "too much" in told[0][1]["reason"]


def test_a_collective_of_a_later_replay_is_refused_too(told: Told, alone: None) -> None:
    case, now, sent = Case(), [False], list[bool]()

    def loss_of() -> Tensor:
        if now[0]:
            dist.all_reduce(torch.zeros(1))
            sent.append(True)
        return case.plain()

    replay = replayed(case, loss_of, 2)
    assert not replay.over
    now[0] = True
    replay.run(2)
    replay.join()
    assert (replay.over, sent) == (True, [])
    assert "allreduce" in told[0][1]["reason"]


def test_every_namespace_of_torch_s_communication_is_refused() -> None:
    """Those that are registered here: with the next torch there may be more."""
    from eagle_eye.training.replay_watch import COLLECTIVES

    spaces = {name.split("::")[0] for name in torch._C._dispatch_get_all_op_names()}
    assert {each for each in spaces if any(known in each for known in COLLECTIVES)} >= {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "_dtensor"}


# --- modules that could not be put back ---------------------------------------------------------------------------------


NO_SHARD = pytest.mark.filterwarnings("ignore:.*NO_SHARD")
"""What FSDP makes of a group of one."""


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))


@NO_SHARD
@pytest.mark.parametrize("original", [True, False])
def test_modules_of_fsdp_are_refused_from_outside_and_from_inside(alone: None, original: bool) -> None:
    inner = layers()
    assert refusal(inner) == ""
    outer = FullyShardedDataParallel(inner, use_orig_params=original, device_id=torch.device("cpu"))
    assert "FullyShardedDataParallel" in refusal(outer)
    assert "FSDP" in refusal(inner)


def test_a_model_that_is_sharded_after_it_was_given_is_refused_before_it_is_run(told: Told, alone: None) -> None:
    network, runs = layers(), [0]

    def loss_of() -> Tensor:
        runs[0] += 1
        return network(BATCH).sum()

    replay = StepReplay(network, loss_of, Clock())
    replay.run(0)
    fully_shard(network, mesh=init_device_mesh("cpu", (1,)))
    replay.run(1)
    replay.join()
    assert (runs, replay.over) == ([1], True)
    assert "torch.distributed" in told[0][1]["reason"]


@NO_SHARD
@pytest.mark.parametrize("wrap", [lambda module: FullyShardedDataParallel(module, device_id=torch.device("cpu")), nn.parallel.DistributedDataParallel])
def test_another_module_that_is_called_is_refused_before_its_hooks(told: Told, alone: None, wrap: Callable[[nn.Module], nn.Module]) -> None:
    """As a teacher of FSDP beside the model, or the second network of a pair."""
    network, other = layers(), wrap(layers())
    replay = replayed(network, lambda: network(BATCH).sum() + other(BATCH).sum(), 1)
    assert replay.over
    assert "calls" in told[0][1]["reason"]
    for _ in range(2):
        other(BATCH).sum().backward()  # raises where a pass forward was left open
    assert all(each.grad is None or torch.isfinite(each.grad).all() for each in other.parameters())


def test_twin_a_plain_module_beside_the_model_is_called() -> None:
    network, other = layers(), layers()
    assert not replayed(network, lambda: network(BATCH).sum() + other(BATCH).sum(), 3).over


def test_data_parallel_with_mixed_precision_is_refused(alone: None) -> None:
    parallel = nn.parallel.DistributedDataParallel(layers())
    assert refusal(parallel) == ""
    parallel.mixed_precision = object()  # it asks for a GPU
    assert "precision" in refusal(parallel)


def test_twin_distributed_data_parallel_within_a_module_is_run_again(alone: None) -> None:
    network = nn.Sequential(nn.parallel.DistributedDataParallel(layers()), nn.Linear(1, 1))
    assert not replayed(network, lambda: network(BATCH).sum(), 3).over


# --- memory, random numbers, signals ------------------------------------------------------------------------------------


def test_without_room_on_the_host_for_each_of_its_workers_it_is_left_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    gradients = sum(each.numel() * 4 for each in case.parameters())
    monkeypatch.setattr(step_replay, "_beyond_now", lambda: 1000)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    needed = 8 * (gradients + 1000 + step_replay.SPARE_BYTES)
    monkeypatch.setattr(step_replay, "free_memory", lambda: needed - 1)
    assert not replayed(case, lambda: pytest.fail("it was run"), 2).over
    monkeypatch.setattr(step_replay, "free_memory", lambda: needed)
    with pytest.raises(pytest.fail.Exception, match="it was run"):
        replayed(case, lambda: pytest.fail("it was run"), 1)


def test_random_numbers_that_another_thread_draws_meanwhile_end_it(told: Told) -> None:
    case, runs = Case(), [0]

    def loss_of() -> Tensor:
        runs[0] += 1
        if runs[0] == 3:
            thread = threading.Thread(target=random.random)
            thread.start()
            thread.join()
        return case.plain()

    assert replayed(case, loss_of, 3).over
    assert "another thread" in told[0][1]["reason"]


@pytest.fixture
def handler() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Sets one for SIGUSR1."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda called: void(signal.signal(signal.SIGUSR1, lambda *_: called()))
    signal.signal(signal.SIGUSR1, before)


def void(_: object) -> None:
    return None


def test_a_handler_of_the_script_sees_no_state_of_a_replay(handler: Callable[[Callable[[], None]], None], told: Told) -> None:
    model, seen = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), list[Any]()
    model(BATCH).sum().backward()
    state = [*(each.clone() for each in model.state_dict().values()), *(each.grad for each in model.parameters())]

    def loss_of() -> Tensor:
        loss = model(BATCH).square().sum()
        os.kill(os.getpid(), signal.SIGUSR1)
        return loss

    handler(lambda: seen.extend([*(each.clone() for each in model.state_dict().values()), *(each.grad for each in model.parameters())]))
    assert not replayed(model, loss_of, 1).over
    assert same(seen, state)
    assert told == []


def test_what_a_handler_raises_is_the_script_s(handler: Callable[[Callable[[], None]], None], watched: tuple[Monitor, RingReader], told: Told) -> None:
    """As that of torch's loader, where one of its processes has died."""
    monitor, _ = watched
    model = layers()

    def died() -> None:
        raise RuntimeError("a worker of the loader died")

    def loss_of() -> Tensor:
        os.kill(os.getpid(), signal.SIGUSR1)
        return model(BATCH).sum()

    handler(died)
    monitor.replicas(model, replay=loss_of)
    monitor.begin(0)
    with pytest.raises(RuntimeError, match="loader died"):
        monitor.end()
    assert (monitor.status()["faults"], told) == (0, [])
    monitor.begin(1)
    monitor.mark("forward")
    assert monitor.status()["phase"] == "forward"


def test_in_another_thread_than_the_handlers_none_is_made(handler: Callable[[Callable[[], None]], None], told: Told) -> None:
    handler(lambda: None)
    case, made = Case(), list[StepReplay]()
    thread = threading.Thread(target=lambda: made.append(replayed(case, lambda: pytest.fail("it was run"), 1)))
    thread.start()
    thread.join()
    assert made[0].over
    assert "another thread" in told[0][1]["reason"]


def test_an_exit_of_the_function_ends_the_replays_and_not_the_script(told: Told) -> None:
    def loss_of() -> Tensor:
        raise SystemExit(3)

    assert replayed(Case(), loss_of, 1).over
    assert told[0][1]["reason"] == "SystemExit: 3"


def test_an_interrupt_goes_to_the_script_with_the_state_that_was() -> None:
    case = Case()
    case.plain().backward()
    before, gradients = case.watched(), [each.grad for each in case.parameters()]

    def loss_of() -> Tensor:
        memory_of_python(case)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it was not interrupted")

    replay = StepReplay(case, loss_of, Clock())
    here = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have another one
    try:
        with pytest.raises(KeyboardInterrupt):
            replay.run(0)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, here)
    assert same(before, case.watched())
    assert all(one is other.grad for one, other in zip(gradients, case.parameters(), strict=True))
