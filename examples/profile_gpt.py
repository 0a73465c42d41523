"""The model of train_gpt.py, layer by layer, as `eagle-eye profile examples/profile_gpt.py` wants it."""

import torch
from torch import Tensor, nn
from train_gpt import BYTES, Block

WIDTH, HEADS, BLOCKS, CONTEXT = 128, 4, 6, 128


class Embedding(nn.Module):
    """Bytes and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.position = nn.Embedding(BYTES, WIDTH), nn.Embedding(CONTEXT, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        return self.byte(text) + self.position(torch.arange(text.shape[1], device=text.device))


def layers() -> list[tuple[str, nn.Module]]:
    """In the order in which a batch passes through them."""
    blocks = [(f"block {number}", Block(WIDTH, HEADS)) for number in range(1, BLOCKS + 1)]
    return [("embedding", Embedding()), *blocks, ("head", nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, BYTES)))]


def batch(size: int) -> Tensor:
    """So many sequences of bytes."""
    return torch.randint(BYTES, (size, CONTEXT))
