"""Where a training reads on in its data, as JSON: what a script gives may hold NaN and infinite numbers, for which JSON has no word.

In a manifest, which other readers take too, they are {"$float": "nan"}, and a dict with such a key of its own is {"$items": [[key, value], ...]}, as in state_tree.
"""

import json
import math
from typing import Any

from eagle_eye.training.state_tree import MOST_LEVELS, too_deep

_FLOAT, _ITEMS = "$float", "$items"
_WORDS = frozenset({"nan", "inf", "-inf"})


def require_json(position: Any) -> None:
    """Raises TypeError, naming the place, for what JSON cannot hold, what holds itself, and what is nested deeper than any reader takes."""
    _require(position, position, ())


def _require(whole: Any, value: Any, keys: tuple[Any, ...]) -> None:
    if len(keys) > MOST_LEVELS:
        raise too_deep(whole, keys, "data_position")
    if isinstance(value, dict):
        for key, each in value.items():
            if not (key is None or isinstance(key, bool | int | float | str)):
                raise TypeError(f"a data position cannot hold the key {key!r} at {_place(keys)!r}: use text or numbers")
            _require(whole, each, (*keys, key))
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _require(whole, each, (*keys, index))
    elif not (value is None or isinstance(value, bool | int | float | str)):
        raise TypeError(f"a data position cannot hold {type(value).__name__} at {_place(keys)!r}: give what JSON holds (numbers, texts, None, in lists and dicts)")


def _place(keys: tuple[Any, ...]) -> str:
    return ".".join(["data_position", *map(str, keys)])


def strict(value: Any) -> Any:
    """As a manifest holds it. Raises ValueError where two keys of a dict are one text."""
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: str(float(value))}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    if not isinstance(value, dict):
        return value
    plain = {_text(key): strict(each) for key, each in value.items()}
    if len(plain) != len(value):
        raise ValueError("two keys of a dict in the data position are the same text: JSON knows text keys only")
    return {_ITEMS: [list(item) for item in plain.items()]} if any(key.startswith("$") for key in plain) else plain


def _text(key: Any) -> str:
    """As JSON has it in a copy in memory."""
    return key if isinstance(key, str) else json.dumps(key)


def original(value: Any) -> Any:
    """What was given, of what a manifest holds."""
    try:
        return _original(value)
    except RecursionError:  # from when there was no limit: it has no such words
        return value


def _original(value: Any) -> Any:
    if isinstance(value, list):
        return [_original(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {_FLOAT} and isinstance(value[_FLOAT], str) and value[_FLOAT] in _WORDS:
        return float(value[_FLOAT])
    if value.keys() == {_ITEMS} and _are_pairs(value[_ITEMS]):
        return {key: _original(each) for key, each in value[_ITEMS]}
    return {key: _original(each) for key, each in value.items()}


def _are_pairs(items: Any) -> bool:
    return isinstance(items, list) and all(isinstance(item, list) and len(item) == 2 and isinstance(item[0], str) for item in items)
