"""Whether ticks run over, and how much less often detectors are asked then.

Only those that are not asked at each tick anyway, because they judge minutes (`every` of a detector above 1), are asked still less often: what finds hangs and deaths, and the rules,
see every tick. The owner of a partition writes `stretch` into its marks, so that a replay asks the same detectors at the same ticks.
"""

from collections import deque
from dataclasses import dataclass, field

LATE, OF = 3, 10
"""So many of the newest ticks ran over: the stretch is doubled ..."""
CALM = 60
"""... and halved behind so many in succession that did not."""
MOST = 32
"""Times `every`, at most: in a minute and a half a detector of every third tick has been asked."""


@dataclass(slots=True)
class TickLoad:
    """Of one partition's owner."""

    stretch: int = 1
    """`every` of a detector is multiplied by it."""
    missed: int = 0
    """Ticks that were left out, because what came before them was not done."""
    _late: deque[bool] = field(default_factory=lambda: deque(maxlen=OF))
    _calm: int = 0

    def tick(self, late_s: float, tick_s: float) -> str:
        """A tick comes `late_s` seconds after it was due. What a person is to be told about it; '' if nothing."""
        left_out = max(0, int(late_s / tick_s))
        self.missed += left_out
        self._late.append(left_out > 0)
        self._calm = 0 if left_out else self._calm + 1
        if sum(self._late) >= LATE and self.stretch < MOST:
            self._turn(2 * self.stretch)
            return f"ticks run over ({self.missed} left out so far): detectors that judge minutes are asked {self.stretch} times less often; hangs, deaths and rules at every tick, as before"
        if self._calm >= CALM and self.stretch > 1:
            self._turn(self.stretch // 2)
            return f"ticks are on time again: detectors that judge minutes are asked {f'{self.stretch} times less often' if self.stretch > 1 else 'as often as before'}"
        return ""

    def _turn(self, stretch: int) -> None:
        self.stretch, self._calm = stretch, 0
        self._late.clear()
