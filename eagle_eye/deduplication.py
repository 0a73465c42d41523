"""At least once becomes once: which numbers of one writer have been seen."""

from bisect import bisect_right

KEPT_GAPS = 256
"""Gaps remembered per writer; the oldest one counts as seen beyond."""
JUMP = 1 << 20
"""Numbers rise one by one. One that is so far beyond the last is not its writer's: it is not remembered, lest what lies between counts as seen."""


class SeenNumbers:
    """The numbers seen so far, as closed intervals: two integers for a writer that misses nothing.

    >>> seen = SeenNumbers()
    >>> [seen.first_time(number) for number in (1, 2, 5, 2, 4, 5, 3)]
    [True, True, True, False, True, False, True]
    """

    __slots__ = ("_highs", "_last", "_lows")

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []
        self._last = 0
        """The last number that was new."""

    def first_time(self, number: int) -> bool:
        """True once for each number."""
        highs = self._highs
        if highs and number == highs[-1] + 1:
            highs[-1] = self._last = number
            return True
        if highs and number > self._last + JUMP:
            return True
        return self._insert(number)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._lows, number) - 1
        return at >= 0 and number <= self._highs[at]

    def _insert(self, number: int) -> bool:
        if number in self:
            return False
        self._last = number
        at = bisect_right(self._lows, number)
        joins_left = at > 0 and self._highs[at - 1] == number - 1
        joins_right = at < len(self._lows) and self._lows[at] == number + 1
        if joins_left and joins_right:
            self._highs[at - 1] = self._highs.pop(at)
            self._lows.pop(at)
        elif joins_left:
            self._highs[at - 1] = number
        elif joins_right:
            self._lows[at] = number
        else:
            self._lows.insert(at, number)
            self._highs.insert(at, number)
        if len(self._lows) > KEPT_GAPS:
            self._lows.pop(1)
            self._highs.pop(0)
        return True


class Writers:
    """What was seen of each incarnation of one writer; the incarnations of long ago are forgotten."""

    __slots__ = ("_incarnations",)

    INCARNATIONS_KEPT = 8

    def __init__(self) -> None:
        self._incarnations: dict[str, SeenNumbers] = {}

    def began_before(self, one: str, other: str) -> bool:
        """Whether one incarnation was seen before the other, by the order of the stream; False if one of them is forgotten."""
        known = list(self._incarnations)
        return one in known and other in known and known.index(one) < known.index(other)

    def first_time(self, incarnation: str, number: int) -> bool:
        """True once for each (incarnation, number)."""
        seen = self._incarnations.get(incarnation)
        if seen is None:
            if len(self._incarnations) >= self.INCARNATIONS_KEPT:
                self._incarnations.pop(next(iter(self._incarnations)))
            seen = self._incarnations[incarnation] = SeenNumbers()
        return seen.first_time(number)
