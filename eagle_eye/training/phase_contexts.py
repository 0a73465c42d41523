"""Parts of a step as contexts: what `monitor.phase(...)` and `monitor.wait()` give."""

from collections.abc import Callable
from typing import Protocol


class PhaseMarker(Protocol):
    """Whoever marks phases; its `mark` may be another one later."""

    def mark(self, phase: str, /) -> object:
        """The phase begins."""


class Phase:
    """A part of a step, as a context. `before`: the phase that comes back at its end."""

    __slots__ = ("_before", "_monitor", "_name")

    def __init__(self, monitor: PhaseMarker, name: str, before: str) -> None:
        self._monitor, self._name, self._before = monitor, name, before

    def __enter__(self) -> None:
        self._monitor.mark(self._name)

    def __exit__(self, *_: object) -> None:
        self._monitor.mark(self._before)


class PeerWait:
    """A wait for others: communication, whatever the phase around it is. `shift`: go into the phase of an index without a mark."""

    __slots__ = ("_before", "_communication", "_shift")

    def __init__(self, shift: Callable[[int], None], before: int, communication: int) -> None:
        self._shift, self._before, self._communication = shift, before, communication

    def __enter__(self) -> None:
        self._shift(self._communication)

    def __exit__(self, *_: object) -> None:
        self._shift(self._before)
