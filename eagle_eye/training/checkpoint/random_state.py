"""The random generators of a process as values that a checkpoint holds: torch's on the CPU and on each GPU, and Python's."""

import random
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """Of this process. numpy's is left to whoever uses it."""
    version, words, gauss = random.getstate()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return {"torch": torch.get_rng_state(), "cuda": gpus, "python": [version, torch.tensor(words), gauss]}


def restore_random_state(state: dict[str, Any]) -> None:
    """Put it back. Raises RuntimeError where it has more GPUs than this process."""
    torch.set_rng_state(state["torch"])
    if state["cuda"]:
        torch.cuda.set_rng_state_all(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
