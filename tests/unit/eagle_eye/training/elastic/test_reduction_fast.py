"""The fast reduction: overlaps the backward, and a failure takes nothing of what is finished."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from eagle_eye.errors import Broken, ConfigError
from eagle_eye.training.elastic.model import TrainedModel
from eagle_eye.training.elastic.reduce.accumulator import Accumulator
from eagle_eye.training.elastic.reduce.fast import FastReduction
from eagle_eye.training.elastic.reduce.reduction import make_reduction
from eagle_eye.training.elastic.reduce.summation_tree import slices
from fakes.group_threads import Killed, ThreadGroup, group_of, together
from fakes.reference_training import RECIPES, Recipe, Sequential

TINY = 512
"""Bytes of a segment: the small models have several."""
TOTAL = 6


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Worker:
    """One replica."""

    def __init__(self, recipe: Recipe, layers: list[nn.Module] | None = None) -> None:
        self.trained = TrainedModel(layers or recipe.layers(), **recipe.options())
        self.gradients = Accumulator(self.trained.parameters, recipe.micro_batches, TINY)
        self.reduced: list[torch.Tensor | None] = [None] * len(self.gradients.segments)
        self.reduction = FastReduction()

    def compute(self, step: int, micro_batches: Sequence[int]) -> None:
        for micro_batch in micro_batches:
            self.gradients.begin(micro_batch)
            self.gradients.finish(micro_batch, *self.trained.run(step, micro_batch))

    def compute_and_overlap(self, step: int, micro_batches: Sequence[int], group: Any) -> None:
        """As the worker does: its last micro-batch under `overlap`."""
        self.compute(step, micro_batches[:-1])
        with self.reduction.overlap(group, self.gradients):
            self.compute(step, micro_batches[-1:])

    def reduce(self, group: Any, current: Sequence[Sequence[int]]) -> None:
        self.reduction.reduce(group, self.gradients, current, self.reduced)

    def apply(self) -> float:
        mean, stats = self.gradients.mean_gradient(self.reduced)
        self.trained.apply(mean)
        self.gradients.clear()
        return stats.loss

    @property
    def weights(self) -> torch.Tensor:
        return nn.utils.parameters_to_vector(self.trained.updated_parameters).detach()


def even(total: int, world: int) -> list[list[int]]:
    return [list(range(total))[part] for part in slices(total, world)]


def step_of(workers: Sequence[Worker], step: int, current: Sequence[Sequence[int]], groups: Sequence[ThreadGroup] | None = None) -> list[Any]:
    groups = groups or group_of(len(workers))
    for worker, group, share in zip(workers, groups, current, strict=True):
        rest = [each for each in share if each not in worker.gradients.done]
        if rest:
            worker.compute_and_overlap(step, rest, group)
    return together([partial(worker.reduce, group, current) for worker, group in zip(workers, groups, strict=True)])


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("world", [1, 3])
def test_it_equals_sequential_training_within_float_tolerance(name, world):
    recipe = RECIPES[name]
    plain = Sequential(recipe)
    workers = [Worker(recipe) for _ in range(world)]
    for step in range(2):
        assert step_of(workers, step, even(recipe.micro_batches, world)) == [None] * world
        assert [worker.apply() for worker in workers] == [pytest.approx(plain.step(step), rel=1e-2 if recipe.precision == "bf16" else 1e-5)] * world
    expected = nn.utils.parameters_to_vector(plain.updated).detach()
    assert all(torch.equal(worker.weights, workers[0].weights) for worker in workers), "replicas stay equal bit by bit"
    difference = (workers[0].weights - expected).norm() / expected.norm()
    assert difference < (2e-2 if recipe.precision == "bf16" else 1e-5)


def test_all_but_the_first_segment_are_on_their_way_before_the_backward_ends():
    worker = Worker(RECIPES["plain"])
    group = group_of(1)[0]
    assert len(worker.gradients.segments) == 3
    with worker.reduction.overlap(group, worker.gradients):
        worker.gradients.begin(0)
        loss, tokens = worker.trained.run(0, 0)
        assert group.log == ["all_reduce"] * 2
        worker.gradients.finish(0, loss, tokens)


def test_segments_go_in_one_order_whatever_part_of_the_model_was_used():
    recipe = RECIPES["plain"]  # one parameter takes part in some micro-batches only
    workers = [Worker(recipe) for _ in range(3)]
    groups = group_of(3)
    assert step_of(workers, 0, even(TOTAL, 3), groups) == [None] * 3
    assert [group.log for group in groups] == [["all_reduce"] * 3] * 3
    assert len({worker.weights.sum().item() for worker in workers if worker.apply()}) == 1


@pytest.mark.parametrize("operation", range(3))
@pytest.mark.parametrize("name", ["plain", "bf16"])
def test_a_peer_killed_in_any_all_reduce_costs_its_own_micro_batches_alone(name, operation):
    recipe = RECIPES[name]
    total = recipe.micro_batches
    current = even(total, 3)
    workers = [Worker(recipe) for _ in range(3)]
    groups = group_of(3)
    groups[1].dies_at = operation
    results = step_of(workers, 0, current, groups)
    assert isinstance(results[1], Killed)
    survivors = [workers[0], workers[2]]
    for worker, share in zip(survivors, (current[0], current[2]), strict=True):
        assert worker.gradients.done == set(share)
        assert worker.gradients.sum.equal(sum_of(recipe, share))
    assert step_of(survivors, 0, [[*current[0], current[1][0]], [*current[2], *current[1][1:]]]) == [None, None]
    assert [worker.apply() for worker in survivors] == [pytest.approx(Sequential(recipe).step(0), rel=1e-5)] * 2


def sum_of(recipe: Recipe, micro_batches: Sequence[int]) -> torch.Tensor:
    """What an undisturbed worker holds after these."""
    worker = Worker(recipe)
    worker.compute(0, micro_batches)
    return worker.gradients.sum


class Failing(ThreadGroup):
    """Its peer is found to be gone as the first all-reduce is begun."""

    def all_reduce(self, tensor: torch.Tensor, *, wait: bool = True) -> Any:
        raise Broken("connection reset by peer")


def test_a_backward_comes_to_its_end_whatever_happens_to_the_group():
    recipe = RECIPES["plain"]
    worker = Worker(recipe)
    group = Failing(group_of(1)[0].mailbox, 0)
    worker.compute_and_overlap(0, range(TOTAL), group)
    assert worker.gradients.done == set(range(TOTAL))
    assert worker.gradients.sum.equal(sum_of(recipe, range(TOTAL)))
    with pytest.raises(Broken, match="connection reset by peer"):
        worker.reduce(group, [range(TOTAL)])
    assert group.mailbox.broken, "the others are not left waiting"
    worker.reduce(group_of(1)[0], [range(TOTAL)])
    assert worker.apply() == pytest.approx(Sequential(recipe).step(0))


def test_what_was_begun_for_a_group_that_is_gone_is_begun_again_for_the_next():
    worker, other = Worker(RECIPES["plain"]), Worker(RECIPES["plain"])
    worker.compute_and_overlap(0, range(3), group_of(2)[0])
    other.compute(0, [3, 4, 5])
    assert step_of([worker, other], 0, [range(3), range(3, 6)]) == [None, None]
    assert worker.apply() == other.apply() == pytest.approx(Sequential(RECIPES["plain"]).step(0))


def test_a_receive_that_was_given_up_cannot_write_into_what_the_next_reduction_makes():
    worker = Worker(RECIPES["plain"])
    worker.compute_and_overlap(0, range(TOTAL), Failing(group_of(1)[0].mailbox, 0))
    old = worker.gradients.open_output()
    with pytest.raises(Broken):
        worker.reduce(Failing(group_of(1)[0].mailbox, 0), [range(TOTAL)])
    worker.reduce(group_of(1)[0], [range(TOTAL)])
    expected = [segment.clone() for segment in worker.reduced if segment is not None]
    old.fill_(7.0)
    assert all(torch.equal(one, other) for one, other in zip(worker.reduced, expected, strict=True))


def test_extra_memory_is_one_gradient():
    worker = Worker(RECIPES["plain"])
    for step in range(2):
        step_of([worker], step, [range(TOTAL)])
        assert worker.gradients.copies == 2, "the gradient itself, and one more"
        worker.apply()


@pytest.mark.parametrize("name", ["plain", "bf16"])
def test_a_failure_before_the_backward_leaves_the_sum_and_one_within_it_drops_it(name):
    worker = Worker(RECIPES[name])
    worker.compute(0, [0, 1])
    kept = worker.gradients.sum.clone()
    worker.gradients.begin(2)
    worker.gradients.abandon()
    assert (worker.gradients.done, worker.gradients.sum.equal(kept)) == ({0, 1}, True)
    worker.gradients.begin(2)
    worker.trained.run(0, 2)
    worker.gradients.abandon()
    assert worker.gradients.done == set(), "a torn sum counts for nothing"
    worker.compute(0, [1, 0])
    assert worker.gradients.sum.allclose(kept)


def test_a_gradient_that_is_given_twice_in_one_backward_is_reported_not_lost():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, stream: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.linear, checkpoint(self.linear, stream, use_reentrant=True), use_reentrant=True)

    layers = [nn.Linear(4, 4), Twice()]
    trained = TrainedModel(
        layers, loss=lambda output, target: (output - target).pow(2).mean(), batch=lambda *_: (torch.ones(2, 4), torch.zeros(2, 4)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    gradients, reduction = make_reduction("fast", trained.parameters, 1)
    group = group_of(1)[0]
    with reduction.overlap(group, gradients):
        gradients.begin(0)
        gradients.finish(0, *trained.run(0, 0))
    with pytest.raises(RuntimeError, match="use_reentrant=False"):
        reduction.reduce(group, gradients, [[0]], [None])


@pytest.mark.parametrize("before", [[], [1]])
def test_a_user_who_replaces_gradients_gets_an_error(before):
    worker = Worker(RECIPES["plain"])
    worker.compute(0, before)
    worker.gradients.begin(0)
    loss, tokens = worker.trained.run(0, 0)
    worker.trained.optimizer.zero_grad()
    with pytest.raises(ValueError, match="leave gradients to the elastic worker"):
        worker.gradients.finish(0, loss, tokens)
    assert worker.gradients.done == set(), "what the sum holds is not known any more"


@pytest.mark.parametrize("name", ["plain", "bf16"])
def test_a_step_begins_with_nothing_of_the_last_one(name):
    recipe = RECIPES[name]  # in some micro-batches one parameter takes no part
    for first in range(recipe.micro_batches):
        worker = Worker(recipe)
        worker.gradients.sum.fill_(7.0)
        order = [first, *(each for each in range(recipe.micro_batches) if each != first)]
        worker.compute(0, order)
        assert worker.gradients.sum.allclose(sum_of(recipe, order), rtol=1e-4, atol=1e-5)


def test_a_worker_without_a_micro_batch_brings_in_zeros():
    worker = Worker(RECIPES["plain"])
    worker.compute(0, [0])
    worker.gradients.clear()
    worker.gradients.require([])
    assert not worker.gradients.sum.any()


def test_there_are_two_reductions():
    with pytest.raises(ConfigError, match="'quick' is none of exact, fast"):
        make_reduction("quick", [nn.Parameter(torch.ones(1))], 1)
