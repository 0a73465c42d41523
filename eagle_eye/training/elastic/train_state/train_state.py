"""The training state of a worker, by layer, in an order that is the same in every worker.

A layer holds, one after another: its parameters, the fp32 masters of those that have one, the optimizer's state of
each parameter by name, its persistent buffers. A parameter that several layers share counts with the first. What
belongs to no layer (scalars of the parameter groups, the scheduler, the step) is the global state, a small JSON value.

Tensors are looked up when they are asked for: an optimizer makes its state in the first step and may replace it.
"""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle_eye.errors import ConfigError
from eagle_eye.training import state_tree

from . import tensor_bytes
from .optimizer_state_shapes import state_shapes

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

LayerSchema = dict[str, Any]
"""Names, shapes and types of a layer's tensors, and what of its optimizer state is no tensor: a JSON value."""

_AT = "state."
"""How state_tree begins the names of tensors."""


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """One tensor of the state."""

    name: str
    """weight, weight/master, weight:exp_avg; unique in its layer."""
    tensor: "Tensor"

    @property
    def bytes(self) -> int:
        return int(self.tensor.numel() * self.tensor.element_size())


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of one layer."""

    index: int
    entries: tuple[NamedTensor, ...]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.entries)


class TrainState:
    """The training state of this worker. `scheduler`: anything with state_dict and load_state_dict.

    `masters` says which fp32 tensor the optimizer updates in place of a parameter of a lower precision. Raises
    ConfigError if the optimizer updates a parameter that no layer has: no worker could transfer it.
    """

    def __init__(
        self,
        layers: "Sequence[nn.Module]",
        optimizer: "Optimizer",
        *,
        masters: "Mapping[Tensor, Tensor] | None" = None,
        scheduler: Any = None,
    ) -> None:
        self.step = 0
        """First step still to do that the state is for; the worker increments it when it applies a step."""
        self.rolled_back_in = 0
        """Epoch in which the training that led to it was rolled back last; 0: never. A copy with a lower one and more steps is of what was abandoned."""
        self.is_complete = True
        """False from the first byte that another worker's state overwrites until all of it was verified."""
        self._layers, self._optimizer, self._scheduler = list(layers), optimizer, scheduler
        self._masters = masters or {}
        self._parameters = _parameters_of(self._layers)
        self._buffers = _buffers_of(self._layers)
        self._preallocated: dict[tuple[Tensor, str], Tensor] = {}
        self._check()

    @property
    def layers(self) -> list[LayerState]:
        """All layers as they are now."""
        return [self.layer(index) for index in range(len(self._layers))]

    @property
    def bytes_per_layer(self) -> list[int]:
        """Bytes of state of each layer; a worker that has not done a step has no optimizer state yet."""
        return [layer.bytes for layer in self.layers]

    def layer(self, index: int) -> LayerState:
        """The state of one layer."""
        return LayerState(index, tuple(NamedTensor(name, tensor) for name, tensor in self._tensors(index)))

    def schema(self, index: int) -> LayerSchema:
        """What another worker must know of a layer to allocate it."""
        return {
            "tensors": [
                [entry.name, _name_of(entry.tensor.dtype), list(entry.tensor.shape), entry.tensor.device.type == "cpu"]
                for entry in self.layer(index).entries
            ],
            "optimizer": {name: rest for name, (_, rest) in self._optimizer_state(index).items()},
        }

    def allocate(self, index: int, schema: LayerSchema) -> LayerState:
        """The layer as `schema` describes it, with uninitialized optimizer state where there was none.

        Raises ConfigError if the other worker has another model or optimizer.
        """
        held = {entry.name: entry.tensor for entry in self.layer(index).entries}
        needed = {name: (dtype, tuple(shape), on_host) for name, dtype, shape, on_host in schema["tensors"]}
        for name, parameter in self._parameters[index]:
            self._make_optimizer_state(name, parameter, held, needed, schema["optimizer"].get(name))
        layer = self.layer(index)
        ours = [[entry.name, _name_of(entry.tensor.dtype), list(entry.tensor.shape)] for entry in layer.entries]
        theirs = [each[:3] for each in schema["tensors"]]
        if ours != theirs:
            raise ConfigError(_difference(index, ours, theirs))
        return layer

    def preallocate(self) -> "list[Tensor]":
        """Allocate memory for the optimizer state that `allocate` will need, as far as its shapes are known; returns it.

        It is not state yet: the optimizer has none before and after. `drop_preallocated` frees what was not needed.
        """
        import torch

        for parameter, state in state_shapes(self._optimizer).items():
            tensors, _ = _flattened(state, "the optimizer's state")
            for place, tensor in tensors.items():
                if tensor.device.type == "meta":
                    self._preallocated[parameter, place.removeprefix(_AT)] = torch.empty_like(tensor, device=parameter.device)
        return list(self._preallocated.values())

    def drop_preallocated(self) -> None:
        """Free what `preallocate` has allocated and `allocate` has not used."""
        self._preallocated.clear()

    def global_state(self) -> dict[str, Any]:
        """What belongs to no layer, as a JSON value."""
        scheduler = self._scheduler.state_dict() if self._scheduler is not None else {}
        groups = [{key: value for key, value in group.items() if key != "params"} for group in self._optimizer.param_groups]
        return {
            "step": self.step,
            "rolled_back_in": self.rolled_back_in,
            "groups": [_plain(group, "the optimizer's parameter groups") for group in groups],
            # functions are no state, and every worker has built its own
            "scheduler": _plain({key: value for key, value in scheduler.items() if not callable(value)}, "the scheduler"),
        }

    def load_global_state(self, state: Mapping[str, Any]) -> None:
        """Load the global state of another worker. Raises ConfigError if its optimizer has other parameter groups."""
        ours, theirs = self._optimizer.param_groups, state["groups"]
        if len(ours) != len(theirs):
            raise ConfigError(f"the optimizer has {len(ours)} parameter groups here and {len(theirs)} in the worker that sends its state")
        if self._scheduler is not None:
            self._scheduler.load_state_dict(_restored(state["scheduler"]))
        for group, plain in zip(ours, theirs, strict=True):
            for key, value in _restored(plain).items():
                group[key] = _replaced(group.get(key), value)
        self.step, self.rolled_back_in = int(state["step"]), int(state.get("rolled_back_in", 0))

    def state(self) -> dict[str, Any]:
        """All of it, for eagle_eye.training.checkpoint."""
        layers = self.layers
        return {
            "tensors": [{entry.name: entry.tensor.detach() for entry in layer.entries} for layer in layers],
            "schemas": [self.schema(layer.index) for layer in layers],
            "global": self.global_state(),
        }

    def load(self, state: Mapping[str, Any]) -> int:
        """Load what `state` returned; returns the bytes. Raises ConfigError if it is another model's."""
        if len(state["tensors"]) != len(self._layers):
            raise ConfigError(f"the state has {len(state['tensors'])} layers, this worker's model {len(self._layers)}")
        self.is_complete = False
        for index, (tensors, schema) in enumerate(zip(state["tensors"], state["schemas"], strict=True)):
            for entry in self.allocate(index, schema).entries:
                entry.tensor.detach().copy_(tensors[entry.name])
        self.load_global_state(state["global"])
        self.is_complete = True
        return sum(self.bytes_per_layer)

    def digest(self) -> str:
        """sha256 over the bytes of all tensors in their order, and over what of the optimizer's state is no tensor."""
        found = hashlib.sha256()
        for layer in self.layers:
            for entry in layer.entries:
                content = tensor_bytes.flat(entry.tensor)
                found.update(tensor_bytes.view(content))
            scalars = [self._optimizer.state[self._key(parameter)] for _, parameter in self._parameters[layer.index] if self._has_state(parameter)]
            for name, value in (item for state in scalars for item in sorted(state.items())):
                if isinstance(value, bool | int | float | str):
                    found.update(json.dumps([name, value]).encode())
        return found.hexdigest()

    def _tensors(self, index: int) -> "Iterator[tuple[str, Tensor]]":
        yield from self._parameters[index]
        for name, parameter in self._parameters[index]:
            if parameter in self._masters:
                yield f"{name}/master", self._masters[parameter]
        for name, (tensors, _) in self._optimizer_state(index).items():
            for place, tensor in tensors.items():
                yield f"{name}:{place.removeprefix(_AT)}", tensor
        buffers = dict(self._layers[index].named_buffers())
        yield from ((name, buffers[name]) for name in self._buffers[index])

    def _optimizer_state(self, index: int) -> "dict[str, tuple[dict[str, Tensor], Any]]":
        """By parameter that has some: its tensors by place, and the rest with a reference in the place of each."""
        return {
            name: _flattened(self._optimizer.state[self._key(parameter)], f"the optimizer's state of {name}")
            for name, parameter in self._parameters[index]
            if self._has_state(parameter)
        }

    def _make_optimizer_state(
        self,
        name: str,
        parameter: "Tensor",
        held: "Mapping[str, Tensor]",
        needed: Mapping[str, tuple[str, tuple[int, ...], bool]],
        rest: Any,
    ) -> None:
        if rest is None:
            self._optimizer.state.pop(self._key(parameter), None)
            return
        prefix = f"{name}:"
        places = {each.removeprefix(prefix): sort for each, sort in needed.items() if each.startswith(prefix)}
        key = self._key(parameter)
        ready = {place: self._preallocated.pop((key, place), None) for place in places}
        made = {_AT + place: _fitting(held.get(prefix + place, ready[place]), key, *sort) for place, sort in places.items()}
        self._optimizer.state[key] = state_tree.unflatten(made, rest)

    def _key(self, parameter: "Tensor") -> "Tensor":
        return self._masters.get(parameter, parameter)

    def _has_state(self, parameter: "Tensor") -> bool:
        return bool(self._optimizer.state.get(self._key(parameter)))

    def _check(self) -> None:
        known = {id(self._key(parameter)) for layer in self._parameters for _, parameter in layer}
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in known:
                    raise ConfigError(
                        f"the optimizer updates a parameter of shape {tuple(parameter.shape)} that no layer has: "
                        "give the module that owns it as a layer, too"
                    )


