"""A program of this node that is polled and never waited for: a look starts it, later looks take what it has written."""

import contextlib
import logging
import math
import os
import signal
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

log = logging.getLogger(__name__)

REAP_S = 0.5
"""A program that was killed is waited for so long; one that the kernel holds (state D) is left behind."""


class ProgramAnswer(NamedTuple):
    """What it wrote."""

    output: bytes
    problem: str
    """Why it is no answer; '' if it is one."""


class PolledProgram:
    """One program with its arguments."""

    def __init__(
        self, command: tuple[str, ...], without: str, *, every_s: float, answer_s: float, largest: int, environment: Mapping[str, str] | None = None
    ) -> None:
        """`command`: () asks nobody. `without`: what the log says where it cannot be started. `answer_s`: it is ended after so many seconds. `largest`: bytes that it may write. `environment`: the whole one; None: ours."""
        self.missing = False
        """It could not be started, as where it is not installed: it is not tried again."""
        self._command, self._without, self._every_s, self._answer_s, self._largest, self._environment = command, without, every_s, answer_s, largest, environment
        self._asked = -math.inf if command else math.inf
        self._question: subprocess.Popen[bytes] | None = None
        self._output = bytearray()

    @property
    def waits(self) -> bool:
        """It was asked and has not answered yet."""
        return self._question is not None

    def look(self, now: float) -> ProgramAnswer | None:
        """Its answer, once; None while there is none. Never waits. `now`: monotonic time."""
        if self._question is not None:
            return self._take(self._question, now)
        if now - self._asked >= self._every_s:
            self._ask(now)
        return None

    def close(self) -> None:
        """End the program, with all that it has started, if it has not answered yet."""
        question, self._question = self._question, None
        if question is None:
            return
        assert question.stdout is not None
        if question.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(question.pid, signal.SIGKILL)  # a script's children would hold the pipe open
        question.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            question.wait(REAP_S)

    def _ask(self, now: float) -> None:
        self._asked = now
        try:
            question = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True, env=self._environment
            )
        except OSError as error:
            log.info("%s: %s", self._without, error)
            self._asked, self.missing = math.inf, True
            return
        assert question.stdout is not None
        os.set_blocking(question.stdout.fileno(), False)
        self._question = question
        self._output.clear()

    def _take(self, question: subprocess.Popen[bytes], now: float) -> ProgramAnswer | None:
        over = question.poll() is not None  # before what it wrote is read: nothing comes after
        self._read(question)
        problem = ""
        if len(self._output) > self._largest:
            problem = f"it gave more than {self._largest} bytes"
        elif not over and now - self._asked >= self._answer_s:
            problem = f"no answer within {self._answer_s:g} s"
        elif not over:
            return None
        self.close()
        if not problem and question.returncode:
            problem = f"it ended with {question.returncode}"
        return ProgramAnswer(bytes(self._output), problem)

    def _read(self, question: subprocess.Popen[bytes]) -> None:
        assert question.stdout is not None
        with contextlib.suppress(BlockingIOError):
            while len(self._output) <= self._largest and (piece := os.read(question.stdout.fileno(), 1 << 16)):
                self._output += piece
