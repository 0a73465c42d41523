"""What a user gives to be trained, and the error when it cannot be."""

import pytest
import torch
from torch import nn

from eagle_eye.errors import ConfigError
from eagle_eye.training.elastic.model import TrainedModel, seed_of
from eagle_eye.training.elastic.reduce.gradient_vector import GradientVector, MicroBatchStats
from fakes.reference_training import RECIPES, Recipe


def trained(layers: object, **options: object) -> TrainedModel:
    given = {
        "loss": lambda output, target: (output - target).pow(2).mean(),
        "batch": lambda step, micro_batch: (torch.full((2, 4), float(step)), torch.full((2, 4), float(micro_batch))),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    }
    return TrainedModel(layers, **{**given, **options})


def test_one_module_a_list_and_a_sequential_are_the_same_training():
    def result(layers: object) -> torch.Tensor:
        return torch.tensor([trained(layers).run(0, 1)[0]])

    made = [nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)]
    whole = nn.Sequential(*made)

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = whole

        def forward(self, stream: torch.Tensor) -> torch.Tensor:
            return self.inner(stream)

    assert result(made) == result(whole) == result(Wrapped())
    assert len(trained(whole).layers) == 3


def test_weights_that_two_layers_share_are_trained_once():
    layers = Recipe(tied=True).layers()
    replica = TrainedModel(layers, **RECIPES["tied"].options())
    assert len(replica.parameters) == sum(1 for _ in nn.ModuleList(layers).parameters())
    assert sum(each is layers[2].weight for each in replica.parameters) == 1


def test_frozen_parameters_are_no_part_of_the_gradient():
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    layers[0].requires_grad_(False)
    assert trained(layers).parameters == list(layers[1].parameters())


def test_a_bf16_model_keeps_in_its_masters_what_the_parameters_round_away():
    layer = nn.Linear(4, 4)
    weight = layer.weight.detach().clone()
    replica = trained([layer], precision="bf16")
    assert layer.weight.dtype == torch.bfloat16
    assert replica.masters[layer.weight].equal(weight)
    small = torch.full((20,), 1e-3)
    for _ in range(50):
        replica.apply(small.clone())
    assert replica.masters[layer.weight].allclose(weight - 50 * 1e-4)
    assert layer.weight.equal(replica.masters[layer.weight].bfloat16())


def test_the_gradient_is_clipped_by_its_norm_over_all_layers():
    replica = trained([nn.Linear(4, 4)], clip=1.0)
    before = nn.utils.parameters_to_vector(replica.parameters).detach().clone()
    assert replica.apply(torch.full((20,), 3.0)) == pytest.approx(3.0 * 20**0.5)
    after = nn.utils.parameters_to_vector(replica.parameters).detach()
    assert (before - after).norm() == pytest.approx(0.1, rel=1e-4)


def test_what_a_micro_batch_draws_depends_on_its_step_and_number_alone():
    assert len({seed_of(seed, step, micro_batch) for seed in range(4) for step in range(40) for micro_batch in range(40)}) == 6400
    replica = trained([nn.Linear(4, 4), nn.Dropout(0.5)])
    first = replica.run(3, 5)
    torch.rand(7)
    replica.run(3, 6)
    assert replica.run(3, 5) == first
    assert trained([*replica.layers], seed=1).run(3, 5) != first


def test_tokens_are_the_targets_elements_unless_the_user_counts():
    assert trained([nn.Linear(4, 4)]).run(0, 0)[1] == 8
    assert trained([nn.Linear(4, 4)], tokens=lambda given, target: len(given)).run(0, 0)[1] == 2


def test_inputs_in_dicts_and_tuples_are_brought_to_the_model():
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, given: dict[str, tuple[torch.Tensor, int]]) -> torch.Tensor:
            tensor, factor = given["pair"]
            return self.linear(tensor) * factor

    replica = trained(Sum(), precision="bf16", batch=lambda *_: ({"pair": (torch.ones(2, 4), 2)}, torch.zeros(2, 4)))
    assert replica.run(0, 0)[0] > 0


def test_an_optimizer_sees_no_gradient_after_its_step():
    replica = trained([nn.Linear(4, 4)])
    replica.apply(torch.ones(20))
    assert [parameter.grad for parameter in replica.parameters] == [None, None]


REFUSED = {
    "nothing": ([], {}, "`layers` holds nothing"),
    "no module": ([nn.Linear(4, 4), "gelu"], {}, "`layers` holds str"),
    "nothing to train": ([nn.GELU()], {}, "nothing can be trained"),
    "running statistics": ([nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))], {}, "layer 0: 1 is a BatchNorm1d with running statistics"),
    "precision": ([nn.Linear(4, 4)], {"precision": "fp8"}, "precision='fp8' is none of fp32, bf16"),
    "half": ([nn.Linear(4, 4).half()], {}, "has parameters in torch.float16"),
    "bf16 without masters": ([nn.Linear(4, 4).bfloat16()], {}, "has parameters in torch.bfloat16"),
    "clip": ([nn.Linear(4, 4)], {"clip": 0.0}, "clip=0.0: give the norm to clip"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_with_a_reason(name):
    layers, options, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        trained(layers, **options)


def test_frozen_running_statistics_are_fine():
    assert trained([nn.Linear(4, 4), nn.BatchNorm1d(4).eval()]).run(0, 0)[1] == 8


@pytest.mark.parametrize(("loss", "said"), [(lambda output, target: output - target, "a tensor of shape"), (lambda *_: 1.0, "a float")])
def test_a_loss_that_is_no_number_is_reported(loss, said):
    with pytest.raises(ConfigError, match=f"gave {said}.*mean loss"):
        trained([nn.Linear(4, 4)], loss=loss).run(0, 0)


@pytest.mark.parametrize(("parameters", "size"), [(1, 10), (3, 1000), (7, 777)])
def test_segments_cover_the_vector_once_and_depend_on_the_model_alone(parameters, size):
    vector = GradientVector([torch.zeros(size) for _ in range(parameters)], 16, 2048)
    assert vector.segments[0].start == 0
    assert vector.segments[-1].stop == vector.size == vector.head + parameters * size
    assert all(one.stop == other.start for one, other in zip(vector.segments, vector.segments[1:], strict=False))
    assert max(segment.stop - segment.start for segment in vector.segments) * 4 <= 2048
    assert [view.numel() for view in vector.views(vector.new())] == [size] * parameters


def test_the_mean_loss_is_rounded_once_and_a_loss_that_is_no_number_stays_one():
    assert MicroBatchStats((0.1, 0.2, 0.3), (1, 1, 1)).loss == 0.6 / 3
    assert MicroBatchStats((1e8, 1.0, -1e8), (1, 1, 1)).loss == 1 / 3
    assert str(MicroBatchStats((1.0, float("nan")), (1, 1)).loss) == "nan"
    assert MicroBatchStats((1.0, float("inf")), (1, 1)).loss == float("inf")
