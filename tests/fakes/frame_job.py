"""A job whose records a test feeds to a builder of frames, one tick after another."""

from eagle_eye.frames import Frame, FrameBuilder
from eagle_eye.types import Mark
from eagle_eye.wire import Schemas

JOB = "t/n/r"


class FrameJob:
    """Feeds a builder and closes frames."""

    def __init__(self) -> None:
        self.builder = FrameBuilder(JOB, Schemas())
        self.number = 0

    def tick(self) -> Frame:
        self.number += 1
        return self.builder.tick(Mark(mark="tick", generation=1, number=self.number, time=100.0 + self.number))
