"""A small GPT trained from a memory-mapped file of tokens, with accumulated gradients and clipping, in the manner of nanoGPT."""

import os
import tempfile
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.collect.unmodified.steps_log import StepsLog

BLOCK, BATCH, WORDS, WIDTH, HEADS, LAYERS, ACCUMULATED = 64, 4, 128, 128, 4, 2, 4


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, _ = hidden.shape
        query, key, value = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.inner(hidden).split(WIDTH, dim=2))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.outer(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """One layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.feed_forward = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        hidden = hidden + self.attention(hidden)
        return hidden + self.feed_forward(hidden)


def batch_of(tokens: np.memmap) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets at random places."""
    places = torch.randint(len(tokens) - BLOCK - 1, (BATCH,))
    rows = torch.stack([torch.from_numpy(tokens[place : place + BLOCK + 1].astype(np.int64)) for place in places.tolist()])
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    """Train until the process is ended."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(1 + dist.get_rank())
    file = Path(tempfile.gettempdir()) / f"tokens-{os.getpid()}.bin"
    np.random.default_rng(1).integers(0, WORDS, 1 << 16).astype(np.uint16).tofile(file)
    tokens = np.memmap(file, dtype=np.uint16, mode="r")
    file.unlink()
    network = nn.Sequential(nn.Embedding(WORDS, WIDTH), *(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS))
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    log = StepsLog()
    inputs, targets = batch_of(tokens)
    while True:
        for part in range(ACCUMULATED):
            with nullcontext() if part == ACCUMULATED - 1 else model.no_sync():
                loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()) / ACCUMULATED
                inputs, targets = batch_of(tokens)
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        log.step_done()


if __name__ == "__main__":
    main()
