import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eagle_eye.errors import ConfigError
from eagle_eye.training import checkpoint
from eagle_eye.training.elastic.train_state.train_state import TrainState

Make = Callable[[list[Tensor]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda these: torch.optim.AdamW(these, lr=0.1),
    "adamw foreach": lambda these: torch.optim.AdamW(these, lr=0.1, foreach=True),
    "adamw fused": lambda these: torch.optim.AdamW(these, lr=0.1, fused=True),
    "adamw amsgrad": lambda these: torch.optim.AdamW(these, lr=0.1, amsgrad=True),
    "adamw, its rate a tensor": lambda these: torch.optim.AdamW(these, lr=torch.tensor(0.1), foreach=False),
    "sgd": lambda these: torch.optim.SGD(these, lr=0.1),
    "sgd momentum": lambda these: torch.optim.SGD(these, lr=0.1, momentum=0.9),
    "adafactor": lambda these: torch.optim.Adafactor(these, lr=0.1),
    "lbfgs": lambda these: torch.optim.LBFGS(these, lr=0.1, history_size=3),
    "two groups": lambda these: torch.optim.AdamW([{"params": these[:1], "lr": 0.3}, {"params": these[1:]}], lr=0.1),
}


class Worker:
    """A small model and all that trains it."""

    def __init__(self, make: Make = OPTIMIZERS["adamw"], seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.layers = [nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5)), nn.Linear(5, 2)]
        self.parameters = [each for layer in self.layers for each in layer.parameters()]
        self.optimizer = make(self.parameters)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [2, 4])
        self.train_state = TrainState(self.layers, self.optimizer, scheduler=self.scheduler)

    def train(self, steps: int = 1, seed: int = 0) -> "Worker":
        for step in range(steps):
            self.optimizer.step(lambda step=step: self.loss(step + seed))
            self.scheduler.step()
            self.train_state.step += 1
        return self

    def loss(self, seed: int) -> Tensor:
        self.optimizer.zero_grad()
        stream = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed))
        for layer in self.layers:
            stream = layer(stream)
        loss = stream.square().mean()
        loss.backward()
        return loss


def hand_over(sender: TrainState, receiver: TrainState) -> None:
    """What a transfer does, without the way between them."""
    for layer in sender.layers:
        schema = json.loads(json.dumps(sender.schema(layer.index)))
        for ours, theirs in zip(receiver.allocate(layer.index, schema).entries, layer.entries, strict=True):
            ours.tensor.detach().copy_(theirs.tensor)
    receiver.load_global_state(json.loads(json.dumps(sender.global_state())))


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_fresh_worker_that_took_over_the_state_trains_on_as_the_giver_does(make: Make) -> None:
    sender, receiver = Worker(make).train(3), Worker(make, seed=1)
    hand_over(sender.train_state, receiver.train_state)
    assert receiver.train_state.digest() == sender.train_state.digest()
    assert receiver.train_state.bytes_per_layer == sender.train_state.bytes_per_layer
    sender.train(3, seed=100), receiver.train(3, seed=100)
    assert receiver.train_state.digest() == sender.train_state.digest()
    assert json.dumps(receiver.train_state.global_state()) == json.dumps(sender.train_state.global_state())
    assert receiver.train_state.step == 6


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_room_that_was_made_before_is_what_the_state_comes_into(make: Make) -> None:
    sender, receiver = Worker(make).train(2), Worker(make, seed=1)
    fresh = receiver.train_state.digest()
    room = {each.data_ptr() for each in receiver.train_state.preallocate()}
    assert (receiver.train_state.digest(), len(receiver.optimizer.state)) == (fresh, 0)  # it is no state yet
    hand_over(sender.train_state, receiver.train_state)
    taken = {each.data_ptr() for state in receiver.optimizer.state.values() for each in state.values() if isinstance(each, Tensor)}
    assert room <= taken
    sender.train(2, seed=50), receiver.train(2, seed=50)
    assert receiver.train_state.digest() == sender.train_state.digest()


def test_memory_is_preallocated_for_all_moments_and_freed_where_it_is_not_needed() -> None:
    worker = Worker()
    room = worker.train_state.preallocate()
    assert sorted(each.numel() for each in room) == sorted(2 * [each.numel() for each in worker.parameters])
    worker.train_state.drop_preallocated()
    worker.train(2)
    assert worker.train_state.digest() == Worker().train(2).train_state.digest()


def test_nothing_is_preallocated_for_an_unknown_optimizer() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            steps.append(self)  # it may do anything

    steps: list[Any] = []
    assert (Worker(lambda these: Own(these, lr=0.1)).train_state.preallocate(), steps) == ([], [])


def test_a_worker_that_is_behind_keeps_its_tensors_and_forgets_state_that_the_sender_has_not() -> None:
    sender, receiver = Worker(), Worker(seed=1).train()
    hand_over(sender.train_state, receiver.train_state)
    assert not any(receiver.optimizer.state.values())
    kept = Worker(seed=2).train()
    before = [entry.tensor for layer in kept.train_state.layers for entry in layer.entries]
    hand_over(sender.train().train_state, kept.train_state)
    assert [entry.tensor.data_ptr() for layer in kept.train_state.layers for entry in layer.entries] == [each.data_ptr() for each in before]


