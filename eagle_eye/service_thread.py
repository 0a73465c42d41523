"""The name by which the kernel knows a thread of ours in the user's process: what it computes and writes is not the user's work."""

import contextlib
import threading
from pathlib import Path

SERVICE_THREAD = "eagle-eye/serve"
"""At most 15 characters (TASK_COMM_LEN, man 5 proc_pid_comm)."""


def mark_service_thread() -> None:
    """Give the thread that calls this the name, which threads that it starts inherit. It does without where the kernel gives none."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(SERVICE_THREAD)
