"""Signals to a process that runs an event loop: the request to end it (Ctrl-C, SIGTERM, a terminal that hangs up), once or many times; and those of the user."""

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OF_THE_USER = (signal.SIGUSR1, signal.SIGUSR2)
CLEAN_UP_S = 30.0
"""Who is asked again so long after the first time, and still has not ended after its loop, hangs: it is ended as if it handled nothing."""


def stopping_signals() -> tuple[signal.Signals, ...]:
    """Those that ask this process to end: a terminal that hangs up does not where the process was started with nohup."""
    return tuple(number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Have `stop` called in the running loop for each of them; to be called in the main thread.

    Not by `add_signal_handler`: with the end of the loop that gives the signals their default actions back, and one that comes once more
    would end the process before it has cleaned up.
    """
    for number in stopping_signals():
        _call(number, lambda _: stop())


def on_user_signals(act: Callable[[signal.Signals], object]) -> None:
    """The same of SIGUSR1 and SIGUSR2, with the signal: who handles none of them is ended by them."""
    for number in _OF_THE_USER:
        _call(number, act)


def _call(number: signal.Signals, act: Callable[[signal.Signals], object]) -> None:
    loop = asyncio.get_running_loop()
    first: float | None = None

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        first = now if first is None else first
        try:
            loop.call_soon_threadsafe(act, number)
        except RuntimeError:  # the loop is closed: the process ends already
            if number in _SIGNALS and now - first > CLEAN_UP_S:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

    signal.signal(number, ask)


def handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal (SigCgt of /proc/PID/status); False for one that is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (number - 1) & 1)
