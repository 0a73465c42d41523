"""Writes the log to stderr from a thread of its own.

A terminal that is held (Ctrl-S), a pager or a collector of logs that does not read would stop whoever logs: a launcher would not start its
workers, and not see them die. What is not taken is dropped and counted.
"""

import contextlib
import logging
import os
import threading
from queue import SimpleQueue

from eagle_eye.writable_text import printable

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
        self._lines: SimpleQueue[str | None] = SimpleQueue()  # a signal's handler may log in the middle of a put, which holds no lock here
        self._taken = self._done = self._dropped = 0
        self._written = threading.Condition()
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Have a record written; called by logging."""
        try:
            self._take(printable(self.format(record).encode(errors="backslashreplace").decode(), keep="\n\t"))
        except Exception:  # noqa: BLE001 -- as every handler does: an argument that cannot be shown is told by logging itself
            self.handleError(record)

    def _take(self, line: str | None) -> None:
        if self._lines.qsize() >= MOST:
            self._dropped += 1
            return
        self._taken += 1
        self._lines.put(line)

    def flush(self) -> None:
        """Wait until all is written, at most LAST_S."""
        with self._written:
            self._written.wait_for(lambda: self._done >= self._taken, LAST_S)

    def close(self) -> None:
        """End the thread once all is written."""
        self._take(None)
        self.flush()
        super().close()

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            if self._dropped:
                line, self._dropped = f"{line}\n({self._dropped} lines were not written: nobody took them)", 0
            with contextlib.suppress(OSError):  # a closed pipe, a full disk: there is nobody to tell
                self._write(f"{line}\n".encode())
            self._finish()
        self._finish()

    def _finish(self) -> None:
        with self._written:
            self._done += 1
            self._written.notify_all()

    def _write(self, text: bytes) -> None:
        while text:
            text = text[os.write(self._out, text) :]
