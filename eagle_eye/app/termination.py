"""The request to end a process: Ctrl-C, SIGTERM, or a terminal that hangs up; once or many times."""

import signal
import threading
from collections.abc import Iterable
from queue import SimpleQueue

from eagle_eye.stop_signals import stopping_signals


def termination_event(numbers: Iterable[signal.Signals] | None = None) -> threading.Event:
    """An event that is set by the first of these signals, or of those that ask a process to end; to be called in the main thread.

    A handler may not set the event itself: it interrupts the main thread anywhere, also while that (or the handler of a
    signal before it) holds the event's lock, and would wait for itself for ever. Only SimpleQueue.put is reentrant.
    """
    event, asked = threading.Event(), SimpleQueue[int]()
    for number in stopping_signals() if numbers is None else numbers:
        signal.signal(number, lambda number, _: asked.put(number))

    def wait() -> None:
        asked.get()
        event.set()

    threading.Thread(target=wait, name="termination", daemon=True).start()
    return event
