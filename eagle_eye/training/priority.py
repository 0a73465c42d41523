"""To stand back while others need the processor: for a worker that makes itself ready to join those that train.

The kernel weighs processes in one of two ways, and where one counts the other does not (sched(7)): by session, where
autogroups are on and no control group divides the processor, else by nice value. So both are set. A process may
always lower its priority; whoever may not raise it again later (no CAP_SYS_NICE, no RLIMIT_NICE) keeps it. Between
sessions everybody may.
"""

import os
import threading
from pathlib import Path

NICE = 10
"""A tenth of the weight of the others: they lose little, and on processors that are all busy it takes ten times as long."""
LONGEST_S = 5.0
STANDS_BACK = "EAGLE_EYE_STAND_BACK_S"
"""Variable: another limit, 0 for not at all."""
_BEFORE = "EAGLE_EYE_NICE_BEFORE"
"""Variable that is set while this process stands back: the nice value to come back to, "" where it was left as it was."""
_AUTOGROUP = Path("/proc/self/autogroup")
_TRIES = 20
_AGAIN_S = 0.11
"""Weights of sessions are changed at most ten times a second on the whole machine."""


def step_back() -> None:
    """From now on this process, which leads its session, and all that it starts yield to the others of the machine.

    Until `step_forward`, and for so many seconds at the longest: nobody is to wait for ever for a worker that yields.
    """
    longest_s = _seconds(os.environ.get(STANDS_BACK, ""))
    if longest_s <= 0:
        return
    before = os.getpriority(os.PRIO_PROCESS, 0)
    _weigh_session(NICE)
    back = _may_return(before)
    if back:
        os.setpriority(os.PRIO_PGRP, 0, max(before, NICE))
    os.environ[_BEFORE] = str(before) if back else ""
    timer = threading.Timer(longest_s, step_forward)
    timer.daemon = True
    timer.start()


def step_forward() -> None:
    """Whatever stepped back has its old weight again, in all threads and processes of the group. Else nothing happens."""
    before = os.environ.pop(_BEFORE, None)
    if before is None:
        return
    if before:
        os.setpriority(os.PRIO_PGRP, 0, int(before))
    _weigh_session(0)


def _seconds(text: str) -> float:
    try:
        return float(text) if text else LONGEST_S
    except ValueError:
        return LONGEST_S


def _weigh_session(nice: int) -> None:
    for _ in range(_TRIES):
        try:
            _AUTOGROUP.write_text(str(nice))
        except BlockingIOError:
            threading.Event().wait(_AGAIN_S)
        except OSError:  # there are none here
            return
        else:
            return


def _may_return(nice: int) -> bool:
    """Tried by a thread that ends: a nice value is a thread's own."""
    returned: list[bool] = []

    def there_and_back() -> None:
        try:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(nice, NICE))
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
        except OSError:
            return
        returned.append(True)

    thread = threading.Thread(target=there_and_back)
    thread.start()
    thread.join()
    return bool(returned)
