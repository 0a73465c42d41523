"""What `exit` and `exception` events say about why a worker ended."""

import errno
from collections.abc import Sequence

from eagle_eye.error_statuses import BY_NAME, ErrorStatus, stronger
from eagle_eye.exception_status import (
    names_an_exception,
    printed_exceptions,
    printed_lines,
    status_printed,
    status_raised,
)
from eagle_eye.training.storage_failure import STORAGE_ERRNOS, STORAGE_ERRNOS_OF_A_PATH
from eagle_eye.types import Event

_RAISED_FROM = ("The above exception was the direct cause of", "During handling of the above exception, another")
"""Lines between two tracebacks of which the first led to the second."""
_ASIDE = ("Exception ignored in", "Exception in thread")
"""Before a traceback that ends nothing: of a finaliser, and of another thread."""
_REFUSED = {"", *(errno.errorcode[number] for number in STORAGE_ERRNOS | STORAGE_ERRNOS_OF_A_PATH)}
"""Attribute `errno` of an exception that tells of storage; '' where the worker knows that, and its library did not say why."""
FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals from outside the script: a person, the scheduler or the kernel's out-of-memory killer sent them."""


def status_of_exit(event: Event) -> ErrorStatus:
    """What the launcher knows; else `killed` for a signal from outside; else what the exception that ended it names, and what that was raised from."""
    if (known := event.attributes.get("status", "")) in BY_NAME:
        return BY_NAME[known]
    if event.attributes.get("signal", "") in FROM_OUTSIDE:
        return BY_NAME["killed"]
    lines = printed_lines(event.attributes.get("last_lines", ""))
    exception = event.attributes.get("exception", "")
    ended_by = _last_chain(_until(exception, lines) if exception else lines) or [status_printed(exception, ())]
    status = stronger(ended_by)
    if status.name != "other software error":
        return status
    spoken = stronger(printed_exceptions(lines))
    return spoken if spoken.symptom else BY_NAME["exited abnormally"]


def status_of_exception(event: Event) -> ErrorStatus:
    """What the launcher knows; else the errno of the file that storage refused, wherever the exception was raised from; else what its type, message and frames tell."""
    if (known := event.attributes.get("status", "")) in BY_NAME:
        return BY_NAME[known]
    if event.attributes.get("errno") in _REFUSED:
        return BY_NAME["storage error"]
    told = event.attributes
    return status_raised(told.get("type", "exception"), told.get("message", ""), told.get("traceback", ""), told.get("frame", ""))


def _until(exception: str, lines: Sequence[str]) -> Sequence[str]:
    """The output up to the exception that the worker reported before it ended; nothing if it is not there."""
    ends = [number for number, line in enumerate(lines, 1) if f".{line.partition(':')[0].strip()}".endswith(f".{exception}")]
    return lines[: ends[-1]] if ends else ()


def _last_chain(lines: Sequence[str]) -> list[ErrorStatus]:
    """What the last exception that was printed tells, and those that it was raised from; the others were survived."""
    chain: list[ErrorStatus] = []
    frames: list[str] = []
    linked = aside = was_aside = False
    for line in lines:
        if line.startswith(_RAISED_FROM):
            linked, aside = not was_aside, was_aside
        elif line.startswith(_ASIDE):
            aside = True
        elif names_an_exception(line):
            if not aside:
                chain = [*(chain if linked else ()), status_printed(line, frames)]
            frames.clear()
            linked, aside, was_aside = False, False, aside
        else:
            frames.append(line)
    return chain
