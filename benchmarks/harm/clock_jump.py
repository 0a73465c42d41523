"""A wall clock that jumps, for the processes of chosen nodes alone: their Python finds `shifted_clock/sitecustomize.py` first."""

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SHIFTED = Path(__file__).with_name("shifted_clock")
JUMP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJump:
    """The clock jumps so long after the training began, and back again later, as a time server corrects it."""

    both: bool
    """The clocks of both nodes of the job, or the second one's alone; the server's stays."""
    seconds: float
    after_s: float
    lasts_s: float

    def __str__(self) -> str:
        return f"{'both clocks jump' if self.both else 'one clock jumps'} by {self.seconds:+.0f} s for {self.lasts_s:.0f} s"


@dataclass(slots=True, kw_only=True)
class JumpingClock:
    """The shift of the clocks, in a file that those processes have mapped."""

    file: Path
    seconds: float = field(default=0.0, init=False)

    def shift(self, seconds: float) -> None:
        """Takes effect at once."""
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("d", seconds))
        self.seconds = seconds

    @contextmanager
    def inherited(self) -> Iterator[None]:
        """What is started meanwhile has this clock."""
        path = os.environ.get("PYTHONPATH", "")
        os.environ.update(SHIFTED_CLOCK=str(self.file), PYTHONPATH=os.pathsep.join(filter(None, (str(SHIFTED), path))))
        try:
            yield
        finally:
            del os.environ["SHIFTED_CLOCK"]
            os.environ["PYTHONPATH"] = path
