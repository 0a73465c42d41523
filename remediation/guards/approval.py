"""Approval: recommend mode, and some actions in every mode, wait for an operator."""

from dataclasses import dataclass

from eagle_eye.types import Allow, Approval, Hold, Mode, Plan, Refuse, Situation, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalApproval:
    """Holds a plan until a named operator has approved exactly this action on exactly these targets."""

    approve_always: tuple[str, ...] = ()
    """Actions that need an approval in auto mode as well."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        if situation.mode is Mode.OBSERVE:
            return Refuse(guard="approval", reason="the mode is observe: the plan is only written down")
        if situation.mode is Mode.AUTO and plan.action not in self.approve_always:
            return Allow(guard="approval", reason="the mode is auto")
        approval = self._newest(plan, situation)
        if approval is None:
            why = "the mode is recommend" if situation.mode is Mode.RECOMMEND else f"{plan.action} always needs an approval"
            return Hold(guard="approval", reason=f"{why}: waits for the approval of {plan.digest}")
        if not approval.approved:
            return Refuse(guard="approval", reason=f"{approval.person} refused {plan.digest}")
        return Allow(guard="approval", reason=f"{approval.person} approved {plan.digest}")

    def _newest(self, plan: Plan, situation: Situation) -> Approval | None:
        valid = [
            approval
            for approval in situation.approvals
            if approval.digest == plan.digest and approval.incident in ("", plan.incident) and approval.expires > situation.now
        ]
        return max(valid, key=lambda approval: approval.time, default=None)
