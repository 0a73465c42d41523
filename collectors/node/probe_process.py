"""The process that times mounts (mount_probe.py), from the agent's side: it is asked without ever being waited for longer than was said."""

import logging
import os
import select
import subprocess
import sys
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock, SystemClock
from eagle_eye.errors import UNREADABLE

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("mount_probe.py")
AGAIN_S = 60.0
"""A process that ended is started again after so many seconds."""
END_S = 0.5
"""How long it may take to end once its input is closed; one that hangs in the kernel is left behind."""


class ProbeQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked about one mount."""

    name: str
    """Of the mount, as its answer repeats it."""
    mount: str
    path: str
    """A file or folder on it that a job uses."""
    node: str
    timed: bool = False
    """False: its free space alone."""
    write: str = ""
    """Folder to write into; '' for none."""
    owner: int = -1
    """User id that the folder has to be of; -1: anybody's."""


class ProbeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured. NaN: not asked for, or refused."""

    name: str
    stat_s: float = float("nan")
    read_s: float = float("nan")
    """Of 4 KiB."""
    write_s: float = float("nan")
    """Of 4 KiB into a new file, with fsync."""
    free_bytes: float = float("nan")
    free_inodes: float = float("nan")
    errors: dict[str, str] = {}


class MountProber(Protocol):
    """Times mounts: answers come later, or never."""

    def ask(self, question: ProbeQuestion, /) -> bool:
        """False: it cannot be asked now."""
        ...

    def answers(self, wait_s: float, most: int, /) -> list[ProbeAnswer]:
        """What has been answered since, as soon as there are so many, or `wait_s` seconds are over."""
        ...

    @property
    def ended(self) -> int:
        """How often it has ended: what it had been asked until then will not be answered."""
        ...


class ProbeProcess:
    """Starts the process when it is first asked, and again if it ended."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None
        self._started = float("-inf")
        self._rest = b""
        self.ended = 0

    def ask(self, question: ProbeQuestion, /) -> bool:
        """Returns at once. Raises OSError if it cannot be started."""
        process = self._running()
        if process is None or process.stdin is None:
            return False
        with suppress(BrokenPipeError):  # it has just ended: `answers` sees that
            process.stdin.write(msgspec.json.encode(question) + b"\n")
        return True

    def _running(self) -> subprocess.Popen[bytes] | None:
        now = self._clock.monotonic()
        if self._process is None and now - self._started >= AGAIN_S:
            self._started = now
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0, cwd="/", start_new_session=True,
            )  # fmt: skip
            self._rest = b""
            weakref.finalize(self, _end, self._process)
        return self._process

    def answers(self, wait_s: float, most: int, /) -> list[ProbeAnswer]:
        """See MountProber. A line that is no answer is left out."""
        until, found = self._clock.monotonic() + wait_s, list[ProbeAnswer]()
        while self._process is not None and len(found) < most:
            assert self._process.stdout is not None
            left = max(0.0, until - self._clock.monotonic())
            if not _is_readable(self._process.stdout.fileno(), left):
                break
            data = os.read(self._process.stdout.fileno(), 65_536)
            if not data:
                self._lose()
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                with suppress(*UNREADABLE):
                    found.append(msgspec.json.decode(line, type=ProbeAnswer))
        return found

    def _lose(self) -> None:
        self.ended += 1
        log.warning("the process that times mounts has ended; it is started again after %.0f s", AGAIN_S)
        if self._process is not None:
            _end(self._process)
            self._process = None


def _is_readable(file: int, wait_s: float) -> bool:
    """By poll(2): select(2) knows no descriptor beyond 1,023, and an agent may have more."""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(1000.0 * wait_s))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close its input, which ends it, and take its exit status if it can end."""
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it hangs in the kernel: the system reaps it once we have ended
