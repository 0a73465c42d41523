"""Flattens a nested state into a dict of tensors and a JSON value that says where each belongs, and back."""

import json
import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any

_TENSOR, _ITEMS, _TUPLE, _FLOAT = "$tensor", "$items", "$tuple", "$float"
MOST_LEVELS = 100
"""A state is nested no deeper: who reads it again, in any thread, has room for no more than some hundreds on its stack."""
_MOST_BITS = 14_000
"""Of a whole number: Python reads no more than 4300 digits."""
_LONGEST_PLACE = 80
"""Characters of a place in a message."""


def flatten(state: dict[str, Any], is_tensor: Callable[[Any], bool], root: str = "state") -> tuple[dict[str, Any], Any]:
    """Tensors by name (`root`, a dot, and the keys that lead to it), and the rest with a reference in the place of each.

    A key may hold a dot itself: where that gives two tensors one name, each is named by its keys as JSON, so that a name depends on its place alone, and not
    on what was met before. Raises TypeError, naming the place, for a value that JSON cannot hold, what holds itself, and what is nested deeper than MOST_LEVELS.
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
        if len(keys) > MOST_LEVELS:
            raise too_deep(state, keys, root)
        if isinstance(value, dict):
            return _walk_dict(value, place, keys, walk)
        if isinstance(value, list | tuple):
            items = [walk(item, f"{place}.{index}", (*keys, index)) for index, item in enumerate(value)]
            return items if isinstance(value, list) else {_TUPLE: items}
        return _plain(value, place)

    try:
        rest = walk(state, root, ())
        if ambiguous:
            tensors.clear()
            rest = walk(state, root, ())
    except RecursionError:
        raise TypeError(f"a checkpoint cannot hold {root!r}: it is nested too deep for what is left of the stack here; save it where fewer calls are under way") from None
    return tensors, rest


def _plain(value: Any, place: str) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}  # JSON has no word for these
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise TypeError(f"a checkpoint cannot hold the whole number at {place!r}, of {value.bit_length()} bits: store it as text or as a tensor")
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a checkpoint cannot hold {type(value).__name__} at {place!r}: store numbers, text or tensors")


def too_deep(value: Any, keys: Sequence[Any], root: str) -> TypeError:
    """Why what these keys lead to cannot be held: something on the way holds itself, or there is no end of it."""
    places: dict[int, str] = {id(value): root}
    place = root
    for key in keys:
        value, place = value[key], f"{place}.{key}"
        if id(value) in places:
            return TypeError(f"a checkpoint cannot hold the {type(value).__name__} at {_brief(places[id(value)])}: it holds itself, at {_brief(place)}; leave that out")
        places[id(value)] = place
    return TypeError(f"a checkpoint cannot hold what is nested more than {MOST_LEVELS} levels deep, at {_brief(place)}: make it flatter")


def _brief(place: str) -> str:
    return repr(place if len(place) <= _LONGEST_PLACE else f"{place[:_LONGEST_PLACE]}…")


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
        return {unflatten({}, key): unflatten(tensors, value) for key, value in rest[_ITEMS]}
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
        ours, theirs = ({unflatten({}, key): value for key, value in each[_ITEMS]} for each in (first, second))
        return {_ITEMS: [[_plain_key(key), value] for key, value in _union(ours, theirs).items()]}
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
    return {_ITEMS: [[_plain_key(key), item] for key, item in items]}  # JSON knows text keys only, an optimizer has numbers


def _plain_key(key: Any) -> Any:
    return {_FLOAT: str(float(key))} if isinstance(key, float) and not math.isfinite(key) else key
