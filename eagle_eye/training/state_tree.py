"""Flattens a nested state into a dict of tensors and a JSON value that says where each belongs, and back."""

from collections.abc import Callable
from typing import Any

_TENSOR, _ITEMS, _TUPLE = "$tensor", "$items", "$tuple"


def flatten(state: dict[str, Any], is_tensor: Callable[[Any], bool]) -> tuple[dict[str, Any], Any]:
    """Tensors by name, and the rest with a reference in the place of each.

    Raises TypeError, naming the place, for a value that JSON cannot hold.
    """
    tensors: dict[str, Any] = {}

    def walk(value: Any, place: str) -> Any:
        if is_tensor(value):
            name = place if place not in tensors else f"{place}#{len(tensors)}"  # a key may hold a dot itself
            tensors[name] = value
            return {_TENSOR: name}
        if isinstance(value, dict):
            return _walk_dict(value, place, walk)
        if isinstance(value, list | tuple):
            items = [walk(item, f"{place}.{index}") for index, item in enumerate(value)]
            return items if isinstance(value, list) else {_TUPLE: items}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at {place!r}: store numbers, text or tensors")

    return tensors, walk(state, "state")


def unflatten(tensors: dict[str, Any], rest: Any) -> Any:
    """The state again. Raises KeyError for a tensor that is missing."""
    if isinstance(rest, list):
        return [unflatten(tensors, item) for item in rest]
    if not isinstance(rest, dict):
        return rest
    if _TENSOR in rest:
        return tensors[rest[_TENSOR]]
    if _TUPLE in rest:
        return tuple(unflatten(tensors, item) for item in rest[_TUPLE])
    if _ITEMS in rest:
        return {key: unflatten(tensors, value) for key, value in rest[_ITEMS]}
    return {key: unflatten(tensors, value) for key, value in rest.items()}


def _walk_dict(value: dict[Any, Any], place: str, walk: Callable[[Any, str], Any]) -> Any:
    for key in value:
        if not isinstance(key, bool | int | float | str):
            raise TypeError(f"a checkpoint cannot hold the key {key!r} at {place!r}: use text or numbers")
    items = [(key, walk(item, f"{place}.{key}")) for key, item in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(items)
    return {_ITEMS: [list(item) for item in items]}  # JSON knows text keys only, an optimizer has numbers
