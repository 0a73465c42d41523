"""Ports that run at a lower rate than those of the same name on other nodes: a cable that has come up slow says so in no event.

A node all of whose ports are slower than those of its peers is another machine, and none of them is named.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Floats

PEERS = 4
"""Ports of one name, on as many nodes, at least."""
ROUNDING = 1e-3
"""Of a rate that went through text and float32."""


class SlowPort(NamedTuple):
    """One port, in so many readings in a row."""

    place: int
    """In the names that were given."""
    usual: float
    """Bytes a second of the same port on most nodes."""
    peers: int
    readings: int


class LinkRates:
    """Compares the ports of a job's nodes, reading by reading."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._ports: list[NDArray[np.intp]] = []
        """Indices of the ports of one name."""
        self._nodes = np.empty(0, np.intp)
        self._slow: dict[str, int] = {}
        """Link → readings in a row in which it was slower."""

    def read(self, names: tuple[str, ...], rates: Floats, active: Floats) -> Iterator[SlowPort]:
        """`rates` in bytes a second; NaN: not read now."""
        usable = np.where(active == 1.0, rates, np.nan)
        if not np.isfinite(usable).any():
            return
        if names is not self._names:
            self._arrange(names)
        usual, peers = np.full(len(names), np.nan), np.zeros(len(names), np.intp)
        for ports in self._ports:
            usual[ports], peers[ports] = _usual(usable[ports])
        slow = usable < usual * (1.0 - ROUNDING)
        as_usual = np.bincount(self._nodes, (usable >= usual * (1.0 - ROUNDING)).astype(float), minlength=1)[self._nodes] > 0
        named = slow & as_usual
        seen = {names[index]: self._slow.get(names[index], 0) + 1 for index in np.flatnonzero(named).tolist()}
        self._slow = self._not_read(names, usable) | seen
        for index in np.flatnonzero(named).tolist():
            yield SlowPort(index, float(usual[index]), int(peers[index]), seen[names[index]])

    def _not_read(self, names: tuple[str, ...], usable: Floats) -> dict[str, int]:
        """Whoever was not read this time keeps its count."""
        if not self._slow:
            return {}
        missing = {names[index] for index in np.flatnonzero(np.isnan(usable)).tolist()}
        return {name: count for name, count in self._slow.items() if name in missing}

    def _arrange(self, names: tuple[str, ...]) -> None:
        self._names = names
        nodes: dict[str, int] = {}
        ports: dict[str, list[int]] = {}
        self._nodes = np.empty(len(names), np.intp)
        for index, name in enumerate(names):
            node, _, port = name.rpartition("/")
            self._nodes[index] = nodes.setdefault(node, len(nodes))
            ports.setdefault(port, []).append(index)
        self._ports = [np.array(each, np.intp) for each in ports.values() if len(each) >= PEERS]


def _usual(rates: Floats) -> tuple[float, int]:
    """The rate that more than half of the ports have, and how many; NaN where there is none, or they are few."""
    known = rates[np.isfinite(rates)]
    if known.size < PEERS:
        return float("nan"), 0
    middle = float(np.median(known))
    same = int(np.count_nonzero(np.abs(known - middle) <= ROUNDING * middle))
    return (middle, same) if 2 * same > known.size else (float("nan"), 0)
