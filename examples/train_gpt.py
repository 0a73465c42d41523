"""A byte-level GPT on the source of Python's own standard library.

    python examples/train_gpt.py --steps 100
    torchrun --nproc-per-node 4 examples/train_gpt.py --steps 100
    eagle-eye launch --nproc-per-node 4 -- python examples/train_gpt.py --steps 100

The batch of a step is a function of seed, step and micro-batch alone, and the number of micro-batches of a step
does not depend on how many ranks share them. Each rank adds up its micro-batches' gradients in float64 and the
sums are reduced in float64. Addition is not associative, but the order of float64 additions moves a float32
gradient only where it lies within 1e-16 of the border between two float32 numbers: so the loss is the same
whether 1, 2, 3 or 4 ranks do the work, and a run that lost a node can be compared with one that did not.

It resumes from its newest checkpoint by itself when it is given a directory for them.
"""

import argparse
import math
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import eagle_eye
from eagle_eye.training import checkpoint

BYTES = 256
CORPUS_BYTES = 2_000_000
HELD_OUT = 0.05
"""Part of the text, at its end, that is never trained on."""
SEQUENCES = 4
"""Sequences of a micro-batch."""
WARM_UP_STEPS = 10
LOG_EVERY = 10


class Block(nn.Module):
    """Attention and a perceptron, each added to the stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, stream: Tensor) -> Tensor:
        batch, length, width = stream.shape
        joined = self.queries_keys_values(self.norm_attention(stream))
        query, key, value = joined.view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.project(seen.transpose(1, 2).reshape(batch, length, width))
        return stream + self.perceptron(self.norm_perceptron(stream))


class Gpt(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers: int, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(BYTES, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)

    def forward(self, text: Tensor) -> Tensor:
        """Mean cross entropy, in nats, over `text`: sequences × (context + 1) bytes."""
        given, targets = text[:, :-1], text[:, 1:]
        stream = self.byte(given) + self.position(torch.arange(given.shape[1]))
        scores = self.head(self.norm(self.blocks(stream)))
        return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def corpus() -> Tensor:
    """The first CORPUS_BYTES of the standard library's modules, in the order of their names."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= CORPUS_BYTES:
            break
    return torch.frombuffer(text[:CORPUS_BYTES], dtype=torch.uint8)


def batch_of(text: Tensor, context: int, seed: int, step: int, micro: int) -> Tensor:
    """SEQUENCES × (context + 1) bytes: the same for the same seed, step and micro-batch, on every worker."""
    generator = torch.Generator().manual_seed(hash((seed, step, micro)) & 0x7FFF_FFFF_FFFF_FFFF)
    starts = torch.randint(len(text) - context - 1, (SEQUENCES, 1), generator=generator)
    return text[starts + torch.arange(context + 1)].long()


