"""How many files a process of ours may have open. What a shell gives (1,024) is less than a server of 1,000 nodes needs."""

import asyncio
import errno
import logging
import math
import resource
from typing import Any

log = logging.getLogger(__name__)

NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing of the file that was to be opened: we, or the machine, have no room for it now."""
TOLD_EVERY_S = 60.0
NO_THREAD = "can't start new thread"
"""CPython's words; it has no type for it."""


def is_shortage(error: BaseException | None) -> bool:
    """Whether it, or what caused it, says no more than that this process or its machine has no further thread, descriptor or memory now."""
    while error is not None:
        no_room = isinstance(error, OSError) and error.errno in NO_ROOM | {errno.EAGAIN}
        if no_room or isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_THREAD in str(error)):
            return True
        error = error.__cause__
    return False


def raise_open_file_limit() -> tuple[int, int]:
    """To as many as this user may have. Returns the limits of before (soft, hard), for processes that are not ours."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    except (OSError, ValueError) as error:  # a sandbox may forbid it
        log.warning("the limit of open files stays at %d: %s", before[0], error)
    return before


def tell_no_room_seldom(loop: asyncio.AbstractEventLoop) -> None:
    """A connection that cannot be accepted is told once in TOLD_EVERY_S: asyncio logs a hundred tracebacks a second until there is room."""
    told = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            if loop.time() - told < TOLD_EVERY_S:
                return
            told = loop.time()
        loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
