"""Attributes of events as numbers: they are texts that came over a wire, and may hold anything.

>>> from eagle_eye.types import Entity, Event, Kind
>>> event = Event(name="stall", job="t/n/r", entity=Entity(kind=Kind.JOB, name="t/n/r"), time=0.0, node="a", incarnation="i", number=1, attributes={"step": "7", "age_s": "inf"})
>>> integer_attribute(event, "step"), integer_attribute(event, "marks"), float_attribute(event, "age_s")
(7, -1, 0.0)
"""

import math

from .types import LARGEST, Event

EXCLUDED_STALLED = "it was stalled while all others waited for it"
"""`reason` of `worker.excluded` where a coordinator leaves a worker out because of a stall; the detector of stalls reads it."""


OF_THE_PRESENT = frozenset({"job.finished", "job.failed", "budget.exhausted", "restart.delayed"})
"""What a coordinator says of its job as it is now; each names the epoch."""


def epoch_of(event: Event) -> int:
    """The epoch that an event names, however large; -1 if it names none."""
    try:
        return int(event.attributes.get("epoch", "-1"))
    except ValueError:
        return -1


def is_outdated(event: Event, epoch: int) -> bool:
    """Whether it says how its job is, and the job has gone on since: the others began `epoch` without the coordinator that says so, which was cut off, or kept it
    in its spool.

    >>> from eagle_eye.types import Entity, Event, Kind
    >>> ended = Event(name="job.failed", job="t/n/r", entity=Entity(kind=Kind.JOB, name="t/n/r"), time=0.0, node="a", incarnation="i", number=1, attributes={"epoch": "3"})
    >>> is_outdated(ended, 3), is_outdated(ended, 4)
    (False, True)
    """
    return event.name in OF_THE_PRESENT and 0 <= epoch_of(event) < epoch


def integer_attribute(event: Event, name: str) -> int:
    """An attribute of an event as an integer; -1 if it is missing, not an integer, or larger than any count."""
    return integer_of(event.attributes.get(name, ""))


def float_attribute(event: Event, name: str) -> float:
    """An attribute of an event as a float; 0.0 if it is missing or not a finite number."""
    try:
        number = float(event.attributes.get(name, ""))
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def integer_of(text: str) -> int:
    """A text as an integer; -1 if it is none, or larger than any count."""
    try:
        number = int(text)
    except ValueError:  # also for more digits than Python converts
        return -1
    return number if abs(number) <= LARGEST else -1
