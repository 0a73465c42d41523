"""The scale of an fp16 loss collapses: step after step overflows and is left out, and nothing is learned any more. It informs, and accuses nobody.

A scaler (torch.amp.GradScaler, DeepSpeed's, Megatron-LM's) halves the scale for each step whose gradients overflow, and doubles it again after some hundreds of good ones. It begins far too high
and comes down until steps are good: that is none, nor are a few halvings for odd batches.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Ratio
from eagle_eye.types import Claim, Entity, Evidence, Floats, Kind

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps

KIND = "loss_scale.collapsed"
LEAST = 1.0
"""At or below it even an unscaled loss overflows: Megatron-LM's and DeepSpeed's scalers stop there, torch's goes on."""
SCORE = 0.8


@dataclass
class LossScale:
    """Claims loss_scale.collapsed of the job, from the lowest scale that a worker logged, or that one printed where none logs it."""

    needs_job: ClassVar[bool] = True
    held: Count = 20
    """Steps, or lines that hold one, in succession in which the scale does not fall: it has settled, and is measured against that."""
    fall: Ratio = 64.0
    """Times that it falls without settling: from where it had settled, or from its highest down to 1."""
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _logged: bool = field(default=False, init=False, repr=False)
    """The script logs it: what it prints does not count."""
    _settled: float = field(default=0.0, init=False, repr=False)
    _highest: float = field(default=0.0, init=False, repr=False)
    _last: float = field(default=0.0, init=False, repr=False)
    _steady: int = field(default=0, init=False, repr=False)
    """Steps in succession in which it did not fall."""
    _since: float = field(default=0.0, init=False, repr=False)
    """When it began to fall from where it had settled."""
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        job = Entity(kind=Kind.JOB, name=frame.job)
        for event, why in self._steps.ends(frame):
            self._settled = self._highest = self._last = 0.0
            self._steady, self._since = 0, 0.0
            yield from self._claims.withdraw_all(event.time, why)
        for step in self._steps.of(frame):
            if (scale := _lowest(step.values.get("loss_scale"))) is not None:
                self._logged = True
                yield from self._take(scale, f"step {step.number}", step.end, job)
        if frame.tick and not self._logged and (scale := _lowest(frame.metrics.get(Kind.WORKER, {}).get("printed_loss_scale"))) is not None:
            yield from self._take(scale, "the newest line that prints it", frame.time, job)

    def _take(self, scale: float, where: str, time: float, job: Entity) -> Iterator[Claim]:
        rises = 0.0 < self._last < scale
        if scale < self._last and (self._steady >= self.held or not self._since):
            self._since = time
        self._steady = self._steady + 1 if scale >= self._last else 0
        self._last, self._highest = scale, max(self._highest, scale)
        begin = self._settled if self._settled > LEAST else self._highest
        if rises:  # a scaler doubles it after some hundreds of good steps
            self._settled = self._highest = scale
            yield from self._claims.withdraw(job, KIND, time, f"the scale rises again, to {scale:g}")
        if self._steady >= self.held and scale > LEAST:
            self._settled = scale
            yield from self._claims.withdraw(job, KIND, time, f"the scale has settled at {scale:g}")
        elif not rises and scale * self.fall <= begin and (self._settled > LEAST or scale <= LEAST):
            text = f"the scale of the loss has fallen from {begin:g} to {scale:g} in {where} and does not settle: the gradients of nearly every step overflow, and such steps are left out"
            proof = Evidence(text=text, metric="loss_scale", value=scale, threshold=begin / self.fall)
            yield from self._claims.report(Claim(entity=job, kind=KIND, score=SCORE, since=self._since, evidence=(proof,)), revise=False)


def _lowest(scales: Floats | None) -> float | None:
    """None: nobody has told one."""
    known = scales[np.isfinite(scales) & (scales > 0.0)] if scales is not None else ()
    return float(np.min(known)) if len(known) else None
