"""How much of a processor a process uses, and the moment at which it begins to use far less: a worker without a ring is looked into then."""

import math
from collections import deque

WINDOW_S = 1.0
"""Over which its use is measured."""
USUAL_S = 5.0
"""What it is used to is an average that forgets in so many seconds."""
FAR_LESS = 0.25
"""Of what it is used to. Service threads of torch and of the probe use a little also in a process that hangs."""


class ProcessorUse:
    """One process. Falling is told once: from its usual use to far less, and from there to none at all."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._usual = 0.0
        self._level = 0

    def falls(self, cpu_s: float, monotonic: float) -> bool:
        """Take a sample of its processor time; True if it has just begun to use far less."""
        while len(self._samples) > 1 and monotonic - self._samples[1][0] >= WINDOW_S:
            self._samples.popleft()
        before = self._samples[-1] if self._samples else (monotonic, cpu_s)
        self._samples.append((monotonic, cpu_s))
        began, cpu_then = self._samples[0]
        if monotonic - began < WINDOW_S:
            self._learn(cpu_s - before[1], monotonic - before[0])
            return False
        share = (cpu_s - cpu_then) / (monotonic - began)
        level, before_level = _level(share, self._usual), self._level
        self._level = level
        self._learn(cpu_s - before[1], monotonic - before[0])
        return level > before_level

    def _learn(self, cpu_s: float, seconds: float) -> None:
        if seconds > 0.0:
            kept = math.exp(-seconds / USUAL_S)
            self._usual = kept * self._usual + (1.0 - kept) * cpu_s / seconds


def _level(share: float, usual: float) -> int:
    if share <= 0.0:
        return 2
    return 1 if share < FAR_LESS * usual else 0
