"""State from checkpoints, where no worker has it: the newest, from the nearest folder that has it."""

import time
from collections.abc import Sequence
from pathlib import Path

from eagle_eye.training import checkpoint

from .train_state.train_state import TrainState
from .transfer.state_transfer import TransferResult


def load_newest(inventory: TrainState, folders: Sequence[Path], at_most: int = -1) -> TransferResult | None:
    """Load the newest whole checkpoint of some folders, nearest first: memory of the node (tmpfs), then storage.

    Workers have one folder today. Of two of the same step the nearer one is taken. `at_most` is the highest step to take (below 0: no limit). None if
    there is none. Raises ConfigError if it is another model's.
    """
    began = time.monotonic()
    best: tuple[dict[str, object], int, Path] | None = None
    for folder in folders:
        steps = [entry.step for entry in checkpoint.entries(folder) if entry.finite and (at_most < 0 or entry.step <= at_most)]
        if not steps or (best is not None and max(steps) <= best[1]):
            continue
        found = checkpoint.load(folder, at_most)
        if found is not None and (best is None or found[1] > best[1]):
            best = (*found, folder)
    if best is None:
        return None
    state, _, folder = best
    loaded = inventory.load(state)
    return TransferResult(loaded, time.monotonic() - began, {str(folder): loaded})