def _parameters_of(layers: "Sequence[nn.Module]") -> "list[list[tuple[str, Tensor]]]":
    seen: set[int] = set()
    found: list[list[tuple[str, Tensor]]] = []
    for layer in layers:
        found.append([(name, each) for name, each in layer.named_parameters() if id(each) not in seen])
        seen.update(id(each) for _, each in found[-1])
    return found


def _buffers_of(layers: "Sequence[nn.Module]") -> list[list[str]]:
    """Names of the buffers that count as state: a module says so of each."""
    seen: set[int] = set()
    found: list[list[str]] = []
    for layer in layers:
        kept = layer.state_dict(keep_vars=True)
        ours = [(name, each) for name, each in layer.named_buffers() if name in kept and id(each) not in seen]
        seen.update(id(each) for _, each in ours)
        found.append([name for name, _ in ours])
    return found


def _fitting(held: "Tensor | None", like: "Tensor", dtype: str, shape: tuple[int, ...], on_host: bool) -> "Tensor":
    """The tensor that is there if it fits, else a new one."""
    import torch

    sort = getattr(torch, dtype)
    if held is not None and held.dtype == sort and tuple(held.shape) == shape and (held.device.type == "cpu") == on_host:
        return held
    return torch.empty(shape, dtype=sort, device="cpu" if on_host else like.device)


