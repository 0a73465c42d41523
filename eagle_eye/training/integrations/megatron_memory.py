"""Megatron-Core's sharded state in memory: a worker's successor goes on from the step that its predecessor was at.

    from eagle_eye.training.integrations.megatron_memory import ShardedMemoryCheckpoints

    memory = ShardedMemoryCheckpoints(optimizer)
    state, start = memory.load(sharded()) or (dist_checkpointing.load(sharded(), directory), ...)
    model.load_state_dict(state["model"])                  # as behind dist_checkpointing.load
    ...
    optimizer.step()                                       # waits for what is not copied yet
    memory.save(sharded(), iteration + 1)                  # returns at once

`sharded()` makes the sharded state dict that the script gives to `dist_checkpointing`; each rank keeps what it holds of it. Its own checkpoints on disk stay as they are.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, merge
from megatron.core.dist_checkpointing.mapping import ShardedBase, apply_factory_merges
from megatron.core.dist_checkpointing.state_dict_utils import load_preprocess
from megatron.core.dist_checkpointing.utils import extract_sharded_base

from eagle_eye.training.checkpoint.memory_checkpoints import MemoryCheckpoints


class LoadedShards(NamedTuple):
    """What was loaded."""

    state: dict[str, Any]
    """As `dist_checkpointing.load` returns it."""
    step: int
    data_position: Any = None
    """As `save` was told."""


class ShardedMemoryCheckpoints:
    """Of one rank. `optimizer`: Megatron-Core's or torch's, or several; what none of them writes to itself (parameters of half precision) is copied by `save`."""

    def __init__(self, *optimizer: Any) -> None:
        self.memory = MemoryCheckpoints(_torch_optimizers(optimizer))

    def save(self, sharded_state_dict: dict[str, Any], step: int, *, data_position: Any = None) -> bool:
        """Begin to copy it as the checkpoint of `step`, the first one still to do; False if it is left out. As MemoryCheckpoints.save.

        Nothing may change the state before the optimizer's step: with `overlap_param_gather` synchronize the parameters first. Raises TypeError for
        an object that is no number, text, tensor, or list or dict of them; leave it out of the state that is kept in memory.
        """
        if not self.memory.has_place:
            return False
        held, common, _, _ = _parts_of(sharded_state_dict)
        return self.memory.save({"sharded": held, "common": common}, step, data_position=data_position)

    def load(self, sharded_state_dict: dict[str, Any], *, at_least: int = 0) -> LoadedShards | None:
        """The newest step that all ranks hold, in place in the tensors of `sharded_state_dict`, and as a state; None if there is none, or it is below `at_least`.

        All ranks call this, behind `init_process_group`, with the layout that saved: another one loads from disk.
        """
        held, _, kept_local, factories = _parts_of(sharded_state_dict)
        found = self.memory.load({"sharded": held}, at_least=at_least)
        if found is None:
            return None
        state = merge(merge(found.state["common"], kept_local), found.state["sharded"])
        return LoadedShards(apply_factory_merges(state, factories), found.step, found.data_position)


def _parts_of(sharded_state_dict: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
    """What this rank holds, what is common to all, what is not to be kept, and what puts together what was cut. Nothing is copied."""
    sharded, kept_local, factories = load_preprocess(sharded_state_dict)
    sharded, common = extract_sharded_base(sharded)
    return dict_list_map_outplace(_data_of, sharded), common, kept_local, factories


def _data_of(sharded: Any) -> Any:
    return sharded.data if isinstance(sharded, ShardedBase) else sharded


def _torch_optimizers(optimizers: Iterable[Any]) -> Iterator[Any]:
    for optimizer in optimizers:
        inner = getattr(optimizer, "chained_optimizers", None) or [each for each in [getattr(optimizer, "optimizer", None)] if each is not None]
        if inner:
            yield from _torch_optimizers(inner)
        else:
            yield optimizer
