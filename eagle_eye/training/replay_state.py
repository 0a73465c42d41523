"""What a forward and backward pass changes beside its result, kept while a step is run again: buffers, random numbers, gradients, what modules remember.

The tensors of the script are not written at all: while the step is run again the modules have copies of their buffers, and the parameters have no gradients.
"""

import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

OWN_STATE = ("megatron.core", "deepspeed", "transformer_engine", "horovod")
"""Libraries that keep state of a forward pass elsewhere (random numbers of tensor ranks, scales of fp8), which nobody here could put back, or whose collectives torch does not know."""
CONTAINERS = (dict, list, set, deque)
MOST_ENTRIES = 1 << 20
"""Of the containers that modules hold, all together: copying more would take long."""
_ABSENT = object()


class KeptState:
    """Of a module. `begin` makes the state of now anew, as often as it is called; `restore` leaves what was."""

    def __init__(self, module: Any) -> None:
        torch = sys.modules["torch"]
        self._modules = list(module.modules())
        self._attributes = [dict(vars(each)) for each in self._modules]
        held = _held(value for attributes in self._attributes for value in attributes.values())
        self._containers = [(each, _copy_of(each)) for each in held if isinstance(each, CONTAINERS)]
        self._buffers = [dict(each._buffers) for each in self._modules]
        self._parameters = [(each, each.grad, each.requires_grad) for each in module.parameters()]
        tensors = [*module.parameters(), *module.buffers(), *(each for each in held if type(each) is torch.Tensor)]
        self._memory = [(each, each.data) for each in tensors if each.layout is torch.strided]
        self.generators = [each for each in held if isinstance(each, torch.Generator)]
        """Those of torch that the modules hold: they are put back, too."""
        self.random = RandomNumbers(torch, {each.device for each, _, _ in self._parameters if each.is_cuda}, held)

    def begin(self) -> list[Any]:
        """Before each run. The copies that may be written in it."""
        self._put_back_attributes()
        copies: dict[int, Any] = {}
        for module, buffers in zip(self._modules, self._buffers, strict=True):
            module._buffers.clear()
            module._buffers.update((name, _copied(each, copies)) for name, each in buffers.items())
            vars(module).update({name: False for name in ("require_backward_grad_sync", "require_forward_param_sync") if name in vars(module)})
        for parameter, _, _ in self._parameters:
            parameter.grad = None
        self.random.put_back()
        return list(copies.values())

    def moved(self) -> bool:
        """A tensor has been given other memory (`tensor.data = ...`), which no operator tells of."""
        return any(not _same_memory(tensor, memory) for tensor, memory in self._memory)

    def restore(self) -> None:
        """Behind the last run, whatever came of it. Raises the first error of any of its parts when all have been put back."""
        errors: list[Exception] = []
        for part in (self._put_back_memory, self._put_back_attributes, self._put_back_buffers, self._put_back_gradients, self.random.put_back):
            try:
                part()
            except Exception as error:  # noqa: BLE001 - the other parts are the more needed
                errors.append(error)
        if errors:
            raise errors[0]

    def _put_back_memory(self) -> None:
        for tensor, memory in self._memory:
            if not _same_memory(tensor, memory):
                tensor.data = memory

    def _put_back_buffers(self) -> None:
        for module, buffers in zip(self._modules, self._buffers, strict=True):
            module._buffers.clear()
            module._buffers.update(buffers)

    def _put_back_gradients(self) -> None:
        for parameter, gradient, required in self._parameters:
            parameter.grad = gradient
            if parameter.requires_grad != required:
                parameter.requires_grad_(required)

    def _put_back_attributes(self) -> None:
        for module, before in zip(self._modules, self._attributes, strict=True):
            _put_back_names(vars(module), before)
        for container, before in self._containers:
            _put_back(container, before)


class RandomNumbers:
    """Where all random numbers are now: of torch, of these GPUs, of Python and numpy, and of those generators that are among `held`."""

    def __init__(self, torch: Any, devices: set[Any], held: Iterable[Any]) -> None:
        self._sources: list[tuple[Callable[[], Any], Callable[[Any], object]]] = [(torch.get_rng_state, torch.set_rng_state), (random.getstate, random.setstate)]
        self._sources += [_source_of_gpu(torch, device) for device in devices]
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            self._sources.append((numpy.random.get_state, numpy.random.set_state))
        for each in held:
            self._sources += _source_of(torch, numpy, each)
        self._states = [get() for get, _ in self._sources]

    def put_back(self) -> None:
        """To where they were."""
        for (_, put), state in zip(self._sources, self._states, strict=True):
            put(state)

    def now(self) -> list[bytes]:
        """Comparable: two runs from the same state draw the same."""
        return [pickle.dumps(state.tolist() if hasattr(state, "tolist") else state) for state in (get() for get, _ in self._sources)]