def test_a_layer_is_its_parameters_their_optimizer_state_by_name_and_its_buffers() -> None:
    layer = Worker().train().train_state.layer(1)
    assert [entry.name for entry in layer.entries] == [
        "0.weight", "0.bias", "1.weight", "1.bias",
        "0.weight:exp_avg", "0.weight:exp_avg_sq", "0.weight:step", "0.bias:exp_avg", "0.bias:exp_avg_sq", "0.bias:step",
        "1.weight:exp_avg", "1.weight:exp_avg_sq", "1.weight:step", "1.bias:exp_avg", "1.bias:exp_avg_sq", "1.bias:step",
        "1.running_mean", "1.running_var", "1.num_batches_tracked",
    ]  # fmt: skip
    assert layer.bytes == 4 * (3 * (20 + 5 + 5 + 5) + 4 + 2 * 5) + 8


def test_a_tied_parameter_counts_once_with_its_first_layer() -> None:
    byte, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
    head.weight = byte.weight
    train_state = TrainState([byte, head], torch.optim.SGD([byte.weight], lr=0.1))
    assert train_state.bytes_per_layer == [8 * 4 * 4, 0]


def test_a_buffer_that_the_module_does_not_keep_is_no_state() -> None:
    layer = nn.Linear(2, 2)
    layer.register_buffer("mask", torch.ones(100), persistent=False)
    assert TrainState([layer], torch.optim.SGD(layer.parameters(), lr=0.1)).bytes_per_layer == [4 * (4 + 2)]


def mixed(seed: int) -> tuple[TrainState, Callable[[], None]]:
    torch.manual_seed(seed)
    layer = nn.Linear(4, 4).to(torch.bfloat16)
    masters = {each: each.detach().float() for each in layer.parameters()}
    optimizer = torch.optim.AdamW(masters.values(), lr=0.1)

    def step() -> None:
        for master in masters.values():
            master.grad = torch.ones_like(master)
        optimizer.step()
        for each, master in masters.items():
            each.data.copy_(master)

    return TrainState([layer], optimizer, masters=masters), step


def test_masters_of_a_lower_precision_and_their_optimizer_state_go_along() -> None:
    (sender, step), (receiver, _) = mixed(0), mixed(1)
    step()
    hand_over(sender, receiver)
    assert receiver.digest() == sender.digest()
    assert sender.bytes_per_layer == [20 * (2 + 4 + 8) + 2 * 4]


def test_the_digest_is_that_of_the_plain_bytes_and_sees_a_single_bit() -> None:
    worker = Worker(OPTIMIZERS["sgd momentum"]).train()
    worker.layers[1][1] = nn.Identity()  # without buffers, whose place is our own affair
    train_state = TrainState(worker.layers, torch.optim.SGD([each for layer in worker.layers for each in layer.parameters()], lr=0.1))
    plain = b"".join(bytes(each.detach().flatten().view(torch.uint8).tolist()) for layer in worker.layers for each in layer.parameters())
    assert train_state.digest() == hashlib.sha256(plain).hexdigest()
    worker.layers[2].weight.data.view(torch.int32)[0, 0] ^= 1
    assert train_state.digest() != hashlib.sha256(plain).hexdigest()


def test_tensors_that_do_not_lie_in_order_are_read_in_order() -> None:
    one, other = nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 3)
    other.load_state_dict(one.state_dict())
    other.to(memory_format=torch.channels_last)
    digests = {TrainState([each], torch.optim.SGD(each.parameters(), lr=0.1)).digest() for each in (one, other)}
    assert len(digests) == 1


def test_a_checkpoint_holds_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("EAGLE_EYE_RESUME_STEP", "EAGLE_EYE_SOCKET", "EAGLE_EYE_EPOCH"):
        monkeypatch.delenv(name, raising=False)
    sender, receiver = Worker().train(2), Worker(seed=1)
    checkpoint.save(sender.train_state.state(), sender.train_state.step, tmp_path)
    found = checkpoint.load(tmp_path)
    assert found is not None
    assert receiver.train_state.load(found[0]) == sum(sender.train_state.bytes_per_layer)
    assert (receiver.train_state.digest(), receiver.train_state.step) == (sender.train_state.digest(), 2)


def test_another_model_is_named() -> None:
    small, large = nn.Linear(2, 2), nn.Linear(2, 3)
    sender, receiver = (TrainState([each], torch.optim.SGD(each.parameters(), lr=0.1)) for each in (small, large))
    with pytest.raises(ConfigError, match=r"layer 0 .*here weight float32\[3, 2\].*there weight float32\[2, 2\].*same script"):
        receiver.allocate(0, sender.schema(0))


def test_a_parameter_that_no_layer_has_is_refused() -> None:
    layer, temperature = nn.Linear(2, 2), nn.Parameter(torch.ones(7))
    with pytest.raises(ConfigError, match=r"shape \(7,\) that no layer has: give the module"):
        TrainState([layer], torch.optim.SGD([*layer.parameters(), temperature], lr=0.1))


def test_a_state_that_json_cannot_hold_is_refused_by_name() -> None:
    worker = Worker()
    odd: Any = object()
    worker.optimizer.state[worker.parameters[0]] = {"odd": odd}
    with pytest.raises(ConfigError, match=r"optimizer's state of weight cannot be transferred.*object"):
        worker.train_state.schema(0)
