"""Counters that only rise → rates."""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class CounterRates(Generic[Key]):
    """Many counters that are read together. Without a rate: the first look, and one after a counter went backwards, wrapped or was not read."""

    def __init__(self) -> None:
        self._before: Mapping[Key, float] = {}
        self._looked = math.nan

    def update(self, counters: Mapping[Key, float], monotonic: float) -> dict[Key, float]:
        """Per second since the look before, of those that have a rate; `monotonic` in seconds."""
        before, self._before = self._before, counters
        elapsed, self._looked = monotonic - self._looked, monotonic
        if not elapsed > 0:
            return {}
        return {key: (count - before[key]) / elapsed for key, count in counters.items() if key in before and count >= before[key]}

    def forget(self, is_other: Callable[[Key], bool]) -> None:
        """These have no rate at the next look: what is counted under their keys is another thing now."""
        self._before = {key: count for key, count in self._before.items() if not is_other(key)}


def total(rates: Mapping[Key, float], keys: Iterable[Key]) -> float:
    """Of several rates together; NaN where none of them is known."""
    known = [rates[key] for key in keys if key in rates]
    return sum(known) if known else math.nan