def refusal(module: Any) -> str:
    """Why a step of this module is not run again; "" where it can be."""
    torch = sys.modules["torch"]
    known = [name for name in OWN_STATE if name in sys.modules]
    if known:
        return f"{known[0]} keeps state of its own, which could not be put back"
    if not isinstance(module, torch.nn.Module):
        return "monitor.replicas was not given a module that is written in Python"
    unfit = next(filter(None, (unfit_module(torch, each) for each in module.modules())), "")
    if unfit:
        return unfit
    plain = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
    if any(type(each) not in plain or each.device.type not in ("cpu", "cuda") for each in (*module.parameters(), *module.buffers())):
        return "its parameters are parts of others, or on a device that is not known"
    if any(each._backward_hooks for each in module.parameters()):
        return "its parameters have hooks, which would be called"
    return ""


def unfit_module(torch: Any, module: Any) -> str:
    """Why this module alone, without those that it holds, could not be put back; "" where it could be. FSDP takes its parameters away in the forward pass, and gives them back in hooks of the backward pass."""
    if isinstance(module, torch.jit.ScriptModule):
        return "monitor.replicas was not given a module that is written in Python"
    if any(getattr(each, "_fsdp_flattened", False) or hasattr(each, "_is_flat_param") for each in module._parameters.values() if each is not None):
        return "its parameters are sharded by FSDP"
    parallel = torch.nn.parallel.DistributedDataParallel
    known = parallel.__mro__ if isinstance(module, parallel) else ()
    others = [each for each in type(module).__mro__ if each.__module__.startswith("torch.distributed.") and each not in known]
    if others:
        return f"{others[0].__name__} of torch.distributed is among its modules"
    if known and getattr(module, "mixed_precision", None) is not None:
        return "DistributedDataParallel has another precision in its passes, for which it exchanges the memory of parameters"
    return ""


def _held(values: Iterable[Any]) -> list[Any]:
    """What these are and hold, containers within containers too, each once; not what other objects hold."""
    found: dict[int, Any] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in found:
            continue
        found[id(value)] = value
        if isinstance(value, dict):
            waiting += value.values()
        elif isinstance(value, (*CONTAINERS, tuple)):
            waiting += value
        if len(found) + len(waiting) > MOST_ENTRIES:
            raise RuntimeError("its modules hold too much to be copied")
    return list(found.values())


def _copy_of(container: Any) -> Any:
    return dict(container) if isinstance(container, dict) else list(container)


def _put_back_names(container: Any, before: Any) -> None:
    """One by one: another thread may read the others meanwhile."""
    for name in container.keys() - before.keys():
        del container[name]
    for name, each in before.items():
        if container.get(name, _ABSENT) is not each:
            container[name] = each


def _put_back(container: Any, before: Any) -> None:
    """What is in it, and its order, where that is not the same any more."""
    if isinstance(container, dict):
        if not _same(container.values(), before.values()):
            _put_back_names(container, before)
        if not _same(container, before):
            container.clear()
            container.update(before)
    elif isinstance(container, set):
        if {*map(id, container)} != {*map(id, before)}:
            container.clear()
            container.update(before)
    elif not _same(container, before):
        container.clear()
        container.extend(before)


def _same(one: Any, other: Any) -> bool:
    return len(one) == len(other) and all(each is another for each, another in zip(one, other, strict=True))


def _same_memory(tensor: Any, memory: Any) -> bool:
    return all(bool(of(tensor) == of(memory)) for of in (_place, _shape, _kind))


def _place(tensor: Any) -> Any:
    return tensor.data_ptr(), tensor.storage_offset()


def _shape(tensor: Any) -> Any:
    return tensor.shape, tensor.stride()


def _kind(tensor: Any) -> Any:
    return tensor.dtype, tensor.device


def _copied(buffer: Any, copies: dict[int, Any]) -> Any:
    """One that several modules share is shared by their copies, too."""
    if buffer is None:
        return None
    if id(buffer) not in copies:
        copies[id(buffer)] = buffer.detach().clone()
    return copies[id(buffer)]


def _source_of_gpu(torch: Any, device: Any) -> tuple[Callable[[], Any], Callable[[Any], object]]:
    return lambda: torch.cuda.get_rng_state(device), lambda state: torch.cuda.set_rng_state(state, device)


def _source_of(torch: Any, numpy: Any, held: Any) -> list[tuple[Callable[[], Any], Callable[[Any], object]]]:
    if isinstance(held, torch.Generator):
        return [(held.get_state, held.set_state)]
    if type(held) is random.Random:
        return [(held.getstate, held.setstate)]
    if numpy is not None and isinstance(held, numpy.random.Generator):
        return [(lambda: held.bit_generator.state, lambda state: setattr(held.bit_generator, "state", state))]
    if numpy is not None and isinstance(held, numpy.random.RandomState):
        return [(held.get_state, held.set_state)]
    return []
