"""Small models, and plain training of them in one process that knows nothing of our runtime."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from eagle_eye.training.elastic.model import seed_of

WORDS, WIDTH, LENGTH = 11, 8, 5


class Unused(nn.Module):
    """Holds a parameter that takes part in every other micro-batch only, by the parity of its first word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.sometimes = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.ones(WIDTH))

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        stream = self.embedding(text)
        return stream * self.sometimes if int(text[0, 0]) % 2 else stream


class Scores(nn.Module):
    """The stream → scores, with the weights of the embedding."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, stream: torch.Tensor) -> torch.Tensor:
        return functional.linear(stream, self.weight)


@dataclass(frozen=True)
class Recipe:
    """A training."""

    micro_batches: int = 6
    clip: float | None = None
    scheduled: bool = False
    precision: str = "fp32"
    tied: bool = False
    dropout: float = 0.0
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW

    def layers(self) -> list[nn.Module]:
        torch.manual_seed(3)
        first = Unused()
        last = Scores(first.embedding.weight) if self.tied else nn.Linear(WIDTH, WORDS)
        middle = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(self.dropout))
        return [first, middle, last]

    def optimizer_of(self, parameters: Any) -> torch.optim.Optimizer:
        return self.optimizer(parameters, lr=0.05, foreach=False)

    def scheduler_of(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)

    def options(self) -> dict[str, Any]:
        """What `TrainedModel` is to be given."""
        return {
            "loss": loss_of, "batch": batch_of, "optimizer": self.optimizer_of, "clip": self.clip, "precision": self.precision,
            "scheduler": self.scheduler_of if self.scheduled else None, "seed": 5,
        }


RECIPES = {
    "plain": Recipe(),
    "momentum": Recipe(optimizer=partial(torch.optim.SGD, momentum=0.9)),
    "clip": Recipe(clip=0.05),
    "scheduler": Recipe(scheduled=True),
    "bf16": Recipe(precision="bf16", micro_batches=5),
    "tied": Recipe(tied=True, micro_batches=7),
    "dropout": Recipe(dropout=0.3),
    "everything": Recipe(clip=0.05, scheduled=True, precision="bf16", tied=True, dropout=0.3, micro_batches=8),
}


def batch_of(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + micro_batch)
    text = torch.randint(WORDS, (2, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def loss_of(scores: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1).float(), wanted.flatten())


def digest(layers: list[nn.Module], optimizer: torch.optim.Optimizer) -> str:
    """sha256 of every parameter and of all that the optimizer holds."""
    found = hashlib.sha256()
    for layer in layers:
        for parameter in layer.parameters():
            found.update(_bytes_of(parameter))
    for group in optimizer.param_groups:
        found.update(repr(group["lr"]).encode())
        for parameter in group["params"]:
            found.update(_bytes_of(parameter))
            for _, value in sorted(optimizer.state[parameter].items()):
                found.update(_bytes_of(value) if isinstance(value, torch.Tensor) else repr(value).encode())
    return found.hexdigest()


Spoil = Callable[[int, int, list[torch.Tensor]], None]
"""Changes the gradients of a micro-batch of a step."""


@cache
def train(recipe: Recipe, steps: int, spoil: Spoil | None = None) -> tuple[str, tuple[float, ...]]:
    """Hash of the state at the end, and the mean loss of each step."""
    training = Sequential(recipe, spoil)
    means = tuple(training.step(step) for step in range(steps))
    return digest(training.layers, training.optimizer), means


class Sequential:
    """All micro-batches one after another; their gradients are added up in the order of the halving tree."""

    def __init__(self, recipe: Recipe, spoil: Spoil | None = None) -> None:
        self.recipe, self.spoil, self.layers = recipe, spoil, recipe.layers()
        self.parameters = list(nn.ModuleList(self.layers).parameters())
        self.updated = self.parameters
        if recipe.precision == "bf16":
            self.updated = [nn.Parameter(each.detach().clone()) for each in self.parameters]
            self.layers = [layer.bfloat16() for layer in self.layers]
        self.optimizer = recipe.optimizer_of(self.updated)
        self.scheduler = recipe.scheduler_of(self.optimizer) if recipe.scheduled else None

    def step(self, step: int) -> float:
        losses: list[float] = []
        for parameter, total in zip(self.updated, self.added(0, self.recipe.micro_batches, step, losses), strict=True):
            parameter.grad = total / self.recipe.micro_batches
        if self.recipe.clip is not None:
            nn.utils.clip_grad_norm_(self.updated, self.recipe.clip)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        with torch.no_grad():
            for parameter, master in zip(self.parameters, self.updated, strict=True):
                parameter.copy_(master)
        return sum(losses) / len(losses)

    def added(self, first: int, end: int, step: int, losses: list[float]) -> list[torch.Tensor]:
        if end - first == 1:
            return self.gradients(step, first, losses)
        middle = (first + end) // 2
        left, right = self.added(first, middle, step, losses), self.added(middle, end, step, losses)
        return [one + other for one, other in zip(left, right, strict=True)]

    def gradients(self, step: int, micro_batch: int, losses: list[float]) -> list[torch.Tensor]:
        torch.manual_seed(seed_of(5, step, micro_batch))
        stream, wanted = batch_of(step, micro_batch)
        for layer in self.layers:
            stream = layer(stream)
        loss = loss_of(stream, wanted)
        losses.append(loss.item())
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        full = [torch.zeros_like(one).float() if part is None else part.float() for one, part in zip(self.parameters, found, strict=True)]
        if self.spoil is not None:
            self.spoil(step, micro_batch, full)
        return full


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
