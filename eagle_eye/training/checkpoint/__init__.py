"""Checkpoints: visible only when complete, checksummed, written and read without pickle, by one rank or by all.

    saved = checkpoint.load()
    state, start = saved or ({}, 0)
    ...
    if rank == 0:
        checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step + 1)

With sharded state (FSDP2, DTensor, pipeline stages) every rank calls `save_shard`, and `restore` with a template that may be cut in another way:

    found = checkpoint.restore(state)            # its tensors are filled; None: there is no checkpoint
    start = found.step if found else 0
    ...
    checkpoint.save_shard(state, step + 1)

The number of a checkpoint is that of the first step still to do. A directory holds, for each, a manifest
`step-000000000012.json` and the shards that it names (safetensors). The manifest is renamed into place last: without
it there is no checkpoint. It holds size and CRC-32 of each shard, which part of which tensor lies where, what is no tensor as JSON, and
whether all floating tensors were finite.

The directory may be a URL (`s3://bucket/prefix`): an object store, through fsspec. The manifest is put last there.

Training does not stop because storage refuses a checkpoint (full, read-only, a quota, a server that is gone): `save` then
returns None, keeps the state and tries again. What is wrong with the state itself raises.

Only saving and loading need torch; `entries` and `discard_after` are for the launcher.
"""

from .checkpoint_directory import (
    LEFT_S,
    directory_of,
    discard_after,
    entries,
)
from .checkpoint_reader import RestoredCheckpoint, SkippedCheckpoint, load, restore
from .checkpoint_retention import KEPT, CheckpointRetention
from .checkpoint_writer import PreparedCheckpoint, leave_out, save, save_or_raise, save_shard
from .distributed_tensor import LocalTensor, LocalTensors
from .saved_checkpoint import SavedCheckpoint
from .tensor_regions import Region

__all__ = [
    "KEPT",
    "LEFT_S",
    "CheckpointRetention",
    "LocalTensor",
    "LocalTensors",
    "PreparedCheckpoint",
    "Region",
    "RestoredCheckpoint",
    "SavedCheckpoint",
    "SkippedCheckpoint",
    "directory_of",
    "discard_after",
    "entries",
    "leave_out",
    "load",
    "restore",
    "save",
    "save_or_raise",
    "save_shard",
]
