"""Where a training reads on in its data goes with its checkpoint in memory, to storage and back, and people see it there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from eagle_eye.app.commands.checkpoint import show
from eagle_eye.training import checkpoint
from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints

from .test_storage_reconciler import Node, node, state_of  # noqa: F401 - a fixture

POSITION = {"epoch": 2, "sample": 4096, "order": [3, 1, None]}


def kept(ours: Node, step: int, position: Any) -> None:
    """As a worker keeps it in memory."""
    memory = MemoryCheckpoints([], ours.path)
    state = state_of(ours.rank, step)
    assert memory.prepare(state)
    assert memory.save(state, step, data_position=position)
    memory.close()


@pytest.mark.parametrize("position", [POSITION, 7, None])
def test_it_comes_back_from_memory_and_from_storage(node: Callable[..., Node], position: Any) -> None:  # noqa: F811
    ours = node()
    kept(ours, 4, position)
    memory = MemoryCheckpoints([], ours.path)
    found = memory.load(state_of(0, 0))
    memory.close()
    assert found is not None
    assert found.data_position == position
    ours.want(4)
    ours.reconcile()
    [entry] = checkpoint.entries(ours.home)
    assert entry.manifest.data_position == position
    assert ours.load().data_position == position, "memory is gone"
    shown = CliRunner().invoke(show, [str(ours.home)]).output
    assert ('data position {"epoch": 2, "sample": 4096, "order": [3, 1, null]}' in shown) == (position is POSITION), shown


def test_of_a_checkpoint_it_is_that_of_rank_0(node: Callable[..., Node]) -> None:  # noqa: F811
    nodes = []
    for rank in range(2):
        ours = node(rank, 2)
        nodes.append(ours)
        kept(ours, 4, {"sample": ours.rank})
        ours.want(4)
        ours.reconcile()
    nodes[0].reconcile()
    [entry] = checkpoint.entries(nodes[0].home)
    assert entry.manifest.data_position == {"sample": 0}


def test_what_json_cannot_hold_is_the_callers_mistake(node: Callable[..., Node]) -> None:  # noqa: F811
    memory = MemoryCheckpoints([], node().path)
    with pytest.raises(TypeError):
        memory.save(state_of(0, 1), 1, data_position=torch.ones(1))
    memory.close()


def test_what_strict_json_has_no_word_for_comes_back_from_memory_and_from_storage(node: Callable[..., Node]) -> None:  # noqa: F811
    """A best loss that is infinite at first, and the name of a file that is no UTF-8."""
    ours = node()
    position = {"best": float("inf"), "worst": float("nan"), "file": "caf\udce9.txt"}
    memory = MemoryCheckpoints([], ours.path)
    state = state_of(0, 4) | {"best": float("inf"), "file": "caf\udce9.txt", "by": {float("-inf"): 1}}
    assert memory.prepare(state)
    assert memory.save(state, 4, data_position=position)
    memory.close()
    ours.want(4)
    ours.reconcile()
    assert not ours.refused
    [entry] = checkpoint.entries(ours.home)
    assert str(entry.manifest.data_position) == str(position)
    found = checkpoint.load(ours.home)
    assert found is not None
    assert [found[0][name] for name in ("best", "file", "by")] == [state[name] for name in ("best", "file", "by")]
