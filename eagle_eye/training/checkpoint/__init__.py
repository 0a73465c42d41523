"""Checkpoints: visible only when complete, checksummed, written and read without pickle.

    saved = checkpoint.load()
    state, start = saved or ({}, 0)
    ...
    if rank == 0:
        checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step + 1)

The number of a checkpoint is that of the first step still to do. A directory holds, for each, a manifest
`step-000000000012.json` and the tensors it names (safetensors). The manifest is renamed into place last: without
it there is no checkpoint. It holds size and CRC-32 of the tensors, what is no tensor as JSON, and whether all
floating tensors were finite.

Training does not stop because storage refuses a checkpoint (full, read-only, a quota, a server that is gone): `save` then
returns None, keeps the bytes and tries again. What is wrong with the state itself raises.

Only `save` and `load` need torch and safetensors; `entries` and `discard_after` are for the launcher.
"""

from .checkpoint_directory import (
    KEPT,
    LEFT_S,
    VERSION,
    PreparedCheckpoint,
    SavedCheckpoint,
    directory_of,
    discard_after,
    entries,
    leave_out,
    load,
    save,
    save_or_raise,
)

__all__ = [
    "KEPT",
    "LEFT_S",
    "VERSION",
    "PreparedCheckpoint",
    "SavedCheckpoint",
    "directory_of",
    "discard_after",
    "entries",
    "leave_out",
    "load",
    "save",
    "save_or_raise",
]
