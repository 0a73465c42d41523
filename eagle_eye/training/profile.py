"""Profiles a user's model: `python -m eagle_eye.training.profile MODEL --cache DIRECTORY`, run by the user's own interpreter.

MODEL is a file or the name of a module that has

    layers()       the layers in order: modules, (name, module) pairs, or a mapping of names to modules
    batch(size)    the input of the first layer for `size` samples: a tensor, or a tuple of arguments

Prints one JSON object a line: {"done": 3, "of": 12, "what": "Block.2"} while it works, at the end {"profile": FILE, "cached": false}.
The file is what the planner's templates read (times in ms, memory in bytes). It is kept under a name made from the
model's text, the shapes of its layers, the hardware, and the versions of Python, torch and this format.
"""

import argparse
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .profile_collectives import all_reduce_ms
from .profile_layers import LayerProfile, Repeats, named, profile_layers, stopwatch

FORMAT = 1
ReportProfile = Callable[[Mapping[str, Any]], None]


class ModelError(Exception):
    """The model cannot be profiled; the message says what it lacks."""


@dataclass(frozen=True, slots=True)
class ProfileRequest:
    """What to profile, and how."""

    model: str
    micro_batch: int = 1
    processes: int = 2
    """Most that an all-reduce is measured with; powers of two up to it."""
    device: str = ""
    """Empty: a GPU if there is one."""
    repeats: Repeats = field(default_factory=Repeats)


def profile(request: ProfileRequest, cache: Path, report: ReportProfile, fresh: bool = False) -> Path:
    """The file with the profile, measured only if there is none of the same model, hardware and versions.

    Raises ModelError for a model without layers or batch, or one that fails on its batch.
    """
    module = load(request.model)
    layers = named(_call(module, "layers"))
    if not layers:
        raise ModelError(f"{request.model}: layers() gave none")
    device = request.device or _device()
    identity = _identity(request, module, layers, device)
    path = cache / f"{hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]}.json"
    if path.is_file() and not fresh:
        report({"profile": str(path), "cached": True})
        return path
    record = _measure(request, layers, _call(module, "batch", request.micro_batch), device, report)
    cache.mkdir(parents=True, exist_ok=True)
    _write(path, {**identity, **record})
    report({"profile": str(path), "cached": False})
    return path


def load(model: str) -> Any:
    """The user's module. Raises ModelError if there is none."""
    path = Path(model)
    if not path.is_file():
        try:
            sys.path.insert(0, "")
            return importlib.import_module(model)
        except ImportError as error:
            raise ModelError(f"{model}: no such file, nor a module ({error})") from error
    spec = importlib.util.spec_from_file_location("eagle_eye_profiled", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"{model}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _call(module: Any, name: str, *arguments: Any) -> Any:
    function = getattr(module, name, None)
    if not callable(function):
        raise ModelError(f"{module.__name__} has no function {name}(); a model to profile has layers() and batch(size)")
    return function(*arguments)


def _measure(request: ProfileRequest, layers: Sequence[tuple[str, Any]], batch: Any, device: str, report: ReportProfile) -> dict[str, Any]:
    counts = [2**power for power in range(1, request.processes.bit_length())]
    total, done = len(layers) + len(counts), 0
    found: list[LayerProfile] = []
    report({"done": 0, "of": total, "what": layers[0][0]})
    try:
        for layer in profile_layers(layers, batch, device, request.repeats, stopwatch(device)):
            found.append(layer)
            done += 1
            report({"done": done, "of": total, "what": layers[min(done, len(layers) - 1)][0]})
    except (RuntimeError, TypeError, ValueError) as error:
        raise ModelError(f"layer {layers[len(found)][0]!r} failed on its input: {error}") from error
    reduced: dict[int, dict[int, float]] = {}
    for count in counts:
        report({"done": done, "of": total, "what": f"all-reduce of {count} processes"})
        reduced[count] = all_reduce_ms([layer.parameter_bytes for layer in found], count, "nccl" if device.startswith("cuda") else "gloo")
        done += 1
    report({"done": total, "of": total, "what": ""})
    return _record(found, reduced)


def _record(found: Sequence[LayerProfile], reduced: Mapping[int, Mapping[int, float]]) -> dict[str, Any]:
    layers = [
        {
            "index": index,
            "name": layer.name,
            "forward": layer.forward_ms,
            "backward": layer.backward_ms,
            "mem_required": [layer.parameter_bytes, layer.activation_bytes],
            "output_bytes": layer.output_bytes,
            "flops": layer.flops,
            "peak_bytes": layer.peak_bytes,
        }
        for index, layer in enumerate(found)
    ]
    in_node = [{"1": 0.0, **{str(count): times.get(layer.parameter_bytes, 0.0) for count, times in reduced.items()}} for layer in found]
    return {"layers": layers, "allreduce_in_node": in_node}


def _identity(request: ProfileRequest, module: Any, layers: Sequence[tuple[str, Any]], device: str) -> dict[str, Any]:
    import torch

    source = "".join(path.read_text() for path in _sources(module, layers))
    shapes = [[name, type(layer).__name__, [[list(one.shape), str(one.dtype)] for one in layer.parameters()]] for name, layer in layers]
    return {
        "format": FORMAT,
        "model": {"name": request.model, "digest": hashlib.sha256((source + json.dumps(shapes)).encode()).hexdigest()},
        "hardware": {"device": device, "name": _hardware_name(device), "processes": request.processes, "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "torch": str(torch.__version__), "cuda": str(torch.version.cuda or "")},
        "micro_batch": request.micro_batch,
        "repeats": [request.repeats.warm_up, request.repeats.measured],
    }


def _sources(module: Any, layers: Sequence[tuple[str, Any]]) -> list[Path]:
    """The files that define the layers and what they are made of; torch's own go by its version."""
    names = {type(part).__module__ for _, layer in layers for part in layer.modules()} | {module.__name__}
    found = (getattr(sys.modules.get(name), "__file__", None) for name in names if name.partition(".")[0] != "torch")
    return sorted(Path(source) for source in set(found) if source and source.endswith(".py"))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _hardware_name(device: str) -> str:
    import torch

    return str(torch.cuda.get_device_name()) if device.startswith("cuda") else platform.processor() or platform.machine()


def _write(path: Path, record: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)


def main(arguments: Sequence[str]) -> int:
    """As a command; a model that cannot be profiled is reported on stderr, with status 2."""
    parser = argparse.ArgumentParser(prog="python -m eagle_eye.training.profile")
    parser.add_argument("model")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="")
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--fresh", action="store_true")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the processes of an all-reduce are ended too
    request = ProfileRequest(given.model, given.micro_batch, given.processes, given.device, Repeats(given.warm_up, given.repeats))
    try:
        profile(request, given.cache, lambda record: print(json.dumps(record), flush=True), given.fresh)  # noqa: T201 -- this is its output
    except ModelError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
