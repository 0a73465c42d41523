"""Flattens a nested state into a dict of tensors and a JSON value that says where each belongs, and back."""

import json
import math
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

_TENSOR, _ITEMS, _TUPLE, _FLOAT = "$tensor", "$items", "$tuple", "$float"


def flatten(state: dict[str, Any], is_tensor: Callable[[Any], bool], root: str = "state") -> tuple[dict[str, Any], Any]:
    """Tensors by name (`root`, a dot, and the keys that lead to it), and the rest with a reference in the place of each.

    A key may hold a dot itself: where that gives two tensors one name, each is named by its keys as JSON, so that a name depends on its place alone, and not
    on what was met before. Raises TypeError, naming the place, for a value that JSON cannot hold.
    """
    tensors: dict[str, Any] = {}
    ambiguous: set[str] = set()
    unlike = f"{root}.#"

    def walk(value: Any, place: str, keys: tuple[Any, ...]) -> Any:
        if is_tensor(value):
            name = f"{unlike}{json.dumps(keys)}" if place in ambiguous or place.startswith(unlike) else place
            if name in tensors:
                ambiguous.add(name)
            tensors[name] = value
            return {_TENSOR: name}
        if isinstance(value, dict):
            return _walk_dict(value, place, keys, walk)
        if isinstance(value, list | tuple):
            items = [walk(item, f"{place}.{index}", (*keys, index)) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {_TUPLE: items}
        if isinstance(value, float) and not math.isfinite(value):
            return {_FLOAT: str(float(value))}  # JSON has no word for these
        if value is None or isinstance(value, bool | int | float | str):
            return value
        raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at {place!r}: store numbers, text or tensors")

    rest = walk(state, root, ())
    if ambiguous:
        tensors.clear()
        rest = walk(state, root, ())
    return tensors, rest


def unflatten(tensors: dict[str, Any], rest: Any) -> Any:
    """The state again. Raises KeyError for a tensor that is missing."""
    if isinstance(rest, list):
        return [unflatten(tensors, item) for item in rest]
    if not isinstance(rest, dict):
        return rest
    if _TENSOR in rest:
        return tensors[rest[_TENSOR]]
    if _FLOAT in rest:
        return float(rest[_FLOAT])
    if _TUPLE in rest:
        return tuple(unflatten(tensors, item) for item in rest[_TUPLE])
    if _ITEMS in rest:
        return {key: unflatten(tensors, value) for key, value in rest[_ITEMS]}
    return {key: unflatten(tensors, value) for key, value in rest.items()}


def references(rest: Any) -> Iterator[str]:
    """Names of the tensors of a flattened state, in its order."""
    if isinstance(rest, list):
        for value in rest:
            yield from references(value)
    elif isinstance(rest, dict):
        if _TENSOR in rest:
            yield rest[_TENSOR]
        else:
            yield from references(list(rest.values()))


def renamed(rest: Any, names: Mapping[str, str]) -> Any:
    """A flattened state that refers to some tensors by other names."""
    if isinstance(rest, list):
        return [renamed(value, names) for value in rest]
    if not isinstance(rest, dict):
        return rest
    if _TENSOR in rest:
        return {_TENSOR: names.get(rest[_TENSOR], rest[_TENSOR])}
    return {key: renamed(value, names) for key, value in rest.items()}


def only(rest: Any, names: Container[str]) -> Any:
    """Of a flattened state what is no tensor, and the tensors of these names; in a list None stands where another one was."""
    if isinstance(rest, list):
        return [None if _is_other(value, names) else only(value, names) for value in rest]
    if not isinstance(rest, dict) or _TENSOR in rest:
        return rest
    if _ITEMS in rest:
        return {_ITEMS: [[key, only(value, names)] for key, value in rest[_ITEMS] if not _is_other(value, names)]}
    return {key: only(value, names) for key, value in rest.items() if not _is_other(value, names)}


def _is_other(value: Any, names: Container[str]) -> bool:
    return isinstance(value, dict) and _TENSOR in value and value[_TENSOR] not in names


def merged(first: Any, second: Any) -> Any:
    """Of two flattened states: everything that either holds; what both hold as the first has it."""
    if isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        return [merged(one, other) for one, other in zip(first, second, strict=True)]
    if not isinstance(first, dict) or not isinstance(second, dict) or {_TENSOR, _FLOAT} & first.keys():
        return first
    if _ITEMS in first and _ITEMS in second:
        ours, theirs = dict(first[_ITEMS]), dict(second[_ITEMS])
        return {_ITEMS: [[key, value] for key, value in _union(ours, theirs).items()]}
    return _union(first, second)


def _union(first: dict[Any, Any], second: dict[Any, Any]) -> dict[Any, Any]:
    return {key: merged(value, second[key]) if key in second else value for key, value in first.items()} | {
        key: value for key, value in second.items() if key not in first
    }


def _walk_dict(value: dict[Any, Any], place: str, keys: tuple[Any, ...], walk: Callable[[Any, str, tuple[Any, ...]], Any]) -> Any:
    for key in value:
        if not isinstance(key, bool | int | float | str):
            raise TypeError(f"a checkpoint cannot hold the key {key!r} at {place!r}: use text or numbers")
    items = [(key, walk(item, f"{place}.{key}", (*keys, key))) for key, item in value.items()]
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return dict(items)
    return {_ITEMS: [list(item) for item in items]}  # JSON knows text keys only, an optimizer has numbers
