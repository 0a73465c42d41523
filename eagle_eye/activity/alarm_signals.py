"""Whether an alarm may interrupt a process: it handles the signal of one. When that comes is not to be seen from outside (man 2 setitimer)."""

import signal
from pathlib import Path

ALARMS = (signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF)
"""Of the interval timers, in the order of `ITIMER_REAL`, `ITIMER_VIRTUAL`, `ITIMER_PROF`."""


def handles_alarm(pid: int) -> bool:
    """From /proc/PID/status (man 5 proc_pid_status); False if the process is gone."""
    try:
        return caught(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return False


def caught(status: str) -> bool:
    """Whether the mask of the signals that are handled has one of `ALARMS`."""
    mask = next((line.partition(":")[2].strip() for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return any(int(mask, 16) >> (number - 1) & 1 for number in ALARMS)
