"""Shifts the wall clock of each Python process that finds this folder first in its PYTHONPATH, by the seconds in a file.

The file ($SHIFTED_CLOCK) holds one double, in bytes of this machine; whoever writes it makes the clock jump. Monotonic clocks are not shifted,
as they are not when a real clock is set.
"""

import mmap
import os
import struct
import time


def _shift(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    seconds = mmap.mmap(file, 8, access=mmap.ACCESS_READ)
    os.close(file)
    read, real, real_ns = struct.Struct("d").unpack_from, time.time, time.time_ns
    time.time = lambda: real() + read(seconds)[0]
    time.time_ns = lambda: real_ns() + int(read(seconds)[0] * 1e9)


if "SHIFTED_CLOCK" in os.environ:
    _shift(os.environ["SHIFTED_CLOCK"])
