"""What a step that is run again must not do, seen before it is done: call a collective, write to memory that was there before, draw from random numbers that are not put back, call a module that could not be.

It sees the operators of torch, in the thread of the loop and in those of the backward pass, and each module before its own hooks. Objects of Python, and kernels that torch is not told of, it does not see.
"""

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from .replay_state import unfit_module

COLLECTIVES = ("c10d", "symm_mem", "_dtensor", "fsdp")
"""In the names of torch's namespaces of communication: c10d, _c10d_functional, _c10d_functional_autograd, …"""
KNOWN = ("aten", "prims", "prim", "profiler", "quantized", "_quantized", "mkl", "mkldnn", "onednn", "sparse", "rngprims", "torchvision", "flash_attn", "flash_attn_3", "xformers", "xformers_flash")
"""Namespaces without communication. What is behind another operator's name is not seen."""
UNMARKED = ("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "batch_norm_update_stats", "batch_norm_gather_stats", "batch_norm_gather_stats_with_counts")
"""Operators that write to running statistics, which their schemas do not say."""
STATISTICS = ("running_mean", "running_var")
FRESH = "aten::lift_fresh"
"""Of a tensor that Python has made from numbers, or from the memory of an array: that is not resizable."""
INNOCENT = ("aten::record_stream",)
"""Writes to nothing, other than its schema says."""


class ReplayRefusedError(RuntimeError):
    """The replay would have changed the training, or waited for others."""


class ReplayRules:
    """Of one run of a step of that module: `kept` are tensors that may be written, `generators` random numbers that are put back."""

    def __init__(self, module: Any, kept: Iterable[Any], generators: Iterable[Any]) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch = torch = sys.modules["torch"]
        self._weak = StorageWeakRef
        self._plain = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
        self._modules, self._thread = {id(each) for each in module.modules()}, threading.get_ident()
        self._drawn = {each._cdata for each in (torch.default_generator, *_of_gpus(torch), *generators)}
        self._others = torch.distributed.is_available() and torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1
        self._made: dict[int, Any] = {}
        """By its address, each storage of this run: the weak reference keeps the address from being used again, and not the memory."""
        self.refused = ""
        """Why: the script's code may have gone on over the exception."""
        for each in kept:
            self._add(each)

    def before_forward(self, called: Any, _: Any) -> None:
        """Behind it come the module's own hooks, as those of FSDP, which change it."""
        if threading.get_ident() != self._thread:
            return
        why = unfit_module(self._torch, called)
        if why:
            self._refuse(f"the replay calls a module that could not be put back: {why}")
        if id(called) not in self._modules and isinstance(called, self._torch.nn.parallel.DistributedDataParallel):
            self._refuse("the replay calls another module of DistributedDataParallel, which would wait for its backward pass")

    def call(self, function: Any, types: Any, arguments: Any, named: Any) -> Any:
        """Instead of that operator."""
        self._ask_name(function)
        others = [each for each in types if each not in self._plain]
        if any(each.__module__.startswith("torch.distributed") for each in others):
            self._refuse(f"the replay computes with {others[0].__name__}, of which others have parts")
        if others:
            return NotImplemented  # theirs is called, under this watch
        self._ask_arguments(function, {each.name: value for each, value in zip(function._schema.arguments, arguments, strict=False)} | named)
        found = function(*arguments, **named)
        before = {_storage(each) for each in _tensors(self._torch, (*arguments, *named.values()))}
        for each in _tensors(self._torch, (found,)):
            if _storage(each) not in before or (function.name() == FRESH and each.untyped_storage().resizable()):
                self._add(each)
        return found

    def _ask_name(self, function: Any) -> None:
        if not isinstance(function, self._torch._ops.OpOverload):
            self._refuse(f"the replay calls {function}, whose parts are not seen")
        if any(each in function.namespace for each in COLLECTIVES):
            self._refuse(f"the replay calls the collective {function.name()}, in which the others would have to take part")
        if self._others and function.namespace not in KNOWN:
            self._refuse(f"the replay calls {function.name()}, in which the others may have to take part")

    def _ask_arguments(self, function: Any, values: dict[str, Any]) -> None:
        unmarked = values.get("training") is not False and _name(function) in UNMARKED
        for each in function._schema.arguments:
            value = values.get(each.name)
            written = (each.alias_info is not None and each.alias_info.is_write) or (unmarked and each.name in STATISTICS)
            if written and function.name() not in INNOCENT and any(_storage(tensor) not in self._made for tensor in _tensors(self._torch, (value,))):
                self._refuse(f"{function.name()} of the replay writes to a tensor that was there before")
            if isinstance(value, self._torch.Generator) and value._cdata not in self._drawn:
                self._refuse(f"{function.name()} of the replay draws from random numbers that could not be put back")
            if each.name == "dropout_state" and value is not None:
                self._refuse(f"{function.name()} of the replay draws from random numbers of its own")

    def _add(self, tensor: Any) -> None:
        address = _storage(tensor)
        if address is not None and address not in self._made:
            self._made[address] = self._weak(tensor.untyped_storage())

    def _refuse(self, why: str) -> None:
        self.refused = self.refused or why
        raise ReplayRefusedError(why)


@contextlib.contextmanager
def watch(rules: ReplayRules) -> Iterator[None]:
    """Each operator of torch meanwhile goes by them. What is refused raises ReplayRefusedError, at the latest at the end."""
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.utils._python_dispatch import TorchDispatchMode

    class ReplayWatch(TorchDispatchMode):  # type: ignore[misc]  # torch is not looked into
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            return rules.call(function, types, arguments, named or {})

    hook = register_module_forward_pre_hook(rules.before_forward)
    try:
        with ReplayWatch():
            yield
    finally:
        hook.remove()
    if rules.refused:
        raise ReplayRefusedError(rules.refused)


def _name(function: Any) -> str:
    return str(function.name()).partition("::")[2].partition(".")[0]


def _storage(tensor: Any) -> int | None:
    """None where it has none of its own, as sparse ones: writes to them are refused."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def _tensors(torch: Any, values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(torch, value)


def _of_gpus(torch: Any) -> tuple[Any, ...]:
    return tuple(torch.cuda.default_generators) if torch.cuda.is_initialized() else ()


