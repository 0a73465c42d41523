"""The exact reduction: the bits of plain sequential training, whichever worker computes what and whichever dies on the way."""

import weakref
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from eagle_eye.errors import Broken
from eagle_eye.training.elastic.model import TrainedModel
from eagle_eye.training.elastic.reduce.accumulator import TreeAccumulator
from eagle_eye.training.elastic.reduce.exact import ExactReduction
from eagle_eye.training.elastic.reduce.resume_reduction import resume_reduction
from eagle_eye.training.elastic.reduce.summation_tree import TreeNode, combine, nodes_of, slices
from eagle_eye.training.elastic.step import commit
from fakes.group_threads import Killed, group_of, together
from fakes.reference_training import RECIPES, Recipe, digest, train

TINY = 512
"""Bytes of a segment: the small models have several."""


@pytest.fixture(autouse=True)
def one_thread():
    """Two threads that spin for each small tensor make everything ten times slower where others work, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Worker:
    """One replica."""

    recipe: Recipe
    trained: TrainedModel = field(init=False)
    gradients: TreeAccumulator = field(init=False)
    reduced: list[torch.Tensor | None] = field(init=False)

    def __post_init__(self) -> None:
        self.trained = TrainedModel(self.recipe.layers(), **self.recipe.options())
        self.gradients = TreeAccumulator(self.trained.parameters, self.recipe.micro_batches, TINY)
        self.reduced = [None] * len(self.gradients.segments)

    def compute(self, step: int, micro_batches: Sequence[int]) -> None:
        for micro_batch in micro_batches:
            self.gradients.begin(micro_batch)
            self.gradients.finish(micro_batch, *self.trained.run(step, micro_batch))

    def reduce(self, group: Any, current: Sequence[Sequence[int]]) -> None:
        ExactReduction().reduce(group, self.gradients, current, self.reduced)

    def apply(self) -> float:
        mean, stats = self.gradients.mean_gradient(self.reduced)
        self.trained.apply(mean)
        self.gradients.clear()
        return stats.loss

    @property
    def digest(self) -> str:
        return digest(self.trained.layers, self.trained.optimizer)


def step_of(workers: Sequence[Worker], step: int, current: Sequence[Sequence[int]]) -> list[float]:
    """The loss that each worker has seen."""
    for worker, share in zip(workers, current, strict=True):
        worker.compute(step, [each for each in share if each not in worker.gradients.done])
    reduce_all(workers, current)
    return [worker.apply() for worker in workers]


def reduce_all(workers: Sequence[Worker], current: Sequence[Sequence[int]], dies: tuple[int, int] = (-1, -1)) -> list[Any]:
    groups = group_of(len(workers))
    if dies[0] >= 0:
        groups[dies[0]].dies_at = dies[1]
    results = together([partial(worker.reduce, group, current) for worker, group in zip(workers, groups, strict=True)])
    if dies[0] < 0:
        assert results == [None] * len(workers)
    return results


def even(total: int, world: int) -> list[list[int]]:
    return [list(range(total))[part] for part in slices(total, world)]


@pytest.mark.parametrize("name", RECIPES)
def test_any_number_of_workers_gives_the_bits_of_plain_sequential_training(name):
    recipe = RECIPES[name]
    expected, losses = train(recipe, 3)
    for world in (1, 2, 3, 4):
        workers = [Worker(recipe) for _ in range(world)]
        seen = [step_of(workers, step, even(recipe.micro_batches, world)) for step in range(3)]
        assert {worker.digest for worker in workers} == {expected}, f"{world} workers"
        assert [each[0] for each in seen] == pytest.approx(losses)
        assert all(len(set(each)) == 1 for each in seen), "every worker has the loss in the same bits"


@settings(max_examples=25, deadline=None)
@given(data=st.data(), total=st.integers(1, 9), world=st.integers(1, 4))
def test_any_assignment_computed_in_any_order_gives_the_same_bits(data, total, world):
    recipe = Recipe(micro_batches=total)
    order = data.draw(st.permutations(range(total)))
    owners = [data.draw(st.integers(0, world - 1)) for _ in order]
    current = [[each for each, owner in zip(order, owners, strict=True) if owner == rank] for rank in range(world)]
    workers = [Worker(recipe) for _ in range(world)]
    step_of(workers, 0, current)
    assert {worker.digest for worker in workers} == {train(recipe, 1)[0]}


def operations_of_a_reduction(recipe: Recipe, world: int) -> int:
    workers = [Worker(recipe) for _ in range(world)]
    current = even(recipe.micro_batches, world)
    for worker, share in zip(workers, current, strict=True):
        worker.compute(0, share)
    groups = group_of(world)
    together([partial(worker.reduce, group, current) for worker, group in zip(workers, groups, strict=True)])
    return len(groups[1].log)


def test_a_member_killed_at_any_point_of_the_reduction_costs_its_own_micro_batches_alone():
    recipe = Recipe(micro_batches=8)
    expected = train(recipe, 2)[0]
    current = even(8, 3)
    operations = operations_of_a_reduction(recipe, 3)
    assert operations >= 12
    for number in range(operations):
        workers = [Worker(recipe) for _ in range(3)]
        for worker, share in zip(workers, current, strict=True):
            worker.compute(0, share)
        kept = [{node: each.clone() for node, each in worker.gradients.sums.items()} for worker in workers]
        results = reduce_all(workers, current, dies=(1, number))
        assert isinstance(results[1], Killed)
        assert all(result is None or isinstance(result, Broken) for result in (results[0], results[2]))
        survivors = [workers[0], workers[2]]
        for worker, before in zip(survivors, (kept[0], kept[2]), strict=True):
            assert {node: bits(each) for node, each in worker.gradients.sums.items()} == {node: bits(each) for node, each in before.items()}
            assert len(worker.gradients.done) == len(current[0] if worker is workers[0] else current[2])
        step_of(survivors, 0, [[*current[0], current[1][0]], [*current[2], *current[1][1:]]])
        step_of(survivors, 1, even(8, 2))
        assert {worker.digest for worker in survivors} == {expected}, f"killed in operation {number}"


def joined(sender: Worker) -> Worker:
    """A fresh worker with the state of another."""
    fresh = Worker(sender.recipe)
    for ours, theirs in zip(fresh.trained.parameters, sender.trained.parameters, strict=True):
        ours.data.copy_(theirs.data)
    for ours, theirs in zip(fresh.trained.masters.values(), sender.trained.masters.values(), strict=True):
        ours.data.copy_(theirs.data)
    fresh.trained.optimizer.load_state_dict(deepcopy(sender.trained.optimizer.state_dict()))
    if sender.trained.scheduler is not None:
        fresh.trained.scheduler.load_state_dict(sender.trained.scheduler.state_dict())
    return fresh


@pytest.mark.parametrize("name", ["plain", "everything"])
def test_a_loss_during_the_recovery_from_another_and_a_join_change_no_bit(name):
    recipe = RECIPES[name]
    total = recipe.micro_batches
    workers = [Worker(recipe) for _ in range(4)]
    step_of(workers, 0, even(total, 4))
    shares = even(total, 4)
    for worker, share in zip(workers, shares, strict=True):
        worker.compute(1, share[:1])  # all were in the middle of their shares
    three = [[*shares[0], *shares[3]], shares[1], shares[2]]
    for worker, share in zip(workers[:3], three, strict=True):
        worker.compute(1, [each for each in share if each not in worker.gradients.done])
    assert isinstance(reduce_all(workers[:3], three, dies=(2, 3))[2], Killed)
    step_of(workers[:2], 1, [three[0], [*three[1], *three[2]]])
    step_of([*workers[:2], joined(workers[0])], 2, even(total, 3))
    assert {worker.digest for worker in workers[:2]} == {train(recipe, 3)[0]}


def test_one_flipped_bit_of_one_gradient_changes_the_hash():
    def flip(step: int, micro_batch: int, gradients: list[torch.Tensor]) -> None:
        if (step, micro_batch) == (1, 3):
            flat = gradients[0].view(-1)
            flat.view(torch.int32)[flat.abs().argmax()] ^= 1 << 12

    recipe = RECIPES["plain"]
    workers = [Worker(recipe) for _ in range(2)]
    for step in range(2):
        step_of(workers, step, even(recipe.micro_batches, 2))
    assert workers[0].digest == train(recipe, 2)[0]
    assert workers[0].digest != train(recipe, 2, flip)[0]


class Created(TorchDispatchMode):
    """Bytes of the largest tensors that are made in this thread and live at one time."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, Any] = {}
        self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and func in MAKERS:
            self.live[id(result)] = weakref.ref(result)
        alive = [each() for each in self.live.values()]
        self.peak = max(self.peak, sum(each.untyped_storage().nbytes() for each in alive if each is not None))
        return result


