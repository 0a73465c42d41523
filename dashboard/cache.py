"""Answers that are made once for all who ask at the same time, and forgotten after a moment."""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from eagle_eye.clock import Clock

KEPT = 64
"""Answers at most; the one that nobody has asked for longest goes first."""
Answer = TypeVar("Answer")


@dataclass(slots=True)
class _Place:
    """One answer. Whoever asks first makes it, the others wait for it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    made: float | None = None
    until: float = math.inf
    answer: Any = None


class AnswerCache:
    """Thread-safe. What a question raises is not kept."""

    def __init__(self, clock: Clock, *, kept: int = KEPT) -> None:
        self._clock = clock
        self._kept = kept
        self._lock = threading.Lock()
        self._places: OrderedDict[Hashable, _Place] = OrderedDict()

    def get(self, key: Hashable, make: Callable[[], Answer], seconds: float) -> Answer:
        """The answer for that key that is no older than `seconds`; made now if there is none."""
        place = self._place(key)
        with place.lock:
            now = self._clock.monotonic()
            if place.made is None or now - place.made > seconds:
                place.answer = make()
                place.made = self._clock.monotonic()
                place.until = place.made + seconds
            answer: Answer = place.answer
            return answer

    def _place(self, key: Hashable) -> _Place:
        now = self._clock.monotonic()
        with self._lock:
            for old in [name for name, place in self._places.items() if place.until < now and name != key]:
                del self._places[old]
            place = self._places.setdefault(key, _Place())
            self._places.move_to_end(key)
            while len(self._places) > self._kept:
                self._places.popitem(last=False)
            return place
