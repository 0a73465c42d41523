"""What the kernel says of a process: state, where it waits in the kernel, which threads are held in uninterruptible sleep."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HELD = "D"
MOST = 4096
"""Threads that are looked at."""


class KernelState(NamedTuple):
    """Of one process at one moment."""

    state: str
    """Letter of the main thread (man 5 proc_pid_stat): R runs, S sleeps, D uninterruptible sleep, T stopped, t traced, Z zombie."""
    wchan: str
    """Function of the kernel in which the main thread waits; '' where it runs, or this user may not know."""
    held: tuple[str, ...] = ()
    """Other threads in the state D, each as `name in wchan`."""


def kernel_state(pid: int) -> KernelState | None:
    """None if the process is gone."""
    found = _thread(pid, pid)
    if found is None:
        return None
    return KernelState(found[1], _wchan(pid, pid), tuple(_held(pid)))


def state_of(pid: int, thread: int = 0) -> str:
    """Letter of a thread's state, by default the main thread's; '' if it is gone."""
    found = _thread(pid, thread or pid)
    return "" if found is None else found[1]


def name_of(pid: int, thread: int) -> str:
    """Name of a thread, at most 15 characters; '' if it is gone."""
    found = _thread(pid, thread)
    return "" if found is None else found[0]


def command_of(pid: int) -> str:
    """Name of its program, at most 15 characters; '' if it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _held(pid: int) -> Iterator[str]:
    for place, folder in enumerate(Path(f"/proc/{pid}/task").glob("[0-9]*")):
        if place >= MOST:
            return
        thread = int(folder.name)
        found = _thread(pid, thread) if thread != pid else None
        if found is not None and found[1] == HELD:
            yield f"{found[0]} in {_wchan(pid, thread) or 'an unknown place'}"


def _thread(pid: int, thread: int) -> tuple[str, str] | None:
    """(name, letter of its state); None if it is gone."""
    try:
        head, _, rest = Path(f"/proc/{pid}/task/{thread}/stat").read_text(errors="replace").rpartition(")")
        return head.partition("(")[2], rest.split()[0]
    except (OSError, IndexError):
        return None


def _wchan(pid: int, thread: int) -> str:
    """The kernel writes 0 for none."""
    try:
        name = Path(f"/proc/{pid}/task/{thread}/wchan").read_text().strip()
    except OSError:
        return ""
    return "" if name == "0" else name