MAKERS = {torch.ops.aten.empty.memory_format, torch.ops.aten.zeros.default, torch.ops.aten.stack.default, torch.ops.aten.add.Tensor}


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
def test_extra_memory_is_at_most_the_levels_of_the_tree_and_two(world):
    parameters = [torch.nn.Parameter(torch.ones(2000)) for _ in range(8)]
    workers = [TreeAccumulator(parameters, 16, 20_000) for _ in range(world)]
    current = even(16, world)
    reduced: list[list[torch.Tensor | None]] = [[None] * len(workers[0].segments) for _ in range(world)]
    peak = 0.0
    for again in (False, True):
        for gradients, share in zip(workers, current, strict=True):
            for micro_batch in share:
                gradients.begin(micro_batch)
                peak = max(peak, gradients.copies)
                for parameter in parameters:
                    parameter.grad = torch.ones_like(parameter)
                gradients.finish(micro_batch, 1.0, 1)
                peak = max(peak, gradients.copies)

        def reduce(rank: int, group: Any) -> float:
            with Created() as created:
                ExactReduction().reduce(group, workers[rank], current, reduced[rank])
            return workers[rank].copies + created.peak / workers[rank].vector.bytes

        peaks = together([partial(reduce, rank, group) for rank, group in enumerate(group_of(world))])
        assert all(isinstance(each, float) for each in peaks), peaks
        if again:  # the first time makes what is kept from then on, and would be counted twice
            peak = max(peak, *peaks)
        for gradients in workers:
            gradients.clear()
    assert len(workers[0].segments) == 4
    assert peak <= 4 + 2


