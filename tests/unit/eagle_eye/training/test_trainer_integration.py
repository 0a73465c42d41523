"""What stands between a framework's trainer and the elastic worker: data by number, layers of a model, what is refused."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from eagle_eye.errors import ConfigError
from eagle_eye.training.integrations.sample_order import PlaceholderLoader, SampleOrder
from eagle_eye.training.integrations.trainer_model import SchedulerView, TrainerModel, layers_of
from eagle_eye.training.integrations.transformers import ElasticTraining


def draw(samples: int = 25, seed: int = 1) -> SampleOrder:
    return SampleOrder(list(range(samples)), list, size=2, micro_batches=4, seed=seed)


def test_an_epoch_has_each_sample_once_and_the_next_another_order() -> None:
    drawn = [[each for step in range(3 * epoch, 3 * epoch + 3) for number in range(4) for each in draw().batch(step, number)] for epoch in range(2)]
    for epoch in drawn:
        assert len(set(epoch)) == 24, "the 25th does not fill a step"
    assert drawn[0] != drawn[1]


def test_whoever_asks_in_whatever_order_gets_the_same_samples() -> None:
    one, other = draw(), draw()
    assert [one.batch(step, 3) for step in (5, 0, 4)] == [other.batch(step, 3) for step in (4, 0, 5)][::-1]
    assert draw(seed=2).batch(0, 0) != one.batch(0, 0)


def test_too_few_samples_for_a_step_are_refused() -> None:
    with pytest.raises(ConfigError, match="7 samples are less than a step: 4 micro-batches of 2"):
        draw(7)


class Model(nn.Module):
    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_a_model_falls_apart_into_its_blocks_with_nothing_left_out() -> None:
    embedding = nn.Embedding(8, 4)
    body = Model(embedding=embedding, blocks=nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), norm=nn.LayerNorm(4))
    head = nn.Linear(4, 8, bias=False)
    head.weight = embedding.weight  # tied
    model = Model(body=body, head=head)
    layers = list(layers_of(model))
    assert layers == [embedding, body.blocks[0], body.blocks[1], body.norm, head]
    assert {id(each) for layer in layers for each in layer.parameters()} == {id(each) for each in model.parameters()}
    assert list(layers_of(nn.Sequential(nn.Linear(1, 1)))) != []


def test_a_module_with_weights_of_its_own_stays_whole() -> None:
    body = Model(blocks=nn.ModuleList([nn.Linear(4, 4)]))
    body.scale = nn.Parameter(torch.ones(1))
    assert list(layers_of(body)) == [body]


def test_the_update_is_made_once_though_the_trainers_loop_steps_again() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    shown = SchedulerView(scheduler)
    trained = TrainerModel(model, lambda inputs: 0.0, draw(), optimizer=optimizer, scheduler=shown.scheduler, clip=1.0, seed=0)
    assert trained.apply(torch.tensor([3.0, 4.0])) == pytest.approx(5.0)
    after, rate = model.weight.detach().clone(), shown.get_last_lr()
    optimizer.step()
    shown.step()
    assert torch.equal(model.weight, after)
    assert shown.get_last_lr() == rate == [0.05]


def test_a_micro_batchs_dropout_is_its_own_and_not_the_workers() -> None:
    model = nn.Linear(2, 1)
    seen: list[float] = []
    trained = TrainerModel(
        model, lambda inputs: seen.append(torch.rand(()).item()) or 0.5, draw(), optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        scheduler=None, clip=None, seed=0,
    )  # fmt: skip
    assert trained.run(3, 1) == (0.5, 0)
    trained.run(3, 2)
    trained.run(3, 1)
    assert seen[0] == seen[2] != seen[1]


class Arguments(SimpleNamespace):
    def __init__(self, **changes: Any) -> None:
        super().__init__(**{"world_size": 1, "n_gpu": 1, "fp16": False, "deepspeed": None, "fsdp": [], "save_strategy": "no"} | changes)


class Trainer:
    """As much of transformers' as the refusals need."""

    def __init__(self, args: Arguments) -> None:
        self.args = args


class ElasticTrainer(ElasticTraining, Trainer):
    pass


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"world_size": 2}, "training_arguments"), ({"n_gpu": 4}, "several GPUs"), ({"fp16": True}, "bf16=True"), ({"fsdp": ["full_shard"]}, "FSDP"),
        ({"save_strategy": "steps"}, "save_every"),
    ],
)  # fmt: skip
def test_what_would_go_past_the_elastic_worker_is_refused_with_the_remedy(changes: dict[str, Any], why: str) -> None:
    ElasticTrainer(Arguments())
    with pytest.raises(ConfigError, match=why):
        ElasticTrainer(Arguments(**changes))


def test_a_checkpoint_need_not_be_named() -> None:
    with pytest.raises(ConfigError, match="newest checkpoint by itself"):
        ElasticTrainer(Arguments()).train(resume_from_checkpoint="out/checkpoint-5")


def test_the_loop_counts_micro_batches_and_gets_no_data() -> None:
    ticks = PlaceholderLoader(range(25), 12)
    assert (len(ticks), list(ticks), len(ticks.dataset)) == (12, [{}] * 12, 25)
