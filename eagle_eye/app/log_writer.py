"""Writes the log to stderr from a thread of its own.

A terminal that is held (Ctrl-S), a pager or a collector of logs that does not read would stop whoever logs: a launcher would not start its
workers, and not see them die. What is not taken is dropped and counted.
"""

import contextlib
import logging
import os
import threading
from queue import Full, Queue

STDERR = 2
MOST = 10_000
"""Lines that wait."""
LAST_S = 1.0
"""How long the last ones may take at the end of the process."""


class LogWriter(logging.Handler):
    """Never waits. A line that is not written within LAST_S of the end of the process is lost."""

    def __init__(self, out: int = STDERR) -> None:
        """`out`: a descriptor."""
        super().__init__()
        self._out = out
        self._lines: Queue[str | None] = Queue(MOST)
        self._dropped = 0
        self._written = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written; called by logging."""
        try:
            self._lines.put_nowait(self.format(record))
        except Full:
            self._dropped += 1
        except Exception:  # noqa: BLE001 -- as every handler does: an argument that cannot be shown is told by logging itself
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, at most LAST_S."""
        with self._written:
            self._written.wait_for(lambda: not self._lines.unfinished_tasks, LAST_S)

    def close(self) -> None:
        """End the thread once all is written."""
        with contextlib.suppress(Full):  # it waits for whoever does not read, and ends with the process
            self._lines.put_nowait(None)
        self.flush()
        super().close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped:
                line, self._dropped = f"{line}\n({self._dropped} lines were not written: nobody took them)", 0
            with contextlib.suppress(OSError):  # a closed pipe, a full disk: there is nobody to tell
                self._write(f"{line}\n".encode(errors="backslashreplace"))
            self._done()
        self._done()

    def _done(self) -> None:
        with self._written:
            self._lines.task_done()
            self._written.notify_all()

    def _write(self, text: bytes) -> None:
        while text:
            text = text[os.write(self._out, text) :]
