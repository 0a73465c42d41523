"""What a worker does before it asks to be taken into a job that trains, so that the others need not wait for it then.

They stand still from the boundary at which it enters until it has its state, and in its first step until it is done
with its share. So it makes room for the state before, and does a micro-batch for which nobody waits.
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


def make_ready(trained: Trainable, gradients: Gradients, train_state: TrainState) -> None:
    """All that can be done beforehand. The worker's state and what it holds of a step are as they were."""
    _rehearse(trained, gradients)
    room = train_state.preallocate()
    huge_pages.gather([*(entry.tensor for layer in train_state.layers for entry in layer.entries), *room])


def _rehearse(trained: Trainable, gradients: Gradients) -> None:
    """Forward and backward of a micro-batch that is thrown away: the first one of a process takes longer than any other."""
    before = {(layer, name): buffer.clone() for layer in trained.layers for name, buffer in layer.named_buffers()}
    gradients.begin(0)
    try:
        gradients.finish(0, *trained.run(0, 0))
    except Exception:  # noqa: BLE001 - the user's code: it will be heard of where it counts
        _log.debug("a micro-batch could not be rehearsed", exc_info=True)
    finally:
        gradients.clear()
    for layer in trained.layers:
        for name, buffer in layer.named_buffers():
            _restore(buffer, before.get((layer, name)))


def _restore(buffer: "Tensor", before: "Tensor | None") -> None:
    if before is not None and before.shape == buffer.shape:
        buffer.detach().copy_(before)
