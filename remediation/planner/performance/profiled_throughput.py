"""T(t, x) of a model that was profiled layer by layer (`eagle-eye profile`): through its pipeline templates.

For each number of nodes the best combination of templates and micro-batches (instantiation.py); T is the FLOPs of the
batch over its time. Between nodes the gradients of a node's share of the smallest pipeline are reduced in a ring.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from eagle_eye.errors import UNREADABLE, ConfigError
from eagle_eye.text_file import read_text
from remediation.planner.pipelines.instantiation import instantiate
from remediation.planner.pipelines.layer_profile import LayerChain, parse_layers
from remediation.planner.pipelines.micro_batch_distribution import GroupPace
from remediation.planner.pipelines.template_set import NodeCluster, TemplateSet, make_templates

from .hardware import Hardware

MILLI = 1e-3


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A profile that was read."""

    layers: LayerChain
    """Times in milliseconds."""
    micro_batch: int
    """Samples that they are of."""
    flops: float
    """Of one micro-batch, forward and backward."""


def read_profile(path: Path) -> ProfiledModel:
    """Raises ConfigError for a file that is no profile of `eagle-eye profile`."""
    try:
        record = json.loads(read_text(path))
        profiled = ProfiledModel(parse_layers(record), int(record["micro_batch"]), float(sum(layer["flops"] for layer in record["layers"])))
    except (OSError, *UNREADABLE, KeyError, TypeError, OverflowError) as error:
        raise ConfigError(f"{path}: no profile ({type(error).__name__}: {error}); make one with `eagle-eye profile`") from error
    if profiled.micro_batch < 1 or not profiled.flops > 0:
        raise ConfigError(f"{path}: micro-batch {profiled.micro_batch}, {profiled.flops} FLOPs; profile the model again")
    return profiled


def throughput(profiled: ProfiledModel, hardware: Hardware, nodes: int, global_batch: int) -> NDArray[np.float64]:
    """(GPUs + 1,) FLOP/s at 0, 1, 2, ... GPUs; 0 between whole nodes and where the model does not fit.

    Raises ConfigError where the all-reduce of a node's GPUs was not profiled, or the batch is smaller than a micro-batch.
    """
    total = global_batch // profiled.micro_batch
    if not total:
        raise ConfigError(f"global_batch is {global_batch}, less than the {profiled.micro_batch} samples of the profile's micro-batch")
    node = hardware.gpus_per_node
    templates = make_templates(profiled.layers, NodeCluster(nodes=nodes, gpus_per_node=node, gpu_bytes=hardware.memory_bytes, faults=0))
    paces = {size: GroupPace(plan.pace, plan.fill) for size, plan in templates.by_nodes.items()}
    reduce = _reduce_ms(profiled, templates, hardware, nodes)
    row = np.zeros(nodes * node + 1)
    for count in range(templates.smallest, nodes + 1):
        try:
            found = instantiate(paces, count, total, reduce=reduce)
        except ConfigError:
            continue  # no templates use exactly so many nodes: T is 0 there
        row[count * node] = total * profiled.flops / (found.time * MILLI)
    return row


def _reduce_ms(profiled: ProfiledModel, templates: TemplateSet, hardware: Hardware, nodes: int) -> dict[int, float]:
    share = sum(layer.parameter_bytes for layer in profiled.layers.chain) / templates.smallest
    bandwidth = hardware.network_bytes_s * hardware.gpus_per_node
    return {count: 2 * (count - 1) / count * share / bandwidth / MILLI for count in range(1, nodes // templates.smallest + 1)}
