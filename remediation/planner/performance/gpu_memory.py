"""Bytes of the fullest GPU of a layout: a layout that does not fit is never proposed.

States: weights in half precision, gradients, and 12 bytes a parameter for Adam (fp32 weights and two moments; ZeRO,
Rajbhandari et al., 2020, section 3.1), the latter divided by the data-parallel ranks where the optimizer is sharded.
Activations of one layer and micro-batch (Korthikanti et al., 2022, equations 2 to 6, s·b·h = sequence·batch·hidden):

    none       s·b·h · (10 + 24/t + 5·a·s/(h·t))      selective   s·b·h · (10 + 24/t)      full   2·s·b·h
"""

import numpy as np
from numpy.typing import NDArray

from .hardware import GIB, Hardware
from .model_shape import HALF
from .parallel_layout import ParallelLayouts
from .training_run import TrainingRun

ADAM_BYTES = 12.0
LOGIT_BYTES = 8.0
"""A logit in half precision and in fp32, and its gradient. [assumption: no loss fused with the head]"""
RESERVED_BYTES = 3.0 * GIB
"""Context, communication buffers, fragmentation. [assumption]"""

Floats = NDArray[np.float64]


def stage_bytes(run: TrainingRun, layouts: ParallelLayouts) -> Floats:
    """(layouts,) of a GPU of the fullest stage: the first holds most micro-batches, the last the logits."""
    states, first, last = _states(run, layouts), _activations(run, layouts, first=True), _activations(run, layouts, first=False)
    return states + np.maximum(first, last + _logits(run, layouts))


def fits(run: TrainingRun, hardware: Hardware, layouts: ParallelLayouts) -> NDArray[np.bool_]:
    """(layouts,) whether the fullest GPU has room."""
    return np.asarray(stage_bytes(run, layouts) + RESERVED_BYTES <= hardware.memory_bytes)


def stage_parameters(run: TrainingRun, layouts: ParallelLayouts) -> Floats:
    """(layouts,) of one GPU: its share of the layers and of the embedding (the first and the last stage have it)."""
    layers = run.stage_layers(layouts) * float(run.shape.layer_parameters)
    return (layers + run.shape.embedding_parameters) / layouts.tensor


def layer_activation_share(run: TrainingRun, layouts: ParallelLayouts) -> tuple[Floats, Floats]:
    """(layouts,) bytes per s·b·h of one layer on one GPU: beside the attention scores, and the scores."""
    norms = 10.0 / (layouts.tensor if run.sequence_parallel else 1)
    return norms + 24.0 / layouts.tensor, run.shape.score_share / layouts.tensor


def _states(run: TrainingRun, layouts: ParallelLayouts) -> Floats:
    adam = ADAM_BYTES / layouts.data if run.sharded_optimizer else ADAM_BYTES
    return stage_parameters(run, layouts) * (HALF + run.gradient_bytes + adam)


def _activations(run: TrainingRun, layouts: ParallelLayouts, *, first: bool) -> Floats:
    """1F1B holds as many micro-batches as stages follow; interleaving holds (p - 1)/(p·v) of a stage more."""
    whole, scores = layer_activation_share(run, layouts)
    kept = np.choose(layouts.recompute, [whole + scores, whole, np.full(len(layouts), 2.0)])
    in_flight = np.minimum(layouts.pipeline if first else 1, run.micro_batches(layouts)).astype(np.float64)
    in_flight *= np.where(layouts.interleave > 1, 1 + (layouts.pipeline - 1) / (layouts.pipeline * layouts.interleave), 1.0)
    working = np.choose(layouts.recompute, [np.zeros(len(layouts)), scores, whole + scores])
    unit = float(run.shape.sequence * run.shape.hidden) * layouts.micro_batch
    return np.asarray(unit * (kept * in_flight * run.stage_layers(layouts) + working))


def _logits(run: TrainingRun, layouts: ParallelLayouts) -> Floats:
    return LOGIT_BYTES * run.shape.sequence * run.shape.vocabulary * layouts.micro_batch / layouts.tensor
