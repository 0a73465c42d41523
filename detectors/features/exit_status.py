"""What an `exit` event says about why a worker ended."""

import re

from eagle_eye.error_statuses import BY_NAME, ErrorStatus, classify
from eagle_eye.types import Event

_RAISED = re.compile(r"\s*[\w.]*(Error|Exception|Interrupt)\b")
"""The line of a traceback that names the exception; other output is not read for causes."""

FROM_OUTSIDE = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")
"""Signals from outside the script: a person, the scheduler or the kernel's out-of-memory killer sent them."""


def status_of_exit(event: Event) -> ErrorStatus:
    """What the launcher knows; else `killed` for a signal from outside; else what the exception or the last lines of output name."""
    if (known := event.attributes.get("status", "")) in BY_NAME:
        return BY_NAME[known]
    if event.attributes.get("signal", "") in FROM_OUTSIDE:
        return BY_NAME["killed"]
    last = event.attributes.get("last_lines", "").splitlines()
    lines = [event.attributes.get("exception", ""), *(line for line in last if _RAISED.match(line))]
    status = classify("\n".join(lines))
    return status if status.name != "other software error" else BY_NAME["exited abnormally"]
