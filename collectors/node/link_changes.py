"""What happens to the link of one port: it goes down, comes back, or runs at a lower rate than before."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


class LinkChange(NamedTuple):
    """One of link.down, link.up and link.degraded."""

    name: str
    bytes_per_s: float
    """Now."""
    former_bytes_per_s: float
    """The highest rate that it ran at; NaN: not known."""
    missed: int = 0
    """How often it went down and came back between two looks."""


@dataclass
class LinkChanges:
    """One port. How it is at the first look is no change: a port without a cable, and one that was down before, are no news."""

    active: bool | None = None
    full: float = math.nan
    """The highest rate that it ran at, in bytes per second."""
    _told: float = math.nan
    """Lower rate that was told; NaN: it runs at its full rate."""
    _downs: int | None = None
    """The kernel's count of them."""
    _seen: int = 0
    """Those that were seen since the count was read."""

    def look(self, active: bool | None, bytes_per_s: float) -> Iterator[LinkChange]:
        """Take its state; None says nothing."""
        if active is None:
            return
        before, self.active = self.active, active
        if before is not None and before != active:
            self._seen += not active
            self._told = math.nan
            yield LinkChange("link.up" if active else "link.down", bytes_per_s if active else math.nan, self.full)
        if active and bytes_per_s > 0:
            yield from self._rate(bytes_per_s)

    def _rate(self, now: float) -> Iterator[LinkChange]:
        former = self.full
        self.full = now if math.isnan(former) else max(now, former)
        if now < former and now != self._told:
            self._told = now
            yield LinkChange("link.degraded", now, former)
        elif now >= former and not math.isnan(self._told):
            self._told = math.nan
            yield LinkChange("link.up", now, former)

    def counted(self, downs: int | None) -> Iterator[LinkChange]:
        """Take the kernel's count of downs: what went down and came back between two looks is told too."""
        before, self._downs = self._downs, downs
        seen, self._seen = self._seen, 0
        if before is None or downs is None or not self.active:
            return
        missed = downs - before - seen
        if missed > 0:
            yield LinkChange("link.down", math.nan, self.full, missed)
            yield LinkChange("link.up", self.full, self.full, missed)
