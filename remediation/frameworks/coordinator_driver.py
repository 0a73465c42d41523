"""What the drivers share: a transition as commands to the job's coordinator, and what became of it."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from eagle_eye.clock import Clock
from eagle_eye.errors import PermanentError, Stale
from eagle_eye.types import Outcome, Plan, Progress, Severity, Target, Transition, digest_of
from remediation.job_commands.action_commands import CommandArguments, Commander, send_command


class TransitionMode(StrEnum):
    """How a framework's job gets from one layout to another."""

    IN_PLACE = "in place"
    """Its processes live on; what they have computed and hold is used."""
    RESTART = "restart"
    """All its processes end, and begin again at the newest whole checkpoint."""


def carry_out(
    transition: Transition, commands: Sequence[tuple[str, CommandArguments]], *, commander: Commander, clock: Clock, timeout: float
) -> Outcome:
    """Send the commands (action, arguments), one after another; each waits for its answer, `timeout` seconds at most.

    The outcome is `stale` if the job has gone on to another epoch, `failed` if its coordinator refuses. Raises
    TemporaryError where the coordinator cannot be reached: the same transition may be applied again, commands that were done are not repeated.
    """
    began = clock.now()
    plan = _plan(transition, began, timeout)
    progress: list[Progress] = []
    state: Literal["done", "failed", "stale"] = "done"
    detail = ""
    epoch = transition.epoch - 1
    try:
        for action, arguments in commands:
            target = _target(transition, epoch)
            progress.extend(send_command(plan, target, action, arguments, commander=commander, clock=clock, timeout=timeout))
            epoch = 0  # the command itself raised the epoch
    except Stale as error:
        state, detail = "stale", str(error)
    except PermanentError as error:
        state, detail = "failed", str(error)
    return Outcome(
        plan=plan.id, incident="", action=plan.action, state=state, time=clock.now(), progress=tuple(progress),
        transition_s=clock.now() - began, detail=detail,
    )  # fmt: skip


def workers_by_node(transition: Transition) -> dict[str, int]:
    """Node → workers; launchers without any are named, too."""
    counts = dict.fromkeys(transition.target.launchers, 0)
    for place in transition.target.placements:
        counts[place.node] = counts.get(place.node, 0) + 1
    return counts


def _plan(transition: Transition, now: float, timeout: float) -> Plan:
    return Plan(
        id=transition.target.plan or digest_of("transition", transition),
        incident="", action="transition", targets=(_target(transition, transition.epoch - 1),), made=now,
        expires=now + timeout, severity=Severity.SEV1, reason=transition.target.reason,
    )  # fmt: skip


def _target(transition: Transition, epoch: int) -> Target:
    return Target(job=transition.job, epoch=epoch, basis=digest_of(transition.target), workers=transition.target.workers)
