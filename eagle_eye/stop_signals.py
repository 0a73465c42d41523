"""The request to end a process that runs an event loop: Ctrl-C, SIGTERM, or a terminal that hangs up; once or many times."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def stopping_signals() -> tuple[signal.Signals, ...]:
    """Those that ask this process to end: a terminal that hangs up does not where the process was started with nohup."""
    return tuple(number for number in _SIGNALS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def stop_on_signals(stop: Callable[[], object]) -> None:
    """Have `stop` called in the running loop for each of them; to be called in the main thread.

    Not by `add_signal_handler`: with the end of the loop that gives the signals their default actions back, and one that comes once more
    would end the process before it has cleaned up.
    """
    loop = asyncio.get_running_loop()

    def ask(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends already
            loop.call_soon_threadsafe(stop)

    for number in stopping_signals():
        signal.signal(number, ask)
