"""What training must end with, whatever happened on the way: one process, no runtime of ours, a few lines.

    python -m benchmarks.elastic.reference --steps 20                      the sha256 that every healed run must have
    python -m benchmarks.elastic.reference --steps 20 --flip 7:3           one bit of step 7's micro-batch 3 is wrong

The gradients of a step's micro-batches are added up in the order of a fixed binary tree: the sum of a range is the sum
of its halves' sums. Floating-point addition is not associative, so this order is what makes the bits; it says nothing
of who computed what, and that is the point.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from benchmarks.elastic.byte_gpt import MICRO_BATCHES, SIZES, batch_of, layers_of, loss_of, optimizer_of, parameters_of

Leaf = Callable[[int], Tensor]


class Reference:
    """The whole of a training run, step after step."""

    def __init__(self, size: str, flip: tuple[int, int] | None = None) -> None:
        torch.set_num_threads(1)  # another number of threads adds in another order
        self.size, self.flip = SIZES[size], flip
        self.layers = layers_of(self.size)
        self.parameters = parameters_of(self.layers)
        self.optimizer = optimizer_of(self.parameters)

    def run(self, steps: int) -> Iterator[float]:
        """Train; yields each step's loss."""
        for step in range(steps):
            yield self.step(step)

    def step(self, step: int) -> float:
        losses: list[float] = []
        self.spread(tree_sum(0, MICRO_BATCHES, lambda micro: self.gradient(step, micro, losses)) / MICRO_BATCHES)
        self.optimizer.step()
        return sum(losses) / MICRO_BATCHES

    def gradient(self, step: int, micro: int, losses: list[float]) -> Tensor:
        """One micro-batch's gradient of all parameters, flat."""
        stream, targets = batch_of(self.size, step, micro)
        for layer in self.layers:
            stream = layer(stream)
        loss = loss_of(stream, targets)
        gradients = torch.autograd.grad(loss, self.parameters)
        losses.append(loss.item())
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        if (step, micro) == self.flip:
            flip_one_bit(flat)
        return flat

    def spread(self, flat: Tensor) -> None:
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, part in zip(self.parameters, flat.split(sizes), strict=True):
            parameter.grad = part.view_as(parameter)

    def digest(self) -> str:
        return digest(self.layers, self.optimizer)


def tree_sum(first: int, end: int, leaf: Leaf) -> Tensor:
    """The sum of leaves `first` to `end`, halves first."""
    if end - first == 1:
        return leaf(first)
    middle = (first + end) // 2
    return tree_sum(first, middle, leaf) + tree_sum(middle, end, leaf)


def flip_one_bit(gradient: Tensor) -> None:
    """Make the largest number of a flat float32 tensor wrong in one bit of its fraction.

    Not in the lowest: adding it to a larger sum may round that away, and then nothing is wrong.
    """
    gradient.view(torch.int32)[gradient.abs().argmax()] ^= 1 << 16


def digest(layers: Sequence[nn.Module], optimizer: torch.optim.Optimizer) -> str:
    """sha256 over the bytes of, by layer, its parameters and then each parameter's optimizer state sorted by name."""
    found = hashlib.sha256()
    for layer in layers:
        parameters = [parameter for _, parameter in layer.named_parameters()]
        for parameter in parameters:
            found.update(bytes_of(parameter))
        for parameter in parameters:
            for _, value in sorted(optimizer.state[parameter].items()):
                found.update(bytes_of(value))
    return found.hexdigest()


def bytes_of(tensor: Tensor) -> bytes:
    """The bytes of its elements in order."""
    flat = tensor.detach().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes()


def main() -> int:
    """Train and print the hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--flip", metavar="STEP:MICRO-BATCH", help="flip one bit of this gradient")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    step, _, micro_batch = (options.flip or "").partition(":")
    flip = (int(step), int(micro_batch)) if options.flip else None
    reference = Reference(options.size, flip)
    losses = list(reference.run(options.steps))
    if options.json:
        print(json.dumps({"sha256": reference.digest(), "losses": losses}))
    else:
        print(f"loss {losses[0]:.6f} → {losses[-1]:.6f} in {options.steps} steps\nsha256 {reference.digest()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
