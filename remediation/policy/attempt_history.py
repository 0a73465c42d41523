"""What was attempted lately, so that the same repair is not attempted on the same fault for ever."""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from eagle_eye.types import Incident, Outcome, Plan

from .escalation import Attempt, moved

KEPT = 1024
REPAIRS = frozenset({"reattempt", "restart_worker", "evict_node", "roll_back", "heal_in_place", "rebalance", "resize"})


def attempt_of(
    plan: Plan, incident: Incident, ended: float, *, level: str = "", failed: bool = False, step: int = -1
) -> Attempt:
    """A plan as an attempt on its incident's fault; `level`: its level of escalation, where that is not the name of the action."""
    return Attempt(
        plan=plan.id,
        incident=incident.id,
        job=incident.job,
        cause=incident.cause,
        culprits=frozenset(str(culprit.entity) for culprit in incident.culprits),
        action=level or _level(plan),
        ended=ended,
        failed=failed,
        step=step,
        swap=plan.targets[0].swap,
    )


def _level(plan: Plan) -> str:
    """The narrower meaning that a plan's action has, if any."""
    target = plan.targets[0]
    return "skip_batch" if target.skip else "swap_ranks" if target.swap else plan.action


class AttemptHistory:
    """Attempts, plans and outcomes of the last hour or so, in the order in which they were made."""

    def __init__(self) -> None:
        self._attempts: dict[str, Attempt] = {}
        self._outcomes: deque[Outcome] = deque(maxlen=KEPT)
        self.plans: dict[str, Plan] = {}

    def plan(self, plan: Plan) -> None:
        """Keep a plan; the oldest go."""
        self.plans[plan.id] = plan
        while len(self.plans) > KEPT:
            self.plans.pop(next(iter(self.plans)))

    def attempt(self, attempt: Attempt) -> None:
        """Keep an attempt, or replace what is known of it."""
        self._attempts[attempt.plan] = attempt
        while len(self._attempts) > KEPT:
            self._attempts.pop(next(iter(self._attempts)))

    def judged(self, plan: str, ended: float, *, failed: bool) -> None:
        """The result of the verification of an attempt."""
        if plan in self._attempts:
            self._attempts[plan] = replace(self._attempts[plan], ended=ended, failed=failed)

    def forgive(self, job: str, action: str, until: float) -> None:
        """An operator has closed the breaker: what failed before counts no more."""
        mine = {key for key, old in self._attempts.items() if (old.job, self.action_of(old)) == (job, action)}
        for key in mine:
            if self._attempts[key].ended <= until:
                del self._attempts[key]

    def action_of(self, attempt: Attempt) -> str:
        """Of the plan that was attempted; its level may be narrower (skip_batch)."""
        return self.plans[attempt.plan].action if attempt.plan in self.plans else attempt.action

    def outcome(self, outcome: Outcome) -> None:
        """Keep an outcome, or replace what is known of it."""
        older = [kept for kept in self._outcomes if kept.plan != outcome.plan]
        self._outcomes = deque([*older, outcome], maxlen=KEPT)

    def outcomes(self) -> tuple[Outcome, ...]:
        """Newest first."""
        return tuple(reversed(self._outcomes))

    def attempts_on(self, incident: Incident, culprits: frozenset[str], relapse_s: float) -> list[Attempt]:
        """On this incident, or on the same fault, so lately that it must have come back. What was attempted on others, before
        the incident turned on these culprits, speaks for no stronger repair of these."""
        return [
            attempt
            for attempt in self._attempts.values()
            if incident.since - attempt.ended <= relapse_s
            and (attempt.incident == incident.id or attempt.same_fault(incident.job, incident.cause, culprits))
            and not moved(attempt.cause, attempt.culprits, incident.cause, culprits)
        ]

    def followed(self, incident: Incident, culprits: frozenset[str], relapse_s: float) -> tuple[str, ...]:
        """The nodes that exchanged their ranks before the same fault was reported where these ranks are now; () if that did not happen."""
        found = (
            attempt.swap
            for attempt in self._attempts.values()
            if incident.since - attempt.ended <= relapse_s and attempt.followed_by(incident.job, incident.cause, culprits)
        )
        return next(found, ())

    def last_on(self, incident: str) -> float:
        """When the last attempt on this incident ended; infinity if there was none."""
        return max((attempt.ended for attempt in self._attempts.values() if attempt.incident == incident), default=math.inf)

    def recall(self, plans: Iterable[Plan], outcomes: Iterable[Outcome], incidents: dict[str, Incident]) -> None:
        """Take in what the leader before recorded."""
        for plan in plans:
            self.plan(plan)
        for outcome in sorted(outcomes, key=lambda outcome: outcome.time):
            self.outcome(outcome)
            tried, incident = self.plans.get(outcome.plan), incidents.get(outcome.incident)
            if tried is None or incident is None or outcome.state not in ("done", "failed") or tried.action not in REPAIRS:
                continue
            step = int(outcome.predicted.get("bad_step", -1))
            self.attempt(attempt_of(tried, incident, outcome.time, failed=outcome.state == "failed", step=step))
