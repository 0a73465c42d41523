"""Calls of code that may never return: who waits for it goes on after a time-out.

A thread cannot be ended from outside: it is left behind, and does not keep the process from ending. A call costs a thread, 60 µs of CPU.
"""

import threading
from collections.abc import Callable

LOOKS = 10
"""Within the time that a call may take: a process that was stopped for longer gives the thread the rest of them when it goes on."""


def returns(name: str, work: Callable[[], None], progress: Callable[[], int], seconds: float) -> bool:
    """Whether `work` has returned. It is given up once `progress` has stayed the same for so many seconds. It must not raise."""
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the process may have no further thread: a call that may hang is better than none
        work()
        return True
    reached, same = progress(), 0
    while same < LOOKS:
        thread.join(seconds / LOOKS)
        if not thread.is_alive():
            return True
        before, reached = reached, progress()
        same = same + 1 if reached == before else 0
    return False
