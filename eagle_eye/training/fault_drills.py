"""Fault drills: faults that can only be made inside a trainer, injected from outside.

Nothing of this is in the script or in the hot path: the probe's thread queues a call that the interpreter runs
in the main thread between two instructions of the script, as it runs signal handlers.
"""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from eagle_eye.errors import EagleEyeError

from .messages import DRILLS

ILLEGAL_ACCESS = (
    "CUDA error: an illegal memory access was encountered\n"
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\n(eagle-eye drill)"
)
_PENDING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_LONG_S = 1 << 30
SLOW_S = 2.0
"""A slow-down that nobody has asked for anew for so long is over: whoever began it may be dead."""
RUN_S, PAUSE_S = 0.01, 0.07
_alive: list[object] = []
"""Callbacks that the interpreter holds as bare addresses: they must outlive their call."""


class AcceleratorError(RuntimeError):
    """Looks like the error that torch raises after an illegal memory access on a GPU."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(arguments or (ILLEGAL_ACCESS,)))


AcceleratorError.__module__ = "torch"


def prepare(name: str) -> Callable[[], None]:
    """The act of a drill, to be called once the answer is out. Raises EagleEyeError if it cannot be done here."""
    if name == "hang":
        return lambda: _in_main_thread(_sleep)
    if name == "hang-gil":
        return lambda: _in_main_thread(_sleep_with_gil)
    if name == "exception":
        return _raise_in_main_thread
    if name == "slow":
        return slow_down
    if name == "nan":
        parameter = _biggest_parameter()
        return lambda: _write_nan(parameter)
    raise EagleEyeError(f"unknown drill {name!r}: one of {', '.join(DRILLS)}")


def _in_main_thread(act: Callable[[], None]) -> None:
    """Let the main thread call `act` as soon as it runs Python again."""

    def call(_: int) -> int:
        act()
        return 0

    callback = _PENDING(call)
    _alive.append(callback)
    ctypes.pythonapi.Py_AddPendingCall(callback, None)


def _sleep() -> None:
    """Sleep for ever; other threads run."""
    while True:
        threading.Event().wait(_LONG_S / 1000)


def _sleep_with_gil() -> None:
    """Sit in a C call that does not release the GIL: no thread runs Python any more."""
    sleep = ctypes.PyDLL(None).sleep
    while True:
        sleep(_LONG_S)  # a signal cuts it short


class _SlowDown:
    """Lets the main thread run for `RUN_S` at a time and sleep for `PAUSE_S`, until nobody has asked for it for `SLOW_S`.

    So it computes several times as long as its peers and never stands still; no process is stopped, and none competes for the processor.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._thread: threading.Thread | None = None
        self._paused = threading.Event()
        self._callback: Any = None
        """One for all pauses: it may not be freed while the interpreter is still returning from it."""

    def __call__(self) -> None:
        """Begin, or go on for another SLOW_S."""
        self._until = time.monotonic() + SLOW_S
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._run, name="eagle-eye-slow", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        self._callback = self._callback or _PENDING(self._pause)
        while time.monotonic() < self._until:
            self._paused.clear()
            ctypes.pythonapi.Py_AddPendingCall(self._callback, None)
            self._paused.wait()
            threading.Event().wait(RUN_S)

    def _pause(self, _: int) -> int:
        threading.Event().wait(PAUSE_S)
        self._paused.set()
        return 0


slow_down = _SlowDown()


def _raise_in_main_thread() -> None:
    main = threading.main_thread().ident
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main or 0), ctypes.py_object(AcceleratorError))


def _biggest_parameter() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise EagleEyeError("this worker has not imported torch: there is no parameter to write NaN to")
    found = None
    for thing in gc.get_objects():
        # by type, not isinstance: that would wake up every lazy proxy on the heap
        if issubclass(type(thing), torch.nn.Parameter) and (found is None or thing.numel() > found.numel()):
            found = thing
    if found is None or found.dim() == 0:
        raise EagleEyeError("this worker holds no torch parameter yet")
    return found


def _write_nan(parameter: Any) -> None:
    """Write NaN into one column, so that a table of which a step reads few rows is hit as well.

    Through `.data`: autograd must not notice, it would raise instead of computing with the NaN.
    """
    parameter.data[..., 0] = float("nan")
