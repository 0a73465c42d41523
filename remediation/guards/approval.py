"""A person's word: what recommend mode, and some actions in every mode, wait for."""

from dataclasses import dataclass

from eagle_eye.types import Allow, Approval, Hold, Mode, Plan, Refuse, Situation, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonalApproval:
    """Holds a plan until a named person has approved exactly this action on exactly these targets."""

    approve_always: tuple[str, ...] = ()
    """Actions that need a person in auto mode as well."""

    def __call__(self, plan: Plan, situation: Situation, /) -> Verdict:
        if situation.mode is Mode.OBSERVE:
            return Refuse(guard="approval", reason="the mode is observe: the plan is only written down")
        if situation.mode is Mode.AUTO and plan.action not in self.approve_always:
            return Allow(guard="approval", reason="the mode is auto")
        word = self._newest(plan, situation)
        if word is None:
            why = "the mode is recommend" if situation.mode is Mode.RECOMMEND else f"{plan.action} always needs a person"
            return Hold(guard="approval", reason=f"{why}: waits for the approval of {plan.digest}")
        if not word.approved:
            return Refuse(guard="approval", reason=f"{word.person} refused {plan.digest}")
        return Allow(guard="approval", reason=f"{word.person} approved {plan.digest}")

    def _newest(self, plan: Plan, situation: Situation) -> Approval | None:
        words = [
            word
            for word in situation.approvals
            if word.digest == plan.digest and word.incident in ("", plan.incident) and word.expires > situation.now
        ]
        return max(words, key=lambda word: word.time, default=None)
