"""Plans that wait for approval, and the operators' decisions: an approval counts for the plan that was seen, and for no other."""

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

import msgspec

from eagle_eye.clock import Clock
from eagle_eye.errors import ControlError, LedgerError
from eagle_eye.ledger import Ledger
from eagle_eye.rpc.control_messages import Body, Decision, PendingPlansQuery
from eagle_eye.types import Approval, Hold, IncidentNote, Plan
from remediation.engine.engine_state import EngineState
from remediation.engine.incident_phase import IncidentPhase
from remediation.engine.tracked_incident import TrackedIncident
from remediation.policy.engine_settings import EngineSettings

log = logging.getLogger(__name__)

LINKS_KEPT = 1000


@dataclass(slots=True, kw_only=True)
class ApprovalRequests:
    """Called by the engine, which holds its lock."""

    state: EngineState
    ledger: Ledger
    clock: Clock
    settings: EngineSettings

    def pending_plans(self, question: PendingPlansQuery) -> Body:
        """`plans`: all that an operator should see before deciding, one dict each. Raises ControlError for a name that is not held."""
        held = self._held(question.tenant)
        if question.plan:
            held = [self._named(question.plan, question.tenant)]
        return {"plans": [self._shown(tracked, plan) for tracked, plan in held]}

    def decide(self, decision: Decision, approved: bool, link: str = "") -> Body:
        """Approve or refuse a plan; `link`: the token of the approval link that it came by, which counts for one decision.

        Raises ControlError if the plan does not wait, has expired, or is not the one that was seen, or if the link is used up;
        LedgerError if nothing could be written: then nothing is decided and the link is as it was."""
        tracked, plan = self._named(decision.plan, decision.tenant)
        now = self.clock.now()
        if not decision.digest:
            raise ControlError(f"a decision names the digest of the plan that was seen: look at {plan.id} first, then decide on {plan.digest}")
        if decision.digest != plan.digest:
            raise ControlError(f"the plan has changed: {plan.digest} waits now, not {decision.digest}. Look at it and decide again.")
        if plan.expires <= now:
            raise ControlError(f"plan {plan.id} has expired and is being made anew: look at it again in a moment")
        valid = decision.valid_s or self.settings.expires_s
        approval = Approval(
            digest=plan.digest, person=decision.person, approved=approved, time=now, expires=now + valid, incident=plan.incident
        )  # fmt: skip
        note = IncidentNote(incident=tracked.incident.id, person=decision.person, time=now, text=decision.note) if decision.note else None
        if not self.ledger.save_approval(approval, note=note, link=link):
            raise ControlError("the link was used or expired just now")
        tracked.due = now
        return {
            "plan": plan.id, "action": plan.action, "digest": plan.digest, "approved": approved, "person": decision.person,
            "message": f"{plan.action} of plan {plan.id} is {'approved' if approved else 'refused'} by {decision.person}",
        }  # fmt: skip

    # --- inside --------------------------------------------------------------------------------------------------

    def _held(self, tenant: str) -> list[tuple[TrackedIncident, Plan]]:
        return [
            (tracked, tracked.plan)
            for tracked in self.state.incidents.values()
            if tracked.phase is IncidentPhase.HELD and tracked.plan is not None and tenant in ("", tracked.job.partition("/")[0])
        ]

    def _named(self, name: str, tenant: str) -> tuple[TrackedIncident, Plan]:
        held = self._held(tenant)
        for tracked, plan in held:
            if name in (plan.id, tracked.incident.id, plan.digest):
                return tracked, plan
        begins = [(tracked, plan) for tracked, plan in held if plan.id.startswith(name) or tracked.incident.id.startswith(name)] if name else []
        if len(begins) == 1:
            return begins[0]
        raise ControlError(f"no plan {name!r} waits for approval; pending: {', '.join(plan.id for _, plan in held) or 'none'}")

    def _shown(self, tracked: TrackedIncident, plan: Plan) -> Body:
        """`holds`: what the guards want besides the approval."""
        verdicts = (kept.verdict for kept in self.ledger.verdicts(plan=plan.id))
        newest = {verdict.guard: verdict for verdict in verdicts}
        return {
            "plan": msgspec.to_builtins(plan), "digest": plan.digest, "job": tracked.job, "incident": tracked.incident.id,
            "cause": tracked.incident.cause, "holds": [verdict.reason for verdict in newest.values() if isinstance(verdict, Hold)],
        }  # fmt: skip


class LinkLedger(Protocol):
    """The part of the ledger that approval links need."""

    def create_approval_link(self, plan: Plan, now: float) -> str: ...


class ApprovalLinks:
    """Thread-safe. The tokens are in this memory and in the notifications; a next leader makes new ones."""

    def __init__(self, ledger: LinkLedger, clock: Clock, url: str) -> None:
        """`url`: how a browser reaches the HTTP port; '' where there is none."""
        self._ledger = ledger
        self._clock = clock
        self._url = url.rstrip("/")
        self._links: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def link(self, plan: Plan) -> str:
        """Where this plan is approved or refused; '' where nowhere, or while the ledger is away."""
        if not self._url:
            return ""
        with self._lock:
            if plan.id not in self._links:
                try:
                    self._links[plan.id] = f"{self._url}/approve/{self._ledger.create_approval_link(plan, self._clock.now())}"
                except LedgerError as error:
                    log.warning("no link to approve plan %s could be made: %s", plan.id, error)
                    return ""
                while len(self._links) > LINKS_KEPT:
                    self._links.popitem(last=False)
            return self._links[plan.id]
