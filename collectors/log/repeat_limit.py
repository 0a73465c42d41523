"""Many equal messages are one event in a while, with their count.

>>> limit = RepeatLimit(60.0)
>>> limit.passes(("disk", "sda"), 0.0), limit.passes(("disk", "sda"), 1.0), limit.passes(("disk", "sda"), 61.0)
(0, None, 1)
"""

from dataclasses import dataclass

MOST_KEYS = 1024
"""Different messages that are counted; beyond, counting begins anew."""


@dataclass(slots=True)
class _Repetition:
    told: float
    held_back: int = 0


class RepeatLimit:
    """By key: when it was told last, and how often it came since."""

    def __init__(self, repeat_s: float) -> None:
        self._repeat_s = repeat_s
        self._seen: dict[tuple[str, ...], _Repetition] = {}

    def passes(self, key: tuple[str, ...], now: float) -> int | None:
        """To be told: how many like it were held back since the last one. None: hold this one back, too. `now`: monotonic seconds."""
        before = self._seen.get(key)
        if before is not None and now - before.told < self._repeat_s:
            before.held_back += 1
            return None
        if len(self._seen) >= MOST_KEYS:
            self._seen.clear()
        self._seen[key] = _Repetition(now)
        return before.held_back if before else 0
