"""How a process ended, in the words of an event."""

import os
import signal

from .redaction import last_lines
from .workers import Worker

FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that say nothing about the script."""
YOUNG_S = 5.0
"""A worker without a ring that ended by itself within this time counts as one that never began."""


def code_of(status: int | None) -> int | None:
    """Exit code, negative for a signal, as subprocess has it; None if it is not known."""
    return None if status is None else os.waitstatus_to_exitcode(status)


def signal_name(code: int | None) -> str:
    """SIGKILL, ...; '' if it was no signal."""
    if code is None or code >= 0:
        return ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def exit_attributes(worker: Worker, code: int | None, step: str) -> dict[str, str]:
    """The attributes of the event `exit`."""
    return {
        "pid": str(worker.pid),
        "code": "" if code is None else str(code),
        "signal": signal_name(code),
        "rank": str(worker.place.rank),
        "epoch": str(worker.epoch),
        "step": step,
        "last_lines": last_lines(worker.log, since=worker.log_from),
        "exception": worker.exception,
    }


def exit_message(worker: Worker, code: int | None) -> str:
    """One line for a person."""
    name = signal_name(code)
    how = f"was ended by {name}" if name else f"ended with code {'unknown' if code is None else code}"
    what = f" after {worker.exception}" if worker.exception else ""
    return f"worker {worker.name} (rank {worker.place.rank}, pid {worker.pid}) {how}{what}"


def died_at_start(code: int | None, completed: int | None, lived_s: float) -> bool:
    """Whether it ended by its own doing before any step: restarting such a script helps nobody.

    `completed`: steps of this epoch on this node, None if the script has begun none (or knows nothing of steps).
    """
    if code is None or (code < 0 and -code in FROM_OUTSIDE):
        return False
    return completed == 0 if completed is not None else lived_s < YOUNG_S
