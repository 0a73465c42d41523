"""A process that ends with the one that started it, whatever happens to that one.

Not by `preexec_fn` of subprocess: that forks instead of using vfork, and what a library does after a fork runs in the child before
its exec. gRPC's polling thread, started again in a child whose descriptors are closed, ends it with SIGABRT (grpc/grpc#43055).
So the child asks the kernel itself, as the first thing it does.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

VARIABLE = "EAGLE_EYE_PARENT"
PR_SET_PDEATHSIG = 1


def of_ours(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment for a process that is to end with this one: it calls `end_with_parent`."""
    return {**environment, VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """First of all in a program: SIGTERM when the process that started it ends, if it was started with `of_ours`. Ends at once if that one is gone already."""
    parent = os.environ.pop(VARIABLE, "")
    if not parent.isdigit():
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit("eagle-eye: the process that started this one has ended")
