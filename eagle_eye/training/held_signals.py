"""Signals that come while a step is run again: the script's handlers, which may store what they find, see the state of the training and none of a replay.

A mask would not do: the kernel then gives the signal to another thread, and Python runs the handler in the main thread all the same. So the handlers are exchanged for one that notes.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class HeldSignals:
    """A context: those with a handler in Python that come meanwhile are given to it behind the context, in the order in which they came. Ctrl-C still ends what is marked by `interruptible`."""

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[int] = []
        self.interruptible = False
        """What runs now may be ended by KeyboardInterrupt, as it may without this."""

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Raises what a handler raises."""
        for number, handler in self._handlers.items():
            if signal.getsignal(number) == self._note:  # else the script has set another one meanwhile
                signal.signal(number, handler)
        self._give()

    def _give(self) -> None:
        """Also those behind one whose handler raises."""
        while self._came:
            number = self._came.pop(0)
            try:
                signal.raise_signal(number)
            except BaseException:
                self._give()
                raise

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.interruptible and self._handlers.get(number) is signal.default_int_handler:
            signal.default_int_handler(number, frame)
        if number not in self._came:
            self._came.append(number)


def can_hold() -> bool:
    """In another thread than the main one nobody can: there, no handler of the script may be set."""
    if threading.current_thread() is threading.main_thread():
        return True
    return not any(callable(handler) and handler is not signal.default_int_handler for handler in map(signal.getsignal, signal.valid_signals()))
