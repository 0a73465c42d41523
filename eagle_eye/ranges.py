"""What a number of the configuration may be, as types: a reader of the field sees its unit and its range, and a file with
NaN, infinity or a slip of the pen (lease_s = 20000000) is refused as a whole.

Defaults are our choice; the limits are far beyond what anybody was seen to use, so that only mistakes meet them.
"""

from typing import Annotated

from msgspec import Meta

DAY_S = 86_400.0
YEAR_S = 365 * DAY_S

Seconds = Annotated[float, Meta(gt=0, le=7 * DAY_S)]
"""Above zero, at most a week."""
Delay = Annotated[float, Meta(ge=0, le=7 * DAY_S)]
"""Seconds; 0 is at once."""
LongSeconds = Annotated[float, Meta(gt=0, le=10 * YEAR_S)]
"""Above zero, at most ten years: for how long something is kept, a mean time between failures."""
Share = Annotated[float, Meta(ge=0, le=1)]
Price = Annotated[float, Meta(ge=0, le=1e6)]
"""In whatever currency; 0: none is known."""
Ratio = Annotated[float, Meta(gt=0, le=1000)]
"""Times something else, or so many of its units (iterations, deviations)."""
Count = Annotated[int, Meta(ge=1, le=100_000)]
CountOrNone = Annotated[int, Meta(ge=0, le=100_000)]
"""0 is none."""
Steps = Annotated[int, Meta(ge=0, le=10**12)]
"""Of training; 0: no such span."""
StepsKept = Annotated[int, Meta(ge=2, le=8)]
"""States in a segment of shared memory: with one alone a step that is written would take the place of the only one that is whole."""
Hours = Annotated[float, Meta(ge=0, le=10 * YEAR_S / 3600)]
"""0: no such span."""
Percent = Annotated[float, Meta(gt=0, le=100_000)]
"""Of one processor, so that several may be allowed."""
Megabytes = Annotated[float, Meta(gt=0, le=1 << 20)]
Bytes = Annotated[int, Meta(ge=1, le=1 << 50)]
ProcessId = Annotated[int, Meta(ge=1, le=1 << 22)]
"""Linux's largest is 2²² (proc(5), pid_max)."""
