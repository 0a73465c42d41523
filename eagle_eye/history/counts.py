"""What a writer of the history has done so far."""

from dataclasses import dataclass


@dataclass(slots=True)
class WriterCounts:
    """What a writer has done so far."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    skipped: int = 0
    """Blocks whose schema nobody knew."""

    def __add__(self, other: "WriterCounts") -> "WriterCounts":
        return WriterCounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))
