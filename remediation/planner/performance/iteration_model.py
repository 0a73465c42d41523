"""Seconds of one iteration of a layout: compute, collectives, the pipeline's bubble, gradients, optimizer.

Of one layer and micro-batch, on one of t tensor-parallel GPUs (b samples, h hidden, s tokens; forward 1, backward 2,
recomputation up to 1 more, together r):

    products      r · b · FLOPs / t / (peak · compute_share · w / (w + half_width)),   w = h / sqrt(t)
    streaming     r · 2 · bytes of activations / memory_bytes_s             each is written once and read once
    all-reduce    2 per pass: forward, backward, full recomputation         of b·s·h half-precision numbers
    kernels       kernel_s per pass: forward 1, backward 2, full recomputation 1
    a pass never takes less than launch_s (4-norm of both, so that it is smooth)

A ring all-reduce of n bytes among g ranks takes 2·(g-1)/g · n / bandwidth + latency·log2(g). Of a group that has k ranks
in each node the bandwidth is the least of link and k shares of the network: NCCL's rings use all adapters of the node,
which all groups of the node share. Pipeline, 1F1B (Narayanan et al., SC'21, section 2.2), m micro-batches, p stages,
v chunks: (m - 1)·slowest + all stages once, the bubble's part of it divided by v.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .coefficients import Coefficients
from .gpu_memory import layer_activation_share, stage_parameters
from .hardware import Hardware
from .model_shape import HALF
from .parallel_layout import Integers, ParallelLayouts, Recompute
from .training_run import TrainingRun

Floats = NDArray[np.float64]
SMOOTH = 4.0
LOGIT_TRAFFIC = 32.0
"""Bytes that the loss moves per logit: fp16 and fp32 copies, soft-max and gradient, each written and read. [assumption]"""
OPTIMIZER_TRAFFIC = 40.0
"""Bytes that an Adam step moves per parameter: fp32 weight and two moments read and written, gradient, half-precision
weight, and the scan for overflow."""


class IterationTimes(NamedTuple):
    """(layouts,) seconds each; `total` is their sum."""

    compute: Floats
    """Of the slowest stage, all micro-batches: products, streaming, recomputation, head."""
    tensor: Floats
    """Its tensor-parallel all-reduces."""
    bubble: Floats
    """Waiting for other stages, and sending to them."""
    data: Floats
    """All-reduce of the gradients; nothing of it is hidden."""
    optimizer: Floats

    @property
    def total(self) -> Floats:
        return self.compute + self.tensor + self.bubble + self.data + self.optimizer


def iteration_times(run: TrainingRun, hardware: Hardware, known: Coefficients, layouts: ParallelLayouts) -> IterationTimes:
    """Of each layout; whether it fits is another matter."""
    layer, collective = _layer(run, hardware, known, layouts)
    depth, batches = run.stage_layers(layouts), run.micro_batches(layouts)
    head = _head(run, hardware, known, layouts)
    send = _send(run, hardware, known, layouts)
    stage = layer * depth
    last = layer * (run.shape.layers - depth * (layouts.pipeline - 1)).clip(1) + head
    slowest = np.maximum(stage, last)
    once = stage * (layouts.pipeline - 1) + last
    sent = send * (batches + layouts.pipeline - 1) * layouts.interleave
    bubble = (once - slowest) / layouts.interleave + sent
    share = collective * depth
    return IterationTimes(
        compute=batches * (slowest - share),
        tensor=batches * share,
        bubble=bubble,
        data=_gradients(run, hardware, known, layouts),
        optimizer=_optimizer(run, known, layouts),
    )


def _layer(run: TrainingRun, hardware: Hardware, known: Coefficients, layouts: ParallelLayouts) -> tuple[Floats, Floats]:
    """(layouts,) seconds of one layer for one micro-batch, forward and backward, and what all-reduces are of it."""
    shape, full = run.shape, layouts.recompute == Recompute.FULL
    scores_again = layouts.recompute == Recompute.SELECTIVE
    flops = shape.layer_flops * np.where(full, 4.0, 3.0) + shape.attention_flops * scores_again
    products = layouts.micro_batch * flops / layouts.tensor / _rate(run, hardware, known, layouts)
    beside, scores = layer_activation_share(run, layouts)
    unit = float(shape.sequence * shape.hidden) * layouts.micro_batch
    moved = 2 * unit * (np.where(full, 4.0, 3.0) * (beside + scores) + scores_again * scores)
    passes = np.where(full, 4.0, 3.0)
    collective = np.where(full, 6.0, 4.0) * _ring(np.asarray(HALF * unit, dtype=np.float64), layouts.tensor, np.minimum(layouts.tensor, hardware.gpus_per_node), known)
    work = products + moved / known.memory_bytes_s + collective + passes * known.kernel_s
    seconds = (work**SMOOTH + (passes * known.launch_s) ** SMOOTH) ** (1 / SMOOTH)
    return seconds, collective


def _rate(run: TrainingRun, hardware: Hardware, known: Coefficients, layouts: ParallelLayouts) -> Floats:
    """(layouts,) FLOP/s of matrix products."""
    width = run.shape.hidden / np.sqrt(layouts.tensor)
    return hardware.peak_flops * known.compute_share * width / (width + known.half_width)


def _ring(size: Floats, ranks: Integers, in_node: Integers, known: Coefficients) -> Floats:
    """(layouts,) seconds of an all-reduce of so many bytes, of groups with `in_node` ranks in each node."""
    bandwidth = np.where(ranks > in_node, np.minimum(known.link_bytes_s, known.network_bytes_s * in_node), known.link_bytes_s)
    steps = np.maximum(in_node - 1, 0) + np.log2(np.maximum(ranks / in_node, 1))
    return 2 * (ranks - 1) / ranks * size / bandwidth + known.latency_s * steps


def _head(run: TrainingRun, hardware: Hardware, known: Coefficients, layouts: ParallelLayouts) -> Floats:
    """(layouts,) seconds of the logits and the loss of one micro-batch."""
    logits = run.shape.sequence * run.shape.vocabulary * layouts.micro_batch / layouts.tensor
    products = 3 * run.shape.head_flops * layouts.micro_batch / layouts.tensor / _rate(run, hardware, known, layouts)
    return products + LOGIT_TRAFFIC * logits / known.memory_bytes_s


def _send(run: TrainingRun, hardware: Hardware, known: Coefficients, layouts: ParallelLayouts) -> Floats:
    """(layouts,) seconds in which a stage sends one micro-batch on and its gradient back; each tensor rank sends its part."""
    size = float(HALF * run.shape.sequence * run.shape.hidden) * layouts.micro_batch / layouts.tensor
    bandwidth = np.where(layouts.gpus > hardware.gpus_per_node, known.network_bytes_s, known.link_bytes_s)
    return np.where(layouts.pipeline > 1, 2 * (size / bandwidth + known.latency_s), 0.0)


def _gradients(run: TrainingRun, hardware: Hardware, known: Coefficients, layouts: ParallelLayouts) -> Floats:
    in_node = np.clip(hardware.gpus_per_node // layouts.tensor, 1, layouts.data)
    return _ring(stage_parameters(run, layouts) * run.gradient_bytes, layouts.data, in_node, known)


def _optimizer(run: TrainingRun, known: Coefficients, layouts: ParallelLayouts) -> Floats:
    shards = layouts.data if run.sharded_optimizer else 1
    return stage_parameters(run, layouts) * OPTIMIZER_TRAFFIC / shards / known.memory_bytes_s
