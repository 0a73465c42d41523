"""A transformer as the performance model sees it: its dimensions, and the work and memory that follow from them.

Formulas: Narayanan et al., SC'21 (Megatron-LM), section 5.1 and appendix, for FLOPs; Korthikanti et al., 2022,
section 4, for activations.
"""

import math
from dataclasses import dataclass, fields

from eagle_eye.errors import ConfigError

HALF = 2
"""Bytes of a number in half precision (fp16, bf16)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Decoder layers of equal size between an embedding and a head. Raises ConfigError for dimensions that cannot be."""

    layers: int
    hidden: int
    heads: int
    sequence: int
    """Tokens of a sample."""
    vocabulary: int = 51200
    feed_forward: int = 0
    """Inner width of the feed-forward part; 0: four times `hidden`."""
    fused_attention: bool = False
    """The scores (heads × sequence × sequence) are never written to memory (FlashAttention)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("feed_forward", "fused_attention") else 1
            if not math.isfinite(value) or value < least:
                raise ConfigError(f"model: {field.name} is {value}; it must be {least} or more")
        if self.hidden % self.heads:
            raise ConfigError(f"model: hidden is {self.hidden}, no multiple of the {self.heads} heads")

    @property
    def inner(self) -> int:
        """Width of the feed-forward part."""
        return self.feed_forward or 4 * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Of one layer: attention 4·h², feed-forward 2·h·inner; biases and norms are left out."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.inner

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding, which the head shares."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def attention_flops(self) -> float:
        """Scores and their product with the values, forward, one layer, one sample."""
        return 4.0 * self.sequence**2 * self.hidden

    @property
    def layer_flops(self) -> float:
        """Forward, one layer, one sample."""
        return 2.0 * self.sequence * self.layer_parameters + self.attention_flops

    @property
    def head_flops(self) -> float:
        """Forward, the logits of one sample."""
        return 2.0 * self.sequence * self.embedding_parameters

    @property
    def sample_flops(self) -> float:
        """Model FLOPs of one sample, forward and backward (twice the forward); recomputation does not count."""
        return 3.0 * (self.layers * self.layer_flops + self.head_flops)

    @property
    def score_share(self) -> float:
        """The 5·a·s/h of Korthikanti's activation formula: bytes of attention scores per sequence·batch·hidden."""
        return 0.0 if self.fused_attention else 5.0 * self.heads * self.sequence / self.hidden