def test_a_micro_batch_that_fails_half_way_leaves_what_is_kept_as_it_was():
    recipe = RECIPES["dropout"]
    worker = Worker(recipe)
    worker.compute(0, [0, 1, 2])
    before = {node: bits(each) for node, each in worker.gradients.sums.items()}
    worker.gradients.begin(3)
    worker.trained.run(0, 3)
    worker.gradients.abandon()
    assert worker.gradients.done == {0, 1, 2}
    assert {node: bits(each) for node, each in worker.gradients.sums.items()} == before
    worker.compute(0, [3, 4, 5])
    reduce_all([worker], [range(6)])
    worker.apply()
    assert worker.digest == train(recipe, 1)[0]


def test_what_was_not_finished_is_not_reduced():
    worker = Worker(RECIPES["plain"])
    worker.compute(0, [0, 1])
    assert "the finished micro-batches are [0, 1]" in str(together([partial(worker.reduce, group_of(1)[0], [range(6)])])[0])
    worker.compute(0, [2, 3, 4, 5])
    two = group_of(2)[0]
    assert "not each of 0 to 5 once" in str(together([partial(worker.reduce, two, [range(6), [5]])])[0])


@pytest.mark.parametrize("micro_batch", [0, -1, 6])
def test_a_micro_batch_is_not_counted_twice_nor_one_that_there_is_not(micro_batch):
    worker = Worker(RECIPES["plain"])
    worker.compute(0, [0])
    with pytest.raises(ValueError, match="cannot be begun"):
        worker.gradients.begin(micro_batch)


