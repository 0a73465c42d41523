"""Steps of epochs that are not over: the last ones of the epoch before arrive late."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.types import Event, Step

from .active_claims import ends_epoch, epoch_over


@dataclass(slots=True)
class CurrentSteps:
    """Of one job, for a detector that judges step by step."""

    _over: int = field(default=-1, init=False)
    """The newest epoch that is over."""

    def ends(self, frame: Frame) -> Iterator[tuple[Event, str]]:
        """The events that end an epoch, and why they do, as an open claim is told that it is over."""
        for event in frame.events:
            if why := ends_epoch(event):
                self._over = max(self._over, epoch_over(event))
                yield event, why

    def of(self, frame: Frame) -> list[Step]:
        """In the order in which they were trained; after `ends`."""
        return sorted((step for step in frame.steps if step.epoch > self._over), key=lambda step: (step.epoch, step.number))
