"""A model as the planner sees it: a chain of layers with their times, their memory and what their collectives cost.

Times are milliseconds and memory is bytes, as in the profiles; nothing here depends on the unit as long as it is one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle_eye.errors import ConfigError

STATE_FACTOR = 6.0
"""Bytes of parameters, gradients and optimizer per byte of half-precision parameters (Oobleck's factor)."""


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """One layer, measured on one GPU with one micro-batch."""

    name: str
    forward: float
    backward: float
    parameter_bytes: float
    activation_bytes: float
    reduce_in_node: Mapping[int, float] = field(default_factory=dict)
    """GPUs of one node that share the layer -> time that it adds to forward and to backward each."""


@dataclass(frozen=True, slots=True)
class LayerChain:
    """The chain."""

    chain: tuple[ProfiledLayer, ...]
    reduce_across: Mapping[int, float] = field(default_factory=dict)
    """Pipelines -> time of the first layer's all-reduce between them, the one that overlaps with nothing."""

    def __len__(self) -> int:
        return len(self.chain)

    def latencies(self, gpus: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """(layers,) forward + backward of one micro-batch when `gpus` of a node share the layer.

        One GPU alone reduces nothing, whatever the profile says. Raises ConfigError where it has no time for so many.
        """
        if gpus == 1:
            return np.array([layer.forward + layer.backward for layer in self.chain])
        missing = next((layer.name for layer in self.chain if gpus not in layer.reduce_in_node), None)
        if missing is not None:
            raise ConfigError(f"layer {missing!r} has no in-node all-reduce time for {gpus} GPUs: profile the model with `--processes {gpus}`, as many as a node has GPUs")
        return np.array(
            [(layer.forward + layer.backward) / gpus + 2 * layer.reduce_in_node[gpus] for layer in self.chain]
        )

    def memory(self, in_flight: int = 1) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """(layers,) bytes: the states, and activations of `in_flight` micro-batches."""
        return np.array([STATE_FACTOR * layer.parameter_bytes + in_flight * layer.activation_bytes for layer in self.chain])

    def state_bytes(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """(layers,) bytes that a node needs copied before it can run the layer."""
        return np.array([STATE_FACTOR * layer.parameter_bytes for layer in self.chain])


def parse_layers(record: Mapping[str, Any]) -> LayerChain:
    """From the decoded JSON of a profile. Raises ConfigError that names the missing or impossible field."""
    try:
        rows: Sequence[Mapping[str, Any]] = record["layers"]
        in_node = record.get("allreduce_in_node") or [{"1": 0.0}] * len(rows)
        across = record.get("allreduce_across_nodes") or [{}]
        chain = tuple(_layer(row, reduce) for row, reduce in zip(rows, in_node, strict=True))
        reduce_across = {int(count): float(time) for count, time in across[0].items()}
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ConfigError(f"the profile is not usable ({type(error).__name__}: {error}); profile the model again") from error
    if not chain:
        raise ConfigError("the profile has no layers; profile the model again")
    return LayerChain(chain, reduce_across)


def _layer(row: Mapping[str, Any], reduce: Mapping[str, float]) -> ProfiledLayer:
    parameters, activation = row["mem_required"]
    layer = ProfiledLayer(
        name=str(row["name"]),
        forward=float(row["forward"]),
        backward=float(row["backward"]),
        parameter_bytes=float(parameters),
        activation_bytes=float(activation),
        reduce_in_node={int(gpus): float(time) for gpus, time in reduce.items()},
    )
    if not all(value >= 0 for value in (layer.forward, layer.backward, layer.parameter_bytes, layer.activation_bytes)):
        raise ValueError(f"layer {layer.name!r} has a negative time or size")
    return layer
