"""The model that every benchmark of healing trains: a GPT on bytes as a list of layers, whose data come from seeds.

Nothing here knows who trains it: our worker, plain DDP, torchrun, torchft and the reference share these functions, so
a step is the same work for each of them. A layer's first weights depend on its place alone, a micro-batch on its step
and number alone: any split over workers starts from the same weights and reads the same bytes.
"""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
MICRO_BATCHES = 16
LEARNING_RATE = 1e-3
STRIDES = 8
"""A sequence counts up by one of so many strides: something that can be learned."""


class Size(NamedTuple):
    """How large the model and its micro-batches are."""

    blocks: int
    width: int
    heads: int
    context: int
    """Bytes of a sequence."""
    sequences: int
    """Sequences of a micro-batch."""


SIZES = {
    "full": Size(blocks=7, width=256, heads=4, context=64, sequences=2),
    "small": Size(blocks=2, width=32, heads=2, context=16, sequences=1),
}
"""`full`: 5.7 M parameters, for what is timed; `small`: for what is only compared bit by bit."""


class Embedding(nn.Module):
    """Bytes and their places → the stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(BYTES, size.width), nn.Embedding(size.context, size.width)

    def forward(self, text: Tensor) -> Tensor:
        return self.byte(text) + self.place.weight[: text.shape[1]]


class Block(nn.Module):
    """Attention and a perceptron, each added to the stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, self.heads = size.width, size.heads
        self.norm_attention, self.norm_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        joined = self.queries_keys_values(self.norm_attention(stream))
        query, key, value = joined.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return stream + self.perceptron(self.norm_perceptron(stream))


class Head(nn.Module):
    """The stream → scores of the next byte."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(size.width), nn.Linear(size.width, BYTES, bias=False)

    def forward(self, stream: Tensor) -> Tensor:
        return self.scores(self.norm(stream))


def layers_of(size: Size, seed: int = 0) -> list[nn.Module]:
    """The layers, first to last."""
    kinds: list[type[nn.Module]] = [Embedding, *[Block] * size.blocks, Head]
    made = []
    for place, kind in enumerate(kinds):
        torch.manual_seed(1000 * seed + place)
        made.append(kind(size))
    return made


def batch_of(size: Size, step: int, micro_batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Bytes and the bytes that follow them, each int64 of sequences × context."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) * 1009 + micro_batch)
    starts = torch.randint(BYTES, (size.sequences, 1), generator=generator)
    strides = torch.randint(1, 1 + STRIDES, (size.sequences, 1), generator=generator)
    text = (starts + strides * torch.arange(size.context + 1)) % BYTES
    return text[:, :-1], text[:, 1:]


def loss_of(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy in nats."""
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def optimizer_of(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW whose arithmetic is the same for every grouping of its parameters."""
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE, foreach=False)


def parameters_of(layers: Iterable[nn.Module]) -> list[nn.Parameter]:
    """By layer, each layer's in their own order."""
    return [parameter for layer in layers for parameter in layer.parameters()]


def share_of(rank: int, world: int) -> range:
    """The micro-batches of one of `world` workers: neighbours, as even as can be."""
    return range(rank * MICRO_BATCHES // world, (rank + 1) * MICRO_BATCHES // world)