def _flattened(state: Mapping[str, Any], where: str) -> "tuple[dict[str, Tensor], Any]":
    import torch

    try:
        return state_tree.flatten(dict(sorted(state.items())), lambda value: isinstance(value, torch.Tensor))
    except TypeError as error:
        raise ConfigError(f"{where} cannot be transferred: {error}") from error


def _plain(state: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A small state, its tensors as text."""
    tensors, rest = _flattened(state, where)
    return {"rest": rest, "tensors": {name: [_name_of(each.dtype), list(each.shape), _text_of(each)] for name, each in tensors.items()}}


def _restored(plain: Mapping[str, Any]) -> Any:
    import torch

    def tensor(dtype: str, shape: list[int], text: str) -> "Tensor":
        return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=getattr(torch, dtype)).view(shape)

    return state_tree.unflatten({name: tensor(*each) for name, each in plain["tensors"].items()}, plain["rest"])


def _text_of(tensor: "Tensor") -> str:
    content = tensor_bytes.flat(tensor)
    return base64.b64encode(tensor_bytes.view(content)).decode()


def _replaced(old: Any, new: Any) -> Any:
    """A learning rate that is a tensor stays the same tensor: a captured graph reads it."""
    import torch

    return old.copy_(new) if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor) else new


def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _difference(index: int, ours: list[list[Any]], theirs: list[list[Any]]) -> str:
    only = [f"{name} {dtype}{shape}" for name, dtype, shape in ours if [name, dtype, shape] not in theirs][:3]
    missing = [f"{name} {dtype}{shape}" for name, dtype, shape in theirs if [name, dtype, shape] not in ours][:3]
    return (
        f"layer {index} is another one than in the worker that sends its state (here {', '.join(only) or 'nothing more'}; "
        f"there {', '.join(missing) or 'nothing more, but in another order'}): start all workers from the same script"
    )
