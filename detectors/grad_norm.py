"""The norm of the gradient leaves its level by far: at once where it is huge, after some steps where it is only large. It informs, and accuses nobody.

A batch of odd data makes one large norm, which clipping takes care of; and where each worker logs a norm of its own the largest may come of its share of the data.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio
from eagle_eye.types import Claim, Entity, Evidence, Kind, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps

KIND = "grad_norm.jump"
KNOWN = 20
"""Steps from which on it is judged."""
SCORE = 0.6


@dataclass
class GradientNorm:
    """Claims grad_norm.jump of the job, from the largest finite norm that a worker logged; what is no number is loss.not_finite.

    A norm of zero is none: steps that only gather gradients log it. A norm that stays where it is for `window` steps is its level from then on: another batch size or loss may make it.
    """

    needs_job: ClassVar[bool] = True
    window: Count = 50
    """Steps whose median is the level."""
    huge: Ratio = 20.0
    """Times the level: told at once."""
    large: Ratio = 5.0
    """Times the level: told after ..."""
    lasting: Count = 5
    """... so many steps in succession."""
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _norms: deque[float] = field(default_factory=deque, init=False, repr=False)
    _large: list[float] = field(default_factory=list, init=False, repr=False)
    """The newest, as many as are large in succession."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._norms.clear()
            self._large.clear()
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            norms = step.values.get("grad_norm")
            known = np.isfinite(norms) & (norms > 0.0) if norms is not None else np.zeros(0, np.bool_)
            if norms is not None and known.any():
                yield from self._judge(step, np.where(known, norms, -np.inf), Entity(kind=Kind.JOB, name=frame.job))

    def _judge(self, step: Step, norms: np.ndarray, job: Entity) -> Iterator[Claim]:
        place = int(norms.argmax())
        norm, level = float(norms[place]), float(np.median(self._norms)) if len(self._norms) >= KNOWN else np.inf
        if norm <= self.large * level:
            self._large.clear()
            yield from self._claims.withdraw(job, KIND, step.end, "the norm is where it was")
            self._learn([norm])
            return
        self._large.append(norm)
        if norm > self.huge * level or len(self._large) >= self.lasting:
            text = f"the norm of the gradient is {norm:.4g} in step {step.number}, {norm / max(level, 1e-30):.0f} times its level; the largest is that of {step.workers[place]}"
            proof = Evidence(text=text, metric="grad_norm", value=norm, threshold=self.large * level)
            yield from self._claims.report(Claim(entity=job, kind=KIND, score=SCORE, since=step.end, evidence=(proof,)), revise=False)
        if len(self._large) >= self.window:
            yield from self._claims.withdraw(job, KIND, step.end, f"the norm has been there for {self.window} steps")
            self._norms.clear()
            self._learn(self._large)
            self._large.clear()

    def _learn(self, norms: list[float]) -> None:
        self._norms.extend(norms)
        while len(self._norms) > self.window:
            self._norms.popleft()
