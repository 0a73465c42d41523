"""What mutated records are fed to: a part of Eagle Eye, opened as its process opens it, and what became of the records."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random
from typing import NamedTuple, Protocol


class Tally(NamedTuple):
    """What became of the records that a subject took."""

    refused: int
    """Records that were not used, as this benchmark sees it."""
    counted: int
    """Of these, counted or told by the product itself."""
    kept: int | None = None
    """Of these, kept aside; None: what they came from is kept by somebody else, or there is nothing to keep."""

    @property
    def whole(self) -> bool:
        """Nothing was refused in silence."""
        return self.refused == self.counted and self.kept in (None, self.counted)

    def __add__(self, other: object) -> "Tally":
        if not isinstance(other, Tally):
            return NotImplemented
        kept = None if self.kept is None or other.kept is None else self.kept + other.kept
        return Tally(self.refused + other.refused, self.counted + other.counted, kept)


class Subject(Protocol):
    """One opened part."""

    def take(self, random: Random) -> None:
        """Make one mutated record and hand it over as it comes in the product. What the product raises here ends the process there."""

    def tally(self) -> Tally:
        """Of all records so far."""


class Target(NamedTuple):
    """A part that records are fed to."""

    name: str
    about: str
    """In the table of results."""
    open: Callable[[Path], AbstractContextManager[Subject]]
    """In an empty folder."""


class Fault(Exception):
    """The product went on, but not as it should: a detector was muted, a good record was lost."""
