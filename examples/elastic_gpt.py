"""A byte-level GPT whose workers may die, hang, join or slow down while it trains: the losses stay the same, bit by bit.

    eagle-eye run --nproc-per-node 4 -- python examples/elastic_gpt.py --steps 200
    eagle-eye drill kill --rank 2        in another terminal meanwhile

kill -9 of a worker, and yet the step it was in ends as if nothing had happened, and another worker takes its place.

Alone, `python examples/elastic_gpt.py --steps 20`, it prints the same losses.
"""

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional
from train_gpt import BYTES, Block, batch_of, corpus

import eagle_eye

SEED = 1


class Embedding(nn.Module):
    """Bytes and their positions."""

    def __init__(self, width: int, context: int) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(BYTES, width), nn.Embedding(context, width)

    def forward(self, text: Tensor) -> Tensor:
        return self.byte(text) + self.position(torch.arange(text.shape[1]))


class Head(nn.Module):
    """Scores of the next byte."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, stream: Tensor) -> Tensor:
        return self.scores(self.norm(stream))


def layers_of(options: argparse.Namespace) -> list[nn.Module]:
    """Embedding, blocks, head; the same first weights in every worker."""
    torch.manual_seed(SEED)
    blocks = [Block(options.width, options.heads) for _ in range(options.layers)]
    return [Embedding(options.width, options.context), *blocks, Head(options.width)]


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy, in nats."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train for the steps that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("steps", 200), ("layers", 4), ("width", 128), ("heads", 4), ("context", 64), ("micro-batches", 16)):
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default {value}")
    parser.add_argument("--reduction", choices=("exact", "fast"), default="exact", help="default exact: the same bits for any number of workers")
    options = parser.parse_args()
    text = corpus()

    def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        given = batch_of(text, options.context, SEED, step, micro_batch)
        return given[:, :-1], given[:, 1:]

    monitor = eagle_eye.monitor()
    worker = eagle_eye.elastic(
        layers_of(options), loss=loss_of, batch=batch, micro_batches=options.micro_batches, reduction=options.reduction,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3), clip=1.0, save_every=50,
    )  # fmt: skip
    for step in worker.steps(until=options.steps):
        loss = step.run()
        monitor.log(loss=loss, tokens=step.tokens)
        if worker.rank == 0:
            print(f"step {step.number} loss {loss!r} workers {len(step.result.micro_batches)}", flush=True)


if __name__ == "__main__":
    main()
