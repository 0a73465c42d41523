"""Reports an uncaught exception to the launcher, at the moment at which it reaches the top, and writes it into the ring; there it also writes that the script is over."""

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from . import messages
from .storage_failure import failure_raised

_FRAMES = 12
"""Of a traceback, from its end."""
_LONGEST_TEXT = 3000
_LONGEST_NOTES = 300
_NO_FAULT = (KeyboardInterrupt, SystemExit)


class ErrorStore(Protocol):
    """What the reporter needs of a monitor."""

    @property
    def step(self) -> int: ...
    def store_error(self, error: Mapping[str, Any]) -> None: ...
    def store_end(self, code: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Reporter:
    """Sends the exceptions of one worker to its launcher."""

    monitor: ErrorStore
    launcher: str
    """Its unix socket, '' for none."""
    worker: str
    epoch: int
    now: Callable[[], float] = time.monotonic
    """CLOCK_MONOTONIC, which the launcher on the same machine shares."""

    def report(
        self, kind: type[BaseException], value: BaseException | None, trace: TracebackType | None, thread: str = ""
    ) -> None:
        """Send it, then store it. Never raises: the process has trouble enough."""
        raised_s = self.now()
        error = {**describe(kind, value, trace), "step": self.monitor.step, "thread": thread, "fatal": not thread}
        refused = failure_raised(value, trace)
        storage = {"path": refused.path, "errno": refused.errno, "free_bytes": refused.free_bytes} if refused is not None else {}
        message = messages.encode("exception", worker=self.worker, pid=os.getpid(), epoch=self.epoch, raised_s=raised_s, **error, **storage)
        if self.launcher:
            with contextlib.suppress(OSError):  # the launcher is gone; the ring holds it for the agent
                messages.send(self.launcher, message)
        if not thread:
            self.monitor.store_error(error)


def describe(
    kind: type[BaseException], value: BaseException | None, trace: TracebackType | None
) -> dict[str, str]:
    """Type, message, notes and the last frames, without locals. Cut to a size that fits into the ring."""
    frames = "".join(traceback.format_tb(trace, limit=-_FRAMES))
    try:
        message = str(value)
    except Exception as error:  # noqa: BLE001 - the __str__ of a user's class
        message = f"<no message: its __str__ raised {type(error).__name__}>"
    return {"type": kind.__qualname__, "message": message[:_LONGEST_TEXT], "notes": _notes(value), "traceback": frames[-_LONGEST_TEXT:]}


def _notes(value: BaseException | None) -> str:
    """What was added by `add_note` (PEP 678), a line each."""
    notes = getattr(value, "__notes__", None)
    return "\n".join(note for note in notes if isinstance(note, str))[:_LONGEST_NOTES] if isinstance(notes, list) else ""


_reporters: list[Reporter] = []
"""The reporter of this process; empty without a launcher, and in a forked child of the script, which is no worker."""


def install(reporter: Reporter) -> None:
    """Install hooks for uncaught exceptions; those of the interpreter and of other libraries are called afterwards."""
    _reporters.append(reporter)
    os.register_at_fork(after_in_child=_reporters.clear)
    before, before_thread = sys.excepthook, threading.excepthook

    def hook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        report(kind, value, trace)
        before(kind, value, trace)

    def thread_hook(arguments: threading.ExceptHookArgs) -> None:
        name = arguments.thread.name if arguments.thread is not None else "unknown thread"
        report(arguments.exc_type, arguments.exc_value, arguments.exc_traceback, name)
        before_thread(arguments)

    sys.excepthook, threading.excepthook = hook, thread_hook


def report(
    kind: type[BaseException], value: BaseException | None, trace: TracebackType | None, thread: str = ""
) -> None:
    """Report an exception if there is a launcher and the exception is an error. Never raises."""
    if issubclass(kind, _NO_FAULT):
        return
    try:
        for reporter in _reporters:
            reporter.report(kind, value, trace, thread)
    except Exception:  # noqa: BLE001 - inside an exception hook: the script's own error must still be printed
        return


def script_ended(code: int) -> None:
    """The script is over, with that exit code and no exception. Never raises."""
    for reporter in _reporters:
        with contextlib.suppress(Exception):  # the exit code is the script's
            reporter.monitor.store_end(code)
