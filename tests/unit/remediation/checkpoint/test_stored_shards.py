"""DTensors in memory on their way to storage, and back in another cut; and what of a state goes there at all."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from eagle_eye.training import checkpoint
from remediation.checkpoint.copy_table import CopyTable, part_of
from unit.eagle_eye.training.checkpoint.test_distributed_tensor import FULL, mesh, rows

from .test_storage_reconciler import Node, node  # noqa: F401 - a fixture


@pytest.fixture
def agreeing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of a process group that has this process alone: the others say what it says."""
    monkeypatch.setattr(torch.distributed, "all_gather", lambda gathered, ours: [each.copy_(ours) for each in gathered])
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: "gloo")


def cut(on: object, rank: int, of: int, values: torch.Tensor, own: int) -> dict[str, Any]:
    """A rank's state: a shard, and what it has for itself."""
    return {"model": [rows(on, rank, of, values)], "random": torch.tensor([own])}


@pytest.mark.usefixtures("agreeing")
@pytest.mark.parametrize(("ranks", "own"), [(2, (5, 6)), (3, (5, 5, 5))])
def test_shards_of_two_ranks_are_loaded_by_as_many_or_by_three(node: Callable[..., Node], ranks: int, own: tuple[int, ...]) -> None:  # noqa: F811
    nodes = []
    for rank in range(2):
        ours = node(rank, 2)
        with mesh(rank, 2) as on:
            ours.save(4, state=cut(on, rank, 2, FULL, 5 + rank))
        ours.want(4)
        ours.reconcile()
        nodes.append(ours)
    nodes[0].reconcile()
    [entry] = checkpoint.entries(nodes[0].home)
    assert [piece.region.offsets for piece in entry.manifest.tensors["state.model.0"].pieces] == [(0, 0), (5, 0)]
    for rank in range(ranks):
        ours = node(rank, ranks)
        with mesh(rank, ranks) as on:
            template = cut(on, rank, ranks, torch.zeros(10, 3), 0)
            found = ours.load_into(template)
            assert torch.equal(template["model"][0].to_local(), torch.chunk(FULL, ranks)[rank])
        assert found.state["random"].tolist() == [own[rank]]
    state, _ = checkpoint.load(nodes[0].home) or ({}, 0)
    assert torch.equal(state["model"][0], FULL)
    with mesh(0, 2):
        assert node(0, 2).load_into({"random": torch.tensor([0])}) is None, "nobody knows how the shard is to be cut"


@pytest.mark.usefixtures("agreeing")
@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_a_tensor_without_elements_comes_back_however_it_is_cut(node: Callable[..., Node], shape: tuple[int, ...]) -> None:  # noqa: F811
    nodes = []
    for rank in range(2):
        ours = node(rank, 2)
        with mesh(rank, 2) as on:
            ours.save(4, state=cut(on, rank, 2, torch.empty(shape), 5 + rank))
        ours.want(4)
        ours.reconcile()
        nodes.append(ours)
    nodes[0].reconcile()
    state, _ = checkpoint.load(nodes[0].home) or ({}, 0)
    assert (state["model"][0].shape, state["random"].tolist()) == (shape, [5])
    with mesh(1, 2) as on:
        assert node(1, 2).load_into(cut(on, 1, 2, torch.empty(shape), 0)).state["random"].tolist() == [6]


@pytest.mark.parametrize("same", [True, False])
def test_one_name_for_the_tensors_of_two_stages_makes_no_checkpoint(node: Callable[..., Node], same: bool) -> None:  # noqa: F811
    """Each stage has a mesh of its own, and is the first that has this region; twin: replicas, which have the same."""
    nodes = []
    for rank in range(2):
        ours = node(rank, 2)
        with mesh(0, 1) as on:
            ours.save(4, state=cut(on, 0, 1, FULL + rank * (not same), rank))
        ours.want(4)
        ours.reconcile()
        nodes.append(ours)
    nodes[0].reconcile()
    assert [entry.step for entry in checkpoint.entries(nodes[0].home)] == [4] * same
    told = [refusal.failure.reason for each in nodes for refusal in each.refused]
    assert ["ranks 0 and 1 have both written tensor 'state.model.0'" in reason for reason in told] == [True] * (not same)


def test_what_storage_cannot_hold_is_told_by_name(node: Callable[..., Node]) -> None:  # noqa: F811
    ours = node(0, 2)
    with mesh(0, 2) as on:
        from torch.distributed.tensor import DTensor, Partial

        ours.save(4, state={"sum": DTensor.from_local(torch.ones(3), on, [Partial()], run_check=False)})
    ours.want(4)
    ours.reconcile()
    [refusal] = ours.refused
    assert "'state.sum': its ranks have summands of it" in refusal.failure.reason
    assert not list(ours.home.iterdir())


def test_a_rank_writes_what_it_has_for_itself_under_its_own_name_and_rank_0_the_state() -> None:
    tensors = {"state.w": ("torch.float32", (2,), 0, 8, "shard"), "state.n": ("torch.int64", (), 64, 8, "")}
    rest = {"w": {"$tensor": "state.w"}, "n": {"$tensor": "state.n"}, "position": 3}
    regions = {"state.w": ((2,), (2,), (4,), True)}
    parts = [part_of(CopyTable(step=1, rank=rank, world=2, tensors=tensors, rest=rest, regions=regions), 1) for rank in range(2)]
    assert [[each.name for each in part.tensors] for part in parts] == [["state.w", "state.n"], ["state.w", "ranks.1.state.n"]]
    assert parts[0].manifest.rest == rest
    assert parts[1].manifest.rest == {"w": {"$tensor": "state.w"}, "position": 3}
    assert parts[1].manifest.ranks == {"1": {"w": {"$tensor": "state.w"}, "n": {"$tensor": "ranks.1.state.n"}, "position": 3}}
    second = part_of(CopyTable(step=1, rank=1, world=2, tensors=tensors, rest=rest, regions={"state.w": ((2,), (2,), (4,), False)}), 1)
    assert [each.name for each in second.tensors] == ["ranks.1.state.n"], "another rank is the first that has this region"
    nothing = part_of(CopyTable(step=1, rank=1, world=2, tensors={"state.w": ("torch.float32", (0,), 0, 0, "shard")}, rest={}, regions={"state.w": ((0,), (0,), (4,), True)}), 1)
    assert not nothing.tensors, "a rank that has none of it"
    replicated = part_of(CopyTable(step=1, rank=0, world=2, tensors=tensors, rest=rest, replicated=True), 1)
    assert (replicated.manifest.world_size, replicated.manifest.ranks) == (1, {})
    with pytest.raises(TypeError, match=r"torch\.complex128 at 'state\.c'"):
        part_of(CopyTable(step=1, rank=0, world=1, tensors={"state.c": ("torch.complex128", (), 0, 16, "")}, rest={}), 1)
    assert json.dumps(rest), "nothing of it was changed"
