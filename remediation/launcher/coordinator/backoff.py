"""Back-off: what keeps failing is started again at once, then after 1, 2, 4 … seconds, until it makes progress."""

from eagle_eye.clock import Clock
from remediation.launcher.job_declaration import JobDeclaration

from .coordinator_effects import Effect, EmitEvent

DOUBLINGS = 30
"""More than any longest delay needs; 2 to a higher power is no float one day."""


class Backoff:
    """Of one thing that is started again when it fails: the workers of a job, or one worker."""

    def __init__(self, clock: Clock, first_s: float, longest_s: float, healthy_s: float) -> None:
        """`first_s`: before the second start without progress; `healthy_s`: a life that counts as progress."""
        self._clock = clock
        self._first_s = first_s
        self._longest_s = longest_s
        self._healthy_s = healthy_s
        self._failures = 0
        self._highest = -1
        """The highest step at which it has failed."""
        self._since: float | None = None
        """When it began to run after its last failure; None: it has not."""

    def runs(self) -> None:
        """It runs, since now unless it has done so for longer."""
        if self._since is None:
            self._since = self._clock.monotonic()

    def failed(self, step: int = -1) -> float:
        """Seconds to wait before it is started again. `step`: that it was at; -1 if that is not known.

        A step above every one at which it failed before is progress, and so is a long enough life.
        """
        lived = self._since is not None and self._clock.monotonic() - self._since >= self._healthy_s
        if lived or step > self._highest:
            self._failures = 0
        self._highest, self._since = max(self._highest, step), None
        self._failures += 1
        return min(self._longest_s, self._first_s * 2.0 ** min(self._failures - 2, DOUBLINGS)) if self._failures > 1 else 0.0

    def reset(self) -> None:
        """Somebody has changed what it does: what it failed of before says nothing any more."""
        self._failures, self._highest, self._since = 0, -1, None


class ReplacementBackoff:
    """Of the elastic workers that are replaced where they died, each by its name; the others train on meanwhile."""

    def __init__(self, declaration: JobDeclaration, clock: Clock) -> None:
        self._declaration = declaration
        self._clock = clock
        self._backoffs: dict[str, Backoff] = {}
        """Of workers that have died and not committed a step since."""
        self._due: dict[str, float] = {}
        """Worker → monotonic time before which its replacement is not started."""
        self._news: list[Effect] = []

    @property
    def waiting(self) -> dict[str, float]:
        """Worker → monotonic time at which its replacement may be started, of those that are not due yet."""
        now = self._clock.monotonic()
        self._due = {worker: due for worker, due in self._due.items() if due > now}
        return self._due

    @property
    def wait_s(self) -> float | None:
        """Seconds until the first of them is due; None if none waits."""
        waiting = self.waiting.values()
        return min(waiting) - self._clock.monotonic() if waiting else None

    def died(self, worker: str, kind: str) -> None:
        """Its replacement is started at once, or later if the name keeps dying before it has committed a step."""
        given = self._declaration
        backoff = self._backoffs.setdefault(worker, Backoff(self._clock, given.backoff_s, given.backoff_max_s, given.healthy_s))
        seconds = backoff.failed()
        if seconds > 0.0:
            self._due[worker] = self._clock.monotonic() + seconds
            message = f"{worker} is replaced in {seconds:g} s: {kind}, and it has committed no step since it was replaced before; the others train on"
            self._news.append(EmitEvent(name="replacement.delayed", message=message, attributes={"worker": worker, "seconds": f"{seconds:g}", "kind": kind}))

    def worked(self, worker: str) -> None:
        """It has committed a step: when it dies it is replaced at once."""
        self._backoffs.pop(worker, None)

    def forgive(self, prefix: str) -> None:
        """What went wrong with the workers whose names begin like this is forgotten."""
        for worker in [worker for worker in self._backoffs if worker.startswith(prefix)]:
            del self._backoffs[worker]
            self._due.pop(worker, None)

    def clear(self) -> None:
        """All workers are ended: who takes their place begins anew."""
        self._backoffs.clear()
        self._due.clear()
        self._news.clear()

    def news(self) -> list[Effect]:
        """Events about new delays, each once."""
        news, self._news = self._news, []
        return news
