"""Lengths of time as people write them (45s, 90m, 12h, 30d, 2w), and between two times that were read from two clocks."""

import re

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
CLOCKS_DIFFER_S = 1.0
"""By so much clocks may differ that a time server keeps."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def seconds_of(text: str) -> float | None:
    """Seconds, above zero; None if it is no duration.

    >>> seconds_of("90m"), seconds_of("0s"), seconds_of("an hour")
    (5400.0, None, None)
    """
    found = _DURATION.fullmatch(text.strip())
    return (float(found[1]) * UNIT_SECONDS[found[2]] or None) if found else None


def duration_text(seconds: float) -> str:
    """The same the other way round, in the largest unit of which it is a whole number.

    >>> duration_text(3600.0), duration_text(5400.0), duration_text(0.5)
    ('1h', '90m', '0.5s')
    """
    unit = next((unit for unit, length in reversed(UNIT_SECONDS.items()) if seconds >= length and seconds % length == 0), "s")
    return f"{seconds / UNIT_SECONDS[unit]:g}{unit}"


def rounded_duration_text(seconds: float) -> str:
    """Rounded to whole units of the largest that fits, up to days.

    >>> rounded_duration_text(200_000.0), rounded_duration_text(5_000.0), rounded_duration_text(0.4)
    ('2d', '1h', '0s')
    """
    length = next((length for unit, length in reversed(UNIT_SECONDS.items()) if unit != "w" and seconds >= length), 1.0)
    unit = next(unit for unit, known in UNIT_SECONDS.items() if known == length)
    return f"{round(seconds / length):g}{unit}"


def seconds_between(began: float, ended: float) -> float | None:
    """Seconds from one wall time to a later one, perhaps of another machine; None where they cannot be true: a clock was set in between.

    >>> seconds_between(100.0, 102.5), seconds_between(100.0, 99.8), seconds_between(100.0, 90.23)
    (2.5, 0.0, None)
    """
    return max(0.0, ended - began) if ended - began >= -CLOCKS_DIFFER_S else None
