"""Back-off and breaker of the resizes that the engine makes by itself, to give returned workers to jobs.

Nobody asked for the single resize, so nobody would notice that it is made again and again.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from eagle_eye.types import Breaker, Plan, digest_of
from remediation.engine.decision_recorder import DecisionRecorder
from remediation.policy.engine_settings import EngineSettings

log = logging.getLogger(__name__)

ACTION = "resize"


@dataclass(slots=True, kw_only=True)
class ResizeLimit:
    """Called by the live planner. Counts from the last look that found every job as it should be."""

    recorder: DecisionRecorder
    settings: EngineSettings
    _made: int = 0

    def reset(self) -> None:
        """Every job is as it should be, or an operator released a node."""
        self._made = 0

    def wait_s(self) -> float:
        """Seconds until the next one may be made, after one has ended: twice as long each time."""
        return float(self.settings.replan_s * 2 ** max(0, self._made - 1))

    def refusal(self, jobs: Iterable[str], now: float) -> str:
        """Why no resize of these jobs is made; '' if one may be."""
        wanted = set(jobs)
        opened = [each for each in self.recorder.ledger.breakers(at=now) if each.action == ACTION and each.job in wanted]
        return f"the breaker of {ACTION} on {opened[0].job} is open" if opened else ""

    def count(self, plan: Plan, ending: str, now: float) -> str:
        """One has ended. Opens the breaker on each of its jobs if it was one too many; what the operator is told then, else ''."""
        self._made += 1
        if self._made < self.settings.restore_attempts:
            return ""
        reason = f"{self._made} resizes in a row did not give the returned workers to jobs; the last one: {ending}"
        ids = []
        for target in plan.targets:
            opened = Breaker(
                id=digest_of("breaker", plan.id, target.job), job=target.job, action=ACTION, plan=plan.id, incident=plan.incident, reason=reason, since=now
            )
            self.recorder.ledger.save_suppression(opened)
            ids.append(opened.id)
        self._made = 0
        news = f"{reason}. Its breaker is open: close it with: eagle-eye breaker close {ids[0]}"
        log.warning("%s", news)
        return news
