"""Megatron-Core's checkpoints in our storage format: scripts keep `dist_checkpointing.save` and `load`.

    from megatron.core import dist_checkpointing
    from eagle_eye.training.integrations import megatron_storage

    dist_checkpointing.save(sharded_state_dict, directory, sharded_strategy=megatron_storage.SaveStrategy())
    state = dist_checkpointing.load(sharded_state_dict, directory, sharded_strategy=megatron_storage.LoadStrategy())

Sharded tensors are written as `eagle_eye.DcpWriter` writes them: safetensors of each rank, with digests, and a manifest that is published last, which `eagle-eye
checkpoint` reads. What is common to all ranks, and sharded objects, Megatron-Core writes itself, beside them (`common.pt`, pickled).
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from megatron.core.dist_checkpointing.dict_utils import dict_list_map_outplace, nested_values
from megatron.core.dist_checkpointing.mapping import CheckpointingException, ShardedTensor, is_main_replica
from megatron.core.dist_checkpointing.strategies.base import (
    LoadShardedStrategy,
    SaveShardedStrategy,
    StrategyAction,
    register_default_strategy,
)
from megatron.core.dist_checkpointing.strategies.checkpointable import CheckpointableShardedTensor, LocalShardsContainer

from eagle_eye.training.checkpoint.dcp_storage import DcpReader, DcpWriter

BACKEND, VERSION = "eagle_eye", 1
"""As Megatron-Core's `metadata.json` names the format."""


class SaveStrategy(SaveShardedStrategy):  # type: ignore[misc]  # of another package, which is not looked into
    """`step`: of the checkpoint; if not given, the number at the end of its directory's name (`iter_0001200`), else 0."""

    def __init__(self, step: int | None = None) -> None:
        super().__init__(BACKEND, VERSION)
        self._step = step

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        """All ranks call this. Raises CheckpointException, on all of them, for what storage refuses."""
        number = re.search(r"(\d+)$", Path(checkpoint_dir).name)
        step = self._step if self._step is not None else int(number[1]) if number else 0
        written = [each for each in _tensors_of(sharded_state_dict) if is_main_replica(each.replica_id)]
        dcp.save(_by_key(written), storage_writer=DcpWriter(checkpoint_dir, step=step), no_dist=False)


class LoadStrategy(LoadShardedStrategy):  # type: ignore[misc]  # of another package, which is not looked into
    """Any number of ranks may load, cut in any way."""

    def load(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> Any:
        """All ranks call this. Raises CheckpointException for a shard that was changed since it was written, CheckpointingException for another model's checkpoint."""
        reader = DcpReader(checkpoint_dir, at_most=-1)
        stored = reader.read_metadata().state_dict_metadata
        wanted = list(_tensors_of(sharded_state_dict))
        for each in wanted:
            there = stored.get(each.key)
            if there is None or (tuple(there.size) != tuple(each.global_shape) and not each.allow_shape_mismatch):
                found = "is not there" if there is None else f"is {tuple(there.size)} there and {tuple(each.global_shape)} here"
                raise CheckpointingException(f"{each.key!r} {found}: {checkpoint_dir} is a checkpoint of another model")
            each.init_data("cpu")
        dcp.load(_by_key(wanted), storage_reader=reader)
        return dict_list_map_outplace(lambda each: each.data, sharded_state_dict)

    def load_tensors_metadata(self, checkpoint_dir: str | Path) -> dict[str, ShardedTensor]:
        """Of each tensor its whole shape and data type."""
        stored = DcpReader(checkpoint_dir, at_most=-1).read_metadata().state_dict_metadata
        return {
            name: ShardedTensor.from_rank_offsets(name, torch.empty(each.size, dtype=each.properties.dtype, device="meta")).without_data()
            for name, each in stored.items()
        }

    def check_backend_compatibility(self, loaded_backend: str) -> None:
        """Raises CheckpointingException for another format."""
        if loaded_backend != BACKEND:
            raise CheckpointingException(f"the checkpoint is of the format {loaded_backend!r}: load it without this strategy")

    def check_version_compatibility(self, loaded_version: int) -> None:
        """Raises CheckpointingException for a newer format."""
        if loaded_version > VERSION:
            raise CheckpointingException(f"the checkpoint has version {loaded_version} of its format: load it with a newer Eagle Eye")


def _tensors_of(sharded_state_dict: dict[str, Any]) -> Iterator[ShardedTensor]:
    return (each for each in nested_values(sharded_state_dict) if isinstance(each, ShardedTensor))


def _by_key(tensors: list[ShardedTensor]) -> dict[str, Any]:
    """As torch.distributed.checkpoint takes them: by name, with all regions of it that this rank holds."""
    found: defaultdict[str, list[Any]] = defaultdict(list)
    for each in tensors:
        shape = (1,) * each.prepend_axis_num + tuple(each.local_shape)
        data = each.data.detach().view(shape)
        found[each.key].append(CheckpointableShardedTensor.from_sh_ten(replace(each, data=data, local_shape=shape, prepend_axis_num=0)))
    return {key: parts[0] if len(parts) == 1 else LocalShardsContainer(parts) for key, parts in found.items()}


register_default_strategy(StrategyAction.LOAD_SHARDED, BACKEND, VERSION, LoadStrategy())
register_default_strategy(StrategyAction.SAVE_SHARDED, BACKEND, VERSION, SaveStrategy())
