"""Commands that the actions send through a Commander: one to each target's coordinator, recorded before and after."""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.ledger import Cordon
from eagle_eye.types import Plan, Progress, Target

CommandArguments = dict[str, Any]
RESTART_TIMEOUT_S = 15.0
"""A coordinator answers once the new epoch is valid."""
GIVE_BACK = "give back"
"""Begin of the steps by which an action takes back what it did to the jobs before the one that failed."""
RESIZE_TIMEOUT_S = 60.0
"""A coordinator answers once the workers that come have joined; they import torch first."""


class Commander(Protocol):
    """Sends one command to the coordinator of a job and waits for its answer."""

    def command(
        self, job: str, action: str, arguments: CommandArguments, *, plan: Plan, step: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        """Idempotent by (plan, step): a command that was done is answered again, not done again.

        Raises TemporaryError (not reachable now), PermanentError (refused) or Stale (the job's epoch is higher).
        """
        ...


class CordonLedger(Protocol):
    """The cordons: which nodes are evicted, and who released them."""

    def cordon(self, node: str, job: str, plan: str, time: float, reason: str = "") -> bool: ...
    def release(self, node: str, person: str, time: float) -> bool: ...
    def cordoned(self) -> tuple[Cordon, ...]: ...


def intended(step: str, detail: str, clock: Clock) -> Progress:
    """A step that is about to be done."""
    return Progress(step=step, state="intended", time=clock.now(), detail=detail)


def done(step: str, detail: str, clock: Clock) -> Progress:
    """A step that was done."""
    return Progress(step=step, state="done", time=clock.now(), detail=detail)


def send_command(
    plan: Plan, target: Target, action: str, arguments: CommandArguments, *, commander: Commander, clock: Clock, timeout: float
) -> Iterator[Progress]:
    """One command: intended, sent, done with the coordinator's answer.

    Raises what the commander raises; the execution records the failure.
    """
    step = f"{action} {target.job}"
    yield intended(step, _text(arguments), clock)
    answer = commander.command(
        target.job, action, arguments, plan=plan, step=step, epoch=target.epoch, timeout=timeout
    )
    yield done(step, _text(answer), clock)


def restart(plan: Plan, *, commander: Commander, clock: Clock, timeout: float) -> Iterator[Progress]:
    """All workers of each target under a new epoch, as the target says; of an elastic job those that the target names."""
    for target in plan.targets:
        arguments: CommandArguments = {
            "workers": list(target.workers),
            "exclude": list(target.exclude),
            "resume_step": target.resume_step,
            "skip": list(target.skip),
            "reason": "command",
            "kind": plan.reason if plan.own else "",  # the cause, which the job's budget counts by
            "own": plan.own,
            "release": [],
        }
        if target.swap:
            arguments["swap"] = list(target.swap)
        yield from send_command(plan, target, "restart", arguments, commander=commander, clock=clock, timeout=timeout)


def resize(plan: Plan, target: Target, *, commander: Commander, clock: Clock, timeout: float) -> Iterator[Progress]:
    """An elastic job goes on with so many workers on these nodes; it trains on meanwhile."""
    yield from send_command(plan, target, "resize", {"workers": target.workers_per_node}, commander=commander, clock=clock, timeout=timeout)


def rebalance(plan: Plan, target: Target, *, commander: Commander, clock: Clock, timeout: float) -> Iterator[Progress]:
    """An elastic job shares its micro-batches out by the speeds of its workers; none named: evenly."""
    yield from send_command(plan, target, "rebalance", {"shares": target.speeds}, commander=commander, clock=clock, timeout=timeout)


def _text(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
