"""What the engine commands a job with: always through the job's coordinator, always fenced by its epoch and the leader's term."""

from typing import Any, Protocol

from eagle_eye.types import Plan

Arguments = dict[str, Any]


class Commander(Protocol):
    """Sends one command to the coordinator of a job and waits for its answer."""

    def command(
        self, job: str, action: str, arguments: Arguments, *, plan: Plan, step: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        """Idempotent by (plan, step): a command that was done is answered again, not done again.

        Raises TemporaryError (not reachable now), PermanentError (refused) or Stale (the job's epoch is higher).
        """
        ...
