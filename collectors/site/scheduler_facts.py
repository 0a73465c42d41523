"""What a scheduler says of a node and of what it runs there, whichever scheduler it is."""

import math
from typing import NamedTuple

LONGEST_REASON = 400
"""Characters of what somebody wrote by hand."""


class PreemptionNotice(NamedTuple):
    """A scheduler, or who owns the machine, is about to end something here."""

    scheduler: str
    """slurm or kubernetes"""
    subject: str
    """What is ended, such as `Slurm job 7`, `pod team/gpt-0` or `node n1`."""
    reason: str
    """preempted, evicted, deleted, cancelled, time_limit, spot_interruption, ...: docs/schedulers.md."""
    began: float
    """Seconds since 1970 from which on something may end for it; NaN: not known."""
    deadline: float = math.nan
    """Seconds since 1970 at which it is over; NaN: nobody says."""
    detail: str = ""
    """In the scheduler's own words."""


class NodeState(NamedTuple):
    """A node as its scheduler sees it."""

    scheduler: str
    states: tuple[str, ...] = ()
    """That are out of the ordinary, such as drain or KernelDeadlock; () = it takes work."""
    reason: str = ""
    """As it is written there."""


def bounded(text: str) -> str:
    """On one line, and no longer than a reason may be.

    >>> bounded("broken\\n fan")
    'broken fan'
    """
    return " ".join(text.replace("\0", " ").split())[:LONGEST_REASON]
