"""The training script of our own rows: `eagle_eye.elastic`, and a note of every step that was committed.

    eagle-eye launch --nproc-per-node 4 -- python -m benchmarks.elastic.job --steps 40 --reduction exact

The last note of a worker that came to the end holds the sha256 of its parameters and optimizer state.
"""

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import eagle_eye
from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, batch_of, layers_of, loss_of, optimizer_of, parameters_of
from benchmarks.elastic.commits import Written, be_late, hang_when_told
from benchmarks.elastic.reference import flip_one_bit


class Counted:
    """Batches, and which of a step's this worker has computed."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch
        self.computed: list[tuple[int, int]] = []

    def __call__(self, step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        self.computed.append((step, micro_batch))
        return self._batch(step, micro_batch)

    def taken(self, step: int) -> list[int]:
        """Of the step that was committed; begin anew. What was computed of another one was a rehearsal."""
        taken, self.computed = [micro_batch for of, micro_batch in self.computed if of == step], []
        return taken


class Flipped:
    """Batches as they should be, and one gradient with one wrong bit."""

    def __init__(self, batch: Any, at: tuple[int, int], parameter: Tensor) -> None:
        self._batch, self._at = batch, at
        self._now: tuple[int, int] | None = None
        parameter.register_hook(self._spoiled)

    def __call__(self, step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        self._now = (step, micro_batch)
        return self._batch(step, micro_batch)

    def _spoiled(self, gradient: Tensor) -> Tensor | None:
        if self._now != self._at:
            return None
        spoiled = gradient.clone()
        flip_one_bit(spoiled.view(-1))
        return spoiled


def main() -> None:
    """Train to the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--reduction", choices=("exact", "fast"), default="exact")
    parser.add_argument("--flip", metavar="STEP:MICRO-BATCH", help="flip one bit of this gradient")
    parser.add_argument("--late", type=int, default=0, metavar="STEPS", help="a replacement begins after so many steps without it")
    options = parser.parse_args()
    if options.late and os.environ.get("EAGLE_EYE_JOINING") == "1":
        be_late(options.late)
    torch.set_num_threads(1)
    hang_when_told()
    layers = layers_of(SIZES[options.size])
    batch: Callable[[int, int], tuple[Tensor, Tensor]] = partial(batch_of, SIZES[options.size])
    if options.flip:
        of, micro_batch = map(int, options.flip.split(":"))
        batch = Flipped(batch, (of, micro_batch), parameters_of(layers)[0])
    counted = Counted(batch)
    worker = eagle_eye.elastic(
        layers=layers, loss=loss_of, optimizer=optimizer_of, batch=counted, micro_batches=MICRO_BATCHES,
        reduction=options.reduction,
    )  # fmt: skip
    written = Written(os.environ.get("EAGLE_EYE_WORKER", "alone"))
    for step in worker.steps(until=options.steps):
        loss = step.run()
        sha256 = worker.train_state.digest() if step.number == options.steps - 1 else ""
        result = step.result
        if result.micro_batches:  # else the others did it while we were fenced out
            written.add(
                step.number, loss, epoch=result.epoch, micro_batches=result.micro_batches, computed=counted.taken(step.number),
                sha256=sha256,
            )  # fmt: skip


if __name__ == "__main__":
    main()