class Trainer:
    """One rank of the run."""

    def __init__(self, options: argparse.Namespace, rank: int, world: int) -> None:
        self.options, self.rank, self.world = options, rank, world
        self.monitor = eagle_eye.monitor()
        torch.manual_seed(options.seed)  # the same first weights on every rank
        self.model = Gpt(options.layers, options.width, options.heads, options.context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=options.lr)
        self.monitor.replicas(self.model.parameters())
        text = corpus()
        border = int(len(text) * (1 - HELD_OUT))
        self.text, self.held_out = text[:border], text[border:]
        size = sum(parameter.numel() for parameter in self.model.parameters())
        self.sums = torch.zeros(size + 1, dtype=torch.float64)
        """The gradients of all parameters and, last, the loss: summed over micro-batches."""

    def run(self) -> None:
        start = self.resume()
        for batches in self.monitor.steps(self.batches(start), start):
            step = self.monitor.step  # not counted here: a step that the launcher wants skipped is not seen
            loss = self.step(step, batches)
            if self.rank == 0 and (step % LOG_EVERY == 0 or step == self.options.steps - 1):
                print(f"step {step} loss {loss:.6f}", flush=True)
            if (step + 1) % self.options.evaluate_every == 0:
                self.evaluate(step)
            if (step + 1) % self.options.checkpoint_every == 0:
                self.save(step + 1)

    def batches(self, start: int) -> Iterator[list[Tensor]]:
        """My share of each step's micro-batches."""
        options = self.options
        for step in range(start, options.steps):
            mine = range(self.rank, options.micro_batches, self.world)
            yield [batch_of(self.text, options.context, options.seed, step, micro) for micro in mine]

    def step(self, step: int, batches: list[Tensor]) -> float:
        """One step of the optimizer. Returns the mean loss over the micro-batches of all ranks."""
        for batch in batches:
            self.add_gradients(batch)
        mine = self.sums[-1].item() / max(1, len(batches))
        with self.monitor.phase("communication"):
            if self.world > 1:
                dist.all_reduce(self.sums)
        with self.monitor.phase("optimizer"):
            norm = self.apply(step)
        loss = self.sums[-1].item()
        self.sums.zero_()
        self.monitor.log(loss=mine, tokens=sum(batch.numel() for batch in batches), grad_norm=norm)
        return loss

    def add_gradients(self, batch: Tensor) -> None:
        with self.monitor.phase("forward"):
            loss = self.model(batch)
        with self.monitor.phase("backward"):
            self.optimizer.zero_grad()
            loss.backward()
            gradients = [parameter.grad.flatten() for parameter in self.model.parameters()]
            self.sums += torch.cat([*gradients, loss.detach().view(1)])

    def apply(self, step: int) -> float:
        """Take the step that the mean gradient, cut to a norm of 1, asks for. Returns the norm before the cut."""
        self.sums /= self.options.micro_batches
        norm = self.sums[:-1].norm().item()
        gradient = (self.sums[:-1] * min(1.0, 1.0 / (norm + 1e-6))).float()
        parameters = list(self.model.parameters())
        for parameter, part in zip(parameters, gradient.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = part.view_as(parameter)
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.lr * min(1.0, (step + 1) / WARM_UP_STEPS)
        self.optimizer.step()
        return norm

    @torch.no_grad()
    def evaluate(self, step: int) -> None:
        """Print the loss on text that was never trained on; the ranks share the work."""
        with self.monitor.phase("evaluation"):
            options = self.options
            mine = range(self.rank, options.micro_batches, self.world)
            batches = (batch_of(self.held_out, options.context, options.seed, -1, micro) for micro in mine)
            total = torch.tensor(math.fsum(self.model(batch).item() for batch in batches), dtype=torch.float64)
            if self.world > 1:
                self.monitor.mark("communication")  # a rank that hangs before this is distinguished from those that wait for it
                dist.all_reduce(total)
            if self.rank == 0:
                print(f"step {step} held-out loss {total.item() / options.micro_batches:.6f}", flush=True)

    def save(self, step: int) -> None:
        if self.rank == 0 and self.options.checkpoint_dir:
            with self.monitor.phase("checkpoint"):
                state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
                checkpoint.save(state, step, self.options.checkpoint_dir)

    def resume(self) -> int:
        """Take up the newest checkpoint; returns the number of the first step to do."""
        found = checkpoint.load(self.options.checkpoint_dir) if self.options.checkpoint_dir else None
        if found is None:
            return 0
        state, step = found
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.rank == 0:
            print(f"resumed at step {step}", flush=True)
        return step


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--micro-batches", type=int, default=12, help="of a step, over all ranks")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--evaluate-every", type=int, default=50)
    parser.add_argument(
        "--checkpoint-dir",
        default=os.environ.get("EAGLE_EYE_CHECKPOINT_DIR", ""),
        help="default: the launcher's; without either nothing is saved",
    )
    return parser.parse_args(arguments)


def main() -> None:
    """Join the other ranks, train, leave."""
    options = options_of()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    Trainer(options, rank, world).run()
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
