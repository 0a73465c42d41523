"""A commander without any job behind it: answers like the coordinators of some jobs would."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle_eye.errors import EagleEyeError, PermanentError, Stale, TemporaryError
from eagle_eye.types import Plan
from remediation.job_commands.action_commands import CommandArguments


@dataclass(frozen=True, slots=True)
class SentCommand:
    """A command that a FakeCommander was given."""

    job: str
    action: str
    arguments: CommandArguments
    plan: str
    step: str
    epoch: int
    timeout: float


@dataclass(slots=True)
class FakeCommander:
    """Behaves like the coordinators of some jobs, without any job: for tests and for trying out a configuration.

    `answers`: action → a dict, an error to raise, or a function of the command. A restart raises the epoch.
    """

    epochs: dict[str, int] = field(default_factory=dict)
    answers: dict[str, dict[str, Any] | Exception | Callable[[SentCommand], dict[str, Any]]] = field(default_factory=dict)
    sent: list[SentCommand] = field(default_factory=list)
    """Commands that were carried out."""
    loses: Callable[[SentCommand], bool] = lambda _sent: False
    """Whether the answer to a command is lost. The command is carried out, and the answer kept for whoever asks again."""
    own_restarts: int | None = None
    """What is left of the job's own budget; None: enough."""
    _answered: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def command(
        self, job: str, action: str, arguments: CommandArguments, *, plan: Plan, step: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        """What a coordinator would answer."""
        with self._lock:
            key = (plan.id, step)
            if key in self._answered:
                return self._answered[key]
            now = self.epochs.setdefault(job, epoch)
            if epoch and epoch < now:
                raise Stale(f"{job} is at epoch {now}, the command is for {epoch}")
            sent = SentCommand(job, action, arguments, plan.id, step, epoch, timeout)
            answer = self._answer(sent)
            self.sent.append(sent)
            self._answered[key] = answer
            if self.loses(sent):
                raise TemporaryError(f"{job} did not answer in time", delay=0.5)
            return answer

    def _answer(self, sent: SentCommand) -> dict[str, Any]:
        answer = self.answers.get(sent.action, {})
        if isinstance(answer, EagleEyeError | TimeoutError):
            raise answer
        if callable(answer):
            return answer(sent)
        if sent.action == "restart":
            return self._restart(sent)
        if not isinstance(answer, dict):
            raise TypeError(f"{answer!r} is no answer")
        return answer

    def _restart(self, sent: SentCommand) -> dict[str, Any]:
        if sent.arguments.get("own") and self.own_restarts is not None:
            if self.own_restarts == 0:
                raise PermanentError("the job's own budget is spent")
            self.own_restarts -= 1
        self.epochs[sent.job] += 1
        return {"epoch": self.epochs[sent.job]}
