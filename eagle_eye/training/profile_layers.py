"""Time and memory of each layer of a model, forward and backward, on one device. Needs torch and the standard library.

A layer is measured alone: its input is what the layers before it made of the batch, cut off from their graph. Warm-up
runs are thrown away and the median of the others counts. On a GPU the times are between CUDA events, elsewhere they are
wall clock. Activations are what autograd saves for the backward pass, each storage once and without parameters.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

TimedCall = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """One layer with one micro-batch."""

    name: str
    forward_ms: float
    backward_ms: float
    parameter_bytes: int
    activation_bytes: int
    """Kept from the forward to the backward pass."""
    output_bytes: int
    """What a pipeline sends to the next stage."""
    flops: float
    """Forward and backward: matrix products, convolutions and attention."""
    peak_bytes: int
    """Most that the device held while the layer was measured; 0 where that is not known (no GPU)."""


class WallClock:
    """Milliseconds by the wall, for what runs on the host."""

    def milliseconds(self, work: TimedCall) -> float:
        """Of one run."""
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin) * 1e3


class CudaEvents:
    """Milliseconds between two events in the stream, for what runs on a GPU."""

    def milliseconds(self, work: TimedCall) -> float:
        """Of one run."""
        import torch

        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))


Stopwatch = WallClock | CudaEvents


def stopwatch(device: str) -> Stopwatch:
    """The right one for a device."""
    return CudaEvents() if device.startswith("cuda") else WallClock()


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often each thing is run."""

    warm_up: int = 3
    measured: int = 10

    def median_ms(self, watch: Stopwatch, work: TimedCall) -> float:
        """Of the measured runs."""
        for _ in range(self.warm_up):
            work()
        return statistics.median(watch.milliseconds(work) for _ in range(self.measured))


def named(layers: "Mapping[str, Any] | Sequence[Any]") -> list[tuple[str, Any]]:
    """(name, module) of each layer. A mapping, or a sequence of modules or of pairs; modules get their class and number."""
    if isinstance(layers, Mapping):
        return [(str(name), layer) for name, layer in layers.items()]
    pairs = []
    for index, layer in enumerate(layers):
        pairs.append((str(layer[0]), layer[1]) if isinstance(layer, tuple) else (f"{type(layer).__name__}.{index}", layer))
    return pairs


def profile_layers(layers: Sequence[tuple[str, Any]], batch: Any, device: str, repeats: Repeats, watch: Stopwatch) -> Iterator[LayerProfile]:
    """One after another, so that only one layer's activations are held at a time."""
    entry = _moved(batch, device)
    for name, layer in layers:
        layer.to(device)
        profile = _one(name, layer, entry, repeats, watch)
        entry = _detached(layer(*_arguments(entry)))
        layer.zero_grad(set_to_none=True)
        if device != "cpu":
            layer.to("cpu")  # a model may be larger than one device
        yield profile


def _one(name: str, layer: Any, entry: Any, repeats: Repeats, watch: Stopwatch) -> LayerProfile:
    import torch

    on_gpu = isinstance(watch, CudaEvents)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    entry = _detached(entry)
    output = layer(*_arguments(entry))
    forward = repeats.median_ms(watch, lambda: layer(*_arguments(entry)))
    backward = _backward_ms(layer, entry, repeats, watch)
    return LayerProfile(
        name=name,
        forward_ms=forward,
        backward_ms=backward,
        parameter_bytes=sum(one.numel() * one.element_size() for one in layer.parameters()),
        activation_bytes=_saved_bytes(layer, entry),
        output_bytes=sum(one.numel() * one.element_size() for one in _tensors(output)),
        flops=_flops(layer, entry),
        peak_bytes=int(torch.cuda.max_memory_allocated()) if on_gpu else 0,
    )


def _backward_ms(layer: Any, entry: Any, repeats: Repeats, watch: Stopwatch) -> float:
    """Of the backward pass alone: each needs a forward pass of its own, which is not timed."""
    times = []
    for _ in range(repeats.warm_up + repeats.measured):
        output = layer(*_arguments(entry))
        times.append(watch.milliseconds(lambda output=output: _run_backward(output)))  # type: ignore[misc]
    return statistics.median(times[repeats.warm_up :])


def _run_backward(output: Any) -> None:
    import torch

    ends = [one for one in _tensors(output) if one.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(one) for one in ends])


def _saved_bytes(layer: Any, entry: Any) -> int:
    import torch

    own = {one.untyped_storage().data_ptr() for one in [*layer.parameters(), *layer.buffers()]}
    seen: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        output = layer(*_arguments(entry))
    total = sum(seen.values())
    del output
    return total


def _flops(layer: Any, entry: Any) -> float:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        _run_backward(layer(*_arguments(entry)))
    return float(counter.get_total_flops())


def _arguments(entry: Any) -> tuple[Any, ...]:
    return tuple(entry) if isinstance(entry, list | tuple) else (entry,)


def _tensors(value: Any) -> list[Any]:
    import torch

    return [one for one in _arguments(value) if isinstance(one, torch.Tensor)]


def _detached(value: Any) -> Any:
    """The same, as leaves that want gradients where they can have any."""
    parts = [one.detach().requires_grad_(one.is_floating_point()) if hasattr(one, "detach") else one for one in _arguments(value)]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _moved(value: Any, device: str) -> Any:
    parts = [one.to(device) if hasattr(one, "to") else one for one in _arguments(value)]
    return parts[0] if len(parts) == 1 else tuple(parts)
