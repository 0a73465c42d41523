"""How far the machine's clock is off, and whether it follows another one: told by chronyd, else by the kernel.

Not asked: PTP hardware clocks (/dev/ptp*), whose offset only root may measure, by an ioctl per card; a clock that follows one
(ptp4l, phc2sys) reads as not synchronised where those leave the kernel's state alone, as they do by default.
"""

import ctypes
import math
from dataclasses import dataclass, field
from typing import NamedTuple

from eagle_eye.clock import Clock, SystemClock

from .polled_program import PolledProgram

ANSWER_S = 5.0
"""Within which chronyc has to answer."""
LARGEST = 1 << 16
"""Bytes; its line has a hundred."""
OFFSET_FIELD, LEAP_FIELD, FIELDS = 4, 13, 14
"""Of `chronyc -c tracking`: the correction of the system time in seconds, above 0 where the clock is behind; the leap status (client.c of chrony)."""
NOT_SYNCHRONISED = "Not synchronised"
UNSYNCHRONISED, NANOSECONDS = 0x40, 0x2000
"""STA_UNSYNC, STA_NANO of linux/timex.h."""
FARTHEST_S = 1e9


class ClockOffset(NamedTuple):
    """NaN: not known."""

    offset_s: float = math.nan
    """Above 0: the machine's clock is ahead."""
    synchronised: float = math.nan
    """1 or 0."""


NOT_KNOWN = ClockOffset()


class _Timex(ctypes.Structure):
    """struct timex of linux/timex.h on 64-bit machines, with room for what comes after `status`."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("frequency", ctypes.c_long), ("largest_error", ctypes.c_long),
        ("estimated_error", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256),
    )  # fmt: skip


def kernel_offset() -> ClockOffset:
    """What the kernel has still to correct (adjtimex(2)): of use where ntpd or systemd-timesyncd set the clock. Asks, and changes nothing."""
    asked = _Timex(modes=0)
    try:
        answer = ctypes.CDLL(None).adjtimex(ctypes.byref(asked))
    except (AttributeError, OSError):  # no such function here
        return NOT_KNOWN
    if answer < 0:
        return NOT_KNOWN
    if asked.status & UNSYNCHRONISED:  # nobody tells the kernel how far it is off
        return ClockOffset(math.nan, 0.0)
    return ClockOffset(-asked.offset / (1e9 if asked.status & NANOSECONDS else 1e6), 1.0)


def offset_of(tracking: str) -> ClockOffset:
    """Of a line of `chronyc -c tracking`.

    >>> offset_of("A29FC801,162.159.200.1,4,1763990000.5,0.000250000,0.00001,0.0002,-12.3,0.01,0.1,0.02,0.001,64.2,Normal")
    ClockOffset(offset_s=-0.00025, synchronised=1.0)
    >>> offset_of("506 Cannot talk to daemon")
    ClockOffset(offset_s=nan, synchronised=nan)
    """
    fields = tracking.strip().split(",")
    if len(fields) != FIELDS:
        return NOT_KNOWN
    try:
        behind = float(fields[OFFSET_FIELD])
    except ValueError:
        return NOT_KNOWN
    if fields[LEAP_FIELD] == NOT_SYNCHRONISED:
        return ClockOffset(math.nan, 0.0)
    return ClockOffset(-behind, 1.0) if abs(behind) < FARTHEST_S else NOT_KNOWN


@dataclass
class ClockWatch:
    """Asks chronyc from time to time and never waits for it: its answer is taken at a later look."""

    program: str = "chronyc"
    every_s: float = 60.0
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self._chronyc = PolledProgram((self.program, "-c", "tracking"), "the offset of the clock comes from the kernel alone", every_s=self.every_s, answer_s=ANSWER_S, largest=LARGEST)
        self._known = NOT_KNOWN

    def look(self) -> ClockOffset:
        """The newest answer; the kernel's where chronyd has none."""
        answer = self._chronyc.look(self.clock.monotonic())
        if answer is not None:
            self._known = NOT_KNOWN if answer.problem else offset_of(answer.output.decode("utf-8", "replace"))
        elif self._chronyc.missing:
            self._known = NOT_KNOWN
        return kernel_offset() if self._known is NOT_KNOWN else self._known
