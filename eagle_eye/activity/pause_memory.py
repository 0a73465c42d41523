"""How long a job's own pauses last, so that the next one is waited for: an evaluation every 500 steps, a checkpoint, a slow loader."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class PauseMemory:
    """The longest pause of each kind that ended by itself. A hang never ends by itself, so it teaches nothing.

    Nor does a pause in which somebody was accused: whoever remembers leaves it out. So a pause teaches at most `times` as much as was
    known before it, and no single one makes the memory patient with everything.

    >>> memory = PauseMemory(times=2.0)
    >>> memory.ended("train.py:212 validate", 20.0)
    >>> memory.patience("train.py:212 validate"), memory.patience("train.py:40 step")
    (40.0, 0.0)
    """

    times: float
    """A pause is waited for so many times as long as the longest of its kind."""
    _longest: dict[str, float] = field(default_factory=dict)
    """Phase, or line of the user's code → seconds."""

    def ended(self, kind: str, seconds: float) -> None:
        """A pause of this kind, in which nobody was accused, is over."""
        if kind and seconds > 0.0:
            self._longest[kind] = max(seconds, self._longest.get(kind, 0.0))

    def patience(self, kind: str) -> float:
        """Seconds; 0 when no pause of this kind was seen."""
        return self.times * self._longest.get(kind, 0.0)
