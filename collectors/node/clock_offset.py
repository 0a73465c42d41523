"""How far the machine's clock is off, and whether it follows another one: told by chronyd, else by the kernel, else by linuxptp.

A clock that follows PTP (ptp4l, phc2sys) is none that the kernel knows as synchronised where those leave its state alone: ptp4l is asked by
`pmc`, which needs root as a rule, and without an answer nothing is known of such a clock. Not asked: PTP hardware clocks (/dev/ptp*), by an ioctl per card.
"""

import ctypes
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
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
PTP, PTP_TO_SYSTEM = "ptp4l", "phc2sys"
"""The daemon that follows a PTP clock, with that of a network card as a rule; the one by which the machine's clock follows the card's."""
OF_SYSTEM = "-S"
"""Argument of ptp4l: it sets the machine's clock itself (software time stamps)."""
ASK_PTP = ("-u", "-b", "0", "GET TIME_STATUS_NP")
PTP_SOCKET = "pmc.sock"
"""Where ptp4l sends its answer: below /var/run by itself, which a unit's sandbox makes read-only."""
_PTP_OFFSET = re.compile(r"^\s*master_offset\s+(-?\d{1,19})\s*$", re.MULTILINE)
_PTP_LED = re.compile(r"^\s*gmPresent\s+(true|false)\s*$", re.MULTILINE)


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


def ptp_offset_of(status: str) -> ClockOffset:
    """Of what `pmc 'GET TIME_STATUS_NP'` prints.

    >>> ptp_offset_of("sending: GET TIME_STATUS_NP\\n 507c6f.fffe.0a0b0c-0 seq 0 RESPONSE MANAGEMENT TIME_STATUS_NP\\n  master_offset  -250\\n  gmPresent  true")
    ClockOffset(offset_s=-2.5e-07, synchronised=1.0)
    >>> ptp_offset_of("sending: GET TIME_STATUS_NP")
    ClockOffset(offset_s=nan, synchronised=nan)
    """
    offset, led = _PTP_OFFSET.search(status), _PTP_LED.search(status)
    if offset is None or led is None:
        return NOT_KNOWN
    return ClockOffset(int(offset[1]) / 1e9, 1.0) if led[1] == "true" else ClockOffset(math.nan, 0.0)


@dataclass
class PtpWatch:
    """Asks ptp4l, where it runs and sets the machine's clock. Whether it does is looked up every `every_s` seconds, in /proc."""

    program: str
    every_s: float
    proc: Path
    socket_folder: Path | None = None
    """In which pmc may make its socket; None: where it does so by itself."""

    def __post_init__(self) -> None:
        at = ("-i", str(self.socket_folder / PTP_SOCKET)) if self.socket_folder is not None and os.access(self.socket_folder, os.W_OK) else ()
        self._pmc = PolledProgram((self.program, *at, *ASK_PTP), "the offset of a PTP clock is not known", every_s=self.every_s, answer_s=ANSWER_S, largest=LARGEST)
        self._looked_s = -math.inf
        self._daemons: dict[str, list[str]] = {}
        self._known = NOT_KNOWN

    def look(self, now: float, *, ask: bool) -> ClockOffset | None:
        """The newest answer at the monotonic time `now`; None: no PTP here. `ask`: whether a program may be started."""
        if now - self._looked_s >= self.every_s:
            self._looked_s, self._daemons = now, dict(self._found())
        if not self._sets_clock:
            self._known = NOT_KNOWN
        elif (ask or self._pmc.waits) and (answer := self._pmc.look(now)) is not None:
            self._known = NOT_KNOWN if answer.problem else ptp_offset_of(answer.output.decode("utf-8", "replace"))
        return self._known if self._daemons else None

    @property
    def _sets_clock(self) -> bool:
        """ptp4l alone follows with the clock of a card, which says nothing about the machine's."""
        return PTP in self._daemons and (PTP_TO_SYSTEM in self._daemons or OF_SYSTEM in self._daemons[PTP])

    def _found(self) -> Iterator[tuple[str, list[str]]]:
        """Name and arguments of each daemon; none where /proc cannot be read."""
        with suppress(OSError):
            for process in (entry for entry in self.proc.iterdir() if entry.name.isdecimal()):
                with suppress(OSError):  # it has ended
                    if (name := (process / "comm").read_text(errors="replace").strip()) in (PTP, PTP_TO_SYSTEM):
                        yield name, (process / "cmdline").read_text(errors="replace").split("\0")


@dataclass
class ClockWatch:
    """Asks chronyc from time to time, ptp4l where there is no chronyd, and never waits for either: an answer is taken at a later look."""

    program: str = "chronyc"
    every_s: float = 60.0
    ptp_program: str = "pmc"
    proc: Path = Path("/proc")
    socket_folder: Path | None = None
    """In which pmc may make its socket."""
    clock: Clock = field(default_factory=SystemClock)

    def __post_init__(self) -> None:
        self._chronyc = PolledProgram((self.program, "-c", "tracking"), "the offset of the clock comes from the kernel alone", every_s=self.every_s, answer_s=ANSWER_S, largest=LARGEST)
        self._known = NOT_KNOWN
        self._ptp = PtpWatch(self.ptp_program, self.every_s, self.proc, self.socket_folder)

    def look(self) -> ClockOffset:
        """The newest answer; the kernel's where chronyd has none; ptp4l's where the kernel knows of nobody that sets the clock."""
        now = self.clock.monotonic()
        answer = self._chronyc.look(now)
        if answer is not None:
            self._known = NOT_KNOWN if answer.problem else offset_of(answer.output.decode("utf-8", "replace"))
        elif self._chronyc.missing:
            self._known = NOT_KNOWN
        return self._without_chronyd(now) if self._known is NOT_KNOWN else self._known

    def _without_chronyd(self, now: float) -> ClockOffset:
        kernel = kernel_offset()
        if kernel.synchronised == 1.0:
            return kernel
        ptp = self._ptp.look(now, ask=not self._chronyc.waits)
        return kernel if ptp is None else ptp