def test_segments_that_only_some_hold_are_handed_over_and_nothing_is_computed_again():
    recipe = RECIPES["plain"]
    expected, losses = train(recipe, 1)
    workers = [Worker(recipe) for _ in range(3)]
    for worker, share in zip(workers, even(6, 3), strict=True):
        worker.compute(0, share)
    reduce_all(workers, even(6, 3))
    survivors = workers[:2]
    senders = [index % 2 for index in range(len(workers[0].reduced))]
    for rank, worker in enumerate(survivors):
        worker.reduced = [segment if sender == rank else None for segment, sender in zip(worker.reduced, senders, strict=True)]
        worker.gradients.open_output()  # as a reduction does that breaks
    fresh = Worker(recipe)
    group = group_of(3)
    calls = [partial(resume_reduction, group[rank], worker.gradients, senders, worker.reduced) for rank, worker in enumerate(survivors)]
    calls.append(partial(resume_reduction, group[2], fresh.gradients, senders, fresh.reduced, needs_none=True))
    received = together(calls)
    assert received[2] == 0
    assert sum(received) == survivors[0].gradients.vector.bytes
    assert [worker.apply() for worker in survivors] == [pytest.approx(losses[0])] * 2
    assert {worker.digest for worker in survivors} == {expected}


def test_a_commit_tells_everybody_the_newest_epoch_that_anybody_was_asked_to_stop_for():
    group = group_of(3)
    assert together([partial(commit, group[rank], 7, soft) for rank, soft in enumerate((-1, 4, 2))]) == [4, 4, 4]


def test_members_at_different_steps_commit_nothing():
    group = group_of(2)
    results = together([partial(commit, group[0], 7, -1), partial(commit, group[1], 8, -1)])
    assert all(isinstance(result, Broken) and "different steps: [7, 8]" in str(result) for result in results)


@given(data=st.data(), total=st.integers(1, 40))
def test_nodes_are_the_largest_below_which_there_is_nothing_else(data, total):
    ours = data.draw(st.sets(st.integers(0, total - 1)))
    nodes = nodes_of(ours, total)
    assert sorted(each for node in nodes for each in range(*node)) == sorted(ours)
    parents = {half: parent for parent in inner_nodes(TreeNode(0, total)) for half in parent.halves}
    assert not any(set(parents[node].halves) <= set(nodes) for node in nodes if node in parents)


@given(data=st.data(), total=st.integers(1, 40), world=st.integers(1, 5))
def test_the_order_of_additions_does_not_depend_on_who_holds_what(data, total, world):
    owners = [data.draw(st.integers(0, world - 1)) for _ in range(total)]
    leaves = {TreeNode(each, each + 1): str(each) for each in range(total)}

    def held(node: TreeNode) -> str:
        return str(node.first) if node.is_leaf else bracketed(*map(held, node.halves))

    values = {
        node: held(node) for rank in range(world) for node in nodes_of([each for each in range(total) if owners[each] == rank], total)
    }
    assert combine(values, total, bracketed) == combine(leaves, total, bracketed)


def bracketed(left: str, right: str) -> str:
    return f"({left}+{right})"


def inner_nodes(node: TreeNode) -> list[TreeNode]:
    return [] if node.is_leaf else [node, *(below for half in node.halves for below in inner_nodes(half))]


def test_a_micro_batch_that_is_none_of_the_step_is_refused():
    with pytest.raises(ValueError, match=r"micro-batches \[8\] are none of the step's 8"):
        nodes_of([3, 8], 8)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.numpy().tobytes()
