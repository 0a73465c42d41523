"""How many fetchers a partition is to have, by the records that it brings.

Few records are read faster than they are handed over, so that a small cluster has none; each further fetcher is for so many more records a second.
"""

from math import ceil

from eagle_eye.clock import Clock

AUTOMATIC = -1
FROM_RECORDS_S = 2000.0
"""Records a second from which on a partition has a fetcher; under half of that it has none any more."""
RECORDS_EACH_S = 15_000.0
"""What a fetcher reads a second at most, on a third to a half of a core (`python -m benchmarks.collect.path_at_size --only fetchers`)."""
WINDOW_S = 10.0


class FetcherDemand:
    """The demand of one partition."""

    def __init__(self, setting: int, processors: int, clock: Clock) -> None:
        """`setting`: AUTOMATIC, or so many from the first record on. `processors`: of the machine; one is left to whoever evaluates."""
        self.fetchers = max(0, setting)
        """How many there are to be."""
        self._automatic = setting < 0
        self._most = processors - 1
        self._clock = clock
        self._since = clock.monotonic()
        self._records = 0

    def count(self, records: int) -> None:
        """So many were read since the last call."""
        self._records += records
        passed = self._clock.monotonic() - self._since
        if self._automatic and passed >= WINDOW_S:
            self.fetchers = self._for(self._records / passed)
            self._since, self._records = self._clock.monotonic(), 0

    def _for(self, records_s: float) -> int:
        if records_s < (FROM_RECORDS_S / 2 if self.fetchers else FROM_RECORDS_S):
            return 0
        return min(self._most, ceil(records_s / RECORDS_EACH_S))
