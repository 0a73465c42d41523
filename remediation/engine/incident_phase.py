"""What the engine waits for with an incident (its phase), what can happen to it meanwhile (facts), and which phase may follow which.

The phase is the engine's own; `eagle_eye.types.IncidentState` is what the ledger and everybody else knows of the incident.
What each phase does with each fact: incident_loop.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from eagle_eye.types import Event

from .execution import ActionReport
from .verification import Verification, VerificationResult


class IncidentPhase(StrEnum):
    """The value says, in `eagle-eye incidents`, what the incident waits for."""

    SELF_HEALING = "the job's coordinator, which heals this by itself"
    SETTLING = "the incident to settle, or the next look at it"
    HELD = "an operator's approval, or the end of a guard's hold"
    RETRYING = "the next attempt of an action"
    EXECUTING = "an action to end"
    VERIFYING = "steps and throughput to come back"
    NEEDS_OPERATOR = "an operator: Eagle Eye does nothing more"
    ENDED = "nothing"


_P = IncidentPhase

PLANNED = frozenset({_P.SETTLING, _P.HELD, _P.EXECUTING, _P.VERIFYING, _P.NEEDS_OPERATOR, _P.ENDED})
"""Where planning leads (RepairPlanner.propose): wait, ask, act, verify what the job did itself, give up, or nothing is left to do."""

PLANNING = frozenset(IncidentPhase) - {_P.ENDED}
"""Phases in which planning may begin."""

DIRECT: Mapping[IncidentPhase, frozenset[IncidentPhase]] = {
    _P.SELF_HEALING: frozenset({_P.VERIFYING, _P.SETTLING, _P.NEEDS_OPERATOR, _P.ENDED}),
    _P.SETTLING: frozenset({_P.SETTLING, _P.SELF_HEALING, _P.VERIFYING, _P.NEEDS_OPERATOR, _P.ENDED}),
    _P.HELD: frozenset({_P.VERIFYING, _P.ENDED}),
    _P.RETRYING: frozenset({_P.RETRYING, _P.EXECUTING, _P.VERIFYING, _P.SETTLING, _P.ENDED}),
    _P.EXECUTING: frozenset({_P.VERIFYING, _P.RETRYING, _P.SETTLING, _P.ENDED}),
    _P.VERIFYING: frozenset({_P.SETTLING, _P.NEEDS_OPERATOR, _P.ENDED}),
    _P.NEEDS_OPERATOR: frozenset(  # a new leader begins here and goes on with a plan under way
        {_P.SETTLING, _P.SELF_HEALING, _P.VERIFYING, _P.RETRYING, _P.NEEDS_OPERATOR, _P.ENDED}
    ),
    _P.ENDED: frozenset({_P.SETTLING, _P.ENDED}),  # the fault came back; an absorbed incident's verification fails
}
"""Phase → those that follow it without planning, itself included where it may be entered anew."""

EDGES: Mapping[IncidentPhase, frozenset[IncidentPhase]] = {
    phase: followers | (PLANNED if phase in PLANNING else frozenset()) for phase, followers in DIRECT.items()
}
"""Every legal edge; DecisionRecorder.move reports any other."""


# --- facts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Due:
    """Looked at in a tick, about twenty times a second."""


@dataclass(frozen=True, slots=True)
class Revised:
    """Diagnosis has revised the incident, and a finding of it is active."""

    changed: bool
    """It names another cause or culprit."""
    recurred: bool
    """It began after the last attempt on it had ended."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """No finding of it is active any more, or the epoch of the fault is over."""

    absorbed: bool
    """Another incident explains it."""


@dataclass(frozen=True, slots=True)
class JobEpochStarted:
    """The job's coordinator has started a new epoch."""


@dataclass(frozen=True, slots=True)
class BudgetExhausted:
    """The job has spent its own restarts."""


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The job has finished or failed."""

    event: Event


@dataclass(frozen=True, slots=True)
class ActionEnded:
    """The plan's action has ended, well or not."""

    report: ActionReport


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification."""

    verification: Verification
    result: VerificationResult
    why: str
    breaker_opened: bool
    """The action is not attempted again on this job, and the operator has been notified."""


IncidentFact = Due | Revised | Withdrawn | JobEpochStarted | BudgetExhausted | JobEnded | ActionEnded | Verified
