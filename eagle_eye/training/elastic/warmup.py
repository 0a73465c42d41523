"""Warm-up of a worker before it joins a job that trains, so that the other workers need not wait for it then.

They wait from the step boundary at which it joins until it has its state, and in its first step until it has computed its
micro-batches. So it allocates memory for the state before, and computes one micro-batch for which no other worker waits.
"""

import logging
from typing import TYPE_CHECKING

from .model import Trainable
from .reduce.gradients import Gradients
from .train_state import huge_pages
from .train_state.train_state import TrainState

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger("eagle_eye.elastic")


def warm_up(trained: Trainable, gradients: Gradients, train_state: TrainState) -> None:
    """Do what can be done before joining. The training state and the accumulated gradients are unchanged afterwards."""
    _run_first_micro_batch(trained, gradients)
    preallocated = train_state.preallocate()
    huge_pages.collapse([*(entry.tensor for layer in train_state.layers for entry in layer.entries), *preallocated])


def _run_first_micro_batch(trained: Trainable, gradients: Gradients) -> None:
    """Forward and backward of a micro-batch whose result is discarded: the first one of a process takes longer than any other."""
    before = {(layer, name): buffer.clone() for layer in trained.layers for name, buffer in layer.named_buffers()}
    gradients.begin(0)
    try:
        gradients.finish(0, *trained.run(0, 0))
    except Exception:  # noqa: BLE001 - the user's code: the same error is raised in the first step
        _log.debug("the warm-up micro-batch failed", exc_info=True)
    finally:
        gradients.clear()
    for layer in trained.layers:
        for name, buffer in layer.named_buffers():
            _restore(buffer, before.get((layer, name)))


def _restore(buffer: "Tensor", before: "Tensor | None") -> None:
    if before is not None and before.shape == buffer.shape:
        buffer.detach().copy_(before)
