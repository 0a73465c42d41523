"""The looks at all machines of one kind of a job: how many in succession found each unusual, and whether it is most of them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle_eye.topology import node_of_worker
from eagle_eye.types import Doubles, Integers, Kind, Layout, Topology

from .machine_samples import trained_on
from .stuck_readings import Truths

NOWHERE = -1
"""Of what is on no node that is known."""


@dataclass
class MachineLooks:
    """Columns are the machines of the newest frame, and move with their names."""

    kind: Kind
    names: tuple[str, ...] = ()
    above: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Looks in succession, until the newest, that found it unusual."""
    high: Truths = field(default_factory=lambda: np.zeros(0, np.bool_))
    """The newest did."""
    raised: Truths = field(default_factory=lambda: np.zeros(0, np.bool_))
    """The newest found it higher than nearly all healthy ones."""
    read: Truths = field(default_factory=lambda: np.zeros(0, np.bool_))
    """The newest could tell."""
    score: Doubles = field(default_factory=lambda: np.zeros(0))
    turns: int = 1
    """Looks until all have been looked at."""
    common: int = 0
    """Looks in succession that found most of them raised at once."""
    home: Integers = field(default_factory=lambda: np.zeros(0, np.int64))
    """Place of the node of each in `nodes`."""
    nodes: tuple[str, ...] = ()
    place: dict[str, int] = field(default_factory=dict)
    """Name → column."""
    mine: Truths = field(default_factory=lambda: np.zeros(0, np.bool_))
    """The job trains on it."""
    _layout: Layout | None = None
    _topology: Topology | None = None
    _begin: int = 0

    def follow(self, names: tuple[str, ...], layout: Layout | None, topology: Topology) -> None:
        """Others are there than in the look before, or elsewhere."""
        if names is self.names and layout is self._layout and topology is self._topology:
            return
        if names != self.names:
            moved = np.array([self.place.get(name, -1) for name in names], np.int64)
            self.above, self.high, self.raised, self.read, self.score = (_moved(each, moved) for each in (self.above, self.high, self.raised, self.read, self.score))
            self.place = {name: number for number, name in enumerate(names)}
        self.names, self._layout, self._topology = names, layout, topology
        self.mine = trained_on(self.kind, names, layout)
        homes = ["" if self.kind is Kind.NODE else topology.gpus.get(name, "") if self.kind is Kind.GPU else node_of_worker(name) for name in names]
        self.nodes = tuple(dict.fromkeys(home for home in homes if home))
        number = {node: place for place, node in enumerate(self.nodes)}
        self.home = np.array([number.get(home, NOWHERE) for home in homes], np.int64)

    def turn(self, at_most: int) -> Integers:
        """Places of those that are looked at now: all by turns."""
        count = len(self.names)
        self.turns = max(1, -(-count // at_most))
        size = -(-count // self.turns) if count else 0
        self._begin = self._begin if self._begin < count else 0
        places = np.arange(self._begin, min(self._begin + size, count))
        self._begin += size
        return places[self.mine[places]]

    def take(self, places: Integers, read: Truths, scores: Doubles, bars: tuple[float, float], at_most: float) -> None:
        """What a look found. bars: above which one is raised, and unusual. What moves all of them lifts some above the second by chance: whether it is most of them, the first says."""
        raised, bar = bars
        self.read[places], self.score[places] = read, scores
        self.high[places], self.raised[places] = read & (scores > bar), read & (scores > raised)
        seen = int(np.count_nonzero(self.read))
        self.common = self.common + 1 if seen > 1 and int(np.count_nonzero(self.raised)) > at_most * seen else 0
        self.above[places] = np.where(self.high[places], self.above[places] + 1, 0)

    def node_of(self, place: int) -> str:
        """'' where it is not known."""
        return self.nodes[self.home[place]] if self.home[place] >= 0 else ""

    def begin_anew(self) -> None:
        """Nothing that was seen so far speaks against one of them."""
        self.above[:] = 0

    def whole_nodes(self, sustained: int) -> list[int]:
        """Nodes of which two or more are known, all of them unusual and one for so long: places in `nodes`."""
        if not (self.above >= sustained).any():
            return []
        placed, count = self.home >= 0, len(self.nodes)
        known, high, long = (np.bincount(self.home[placed & each], minlength=count) for each in (self.read, self.high, self.above >= sustained))
        return np.flatnonzero((known > 1) & (high == known) & (long > 0)).tolist()


def _moved(values: Any, moved: Integers) -> Any:
    """In the new order; 0 of what is new."""
    return np.where(moved >= 0, values[moved], 0).astype(values.dtype) if len(values) else np.zeros(len(moved), values.dtype)
