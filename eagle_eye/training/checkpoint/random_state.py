"""The random generators of a process as values that a checkpoint holds: torch's on the CPU and on each GPU, Python's and numpy's."""

import importlib
import random
import sys
from typing import Any

import torch


def random_state() -> dict[str, Any]:
    """Of this process; of numpy the one behind `numpy.random.rand` and its like, in a process that has imported numpy.random."""
    version, words, gauss = random.getstate()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    return {"torch": torch.get_rng_state(), "cuda": gpus, "python": [version, torch.tensor(words), gauss], "numpy": _numpy_state()}


def restore_random_state(state: dict[str, Any]) -> None:
    """Put it back. Raises RuntimeError where it has more GPUs than this process."""
    torch.set_rng_state(state["torch"])
    if state.get("cuda"):  # Megatron-Core drops empty lists
        torch.cuda.set_rng_state_all(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    if state.get("numpy") is not None:
        kind, drawn, *rest = state["numpy"]
        importlib.import_module("numpy.random").set_state((kind, drawn.numpy().astype("uint32"), *rest))


def _numpy_state() -> list[Any] | None:
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is None:
        return None
    kind, drawn, *rest = numpy_random.get_state()
    return [str(kind), torch.tensor(drawn.tolist()), *rest]
