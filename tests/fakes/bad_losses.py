"""Jobs of four workers whose losses, norms, gradients or printed lines are no numbers, and what the detector `loss` makes of them."""

import numpy as np

from detectors.loss import BAD_STEP, Loss
from eagle_eye.types import Claim, Kind
from fakes.synthetic_events import claims_of
from fakes.synthetic_frames import Draft, Fault, job_frames

NAN = np.float32(np.nan)
NUMBERS = ("step", "loss", "bad_losses", "bad_grad_norms")


def everything(*faults: Fault, ticks: int = 40, detector: Loss | None = None) -> list[Claim]:
    frames = job_frames(2, 2, ticks, np.random.default_rng(0), faults=faults)
    return claims_of(detector or Loss(), frames)


def claims(*faults: Fault, ticks: int = 40, detector: Loss | None = None) -> list[Claim]:
    """Without what only says that a step was bad."""
    return [claim for claim in everything(*faults, ticks=ticks, detector=detector) if claim.kind != BAD_STEP]


def broken(name: str, value: float, number: int, workers: slice | list[int], last: int = 1 << 30) -> Fault:
    def fault(draft: Draft) -> None:
        for step in draft.steps:
            if number <= step.number <= last:
                step.values[name][workers] = value
                step.values[f"{name}_nan"] = np.where(np.isnan(step.values[name]), np.float32(1), NAN)

    return fault


def kinds(found: list[Claim]) -> list[tuple[str, str, bool]]:
    return [(claim.kind, claim.entity.name, claim.active) for claim in found]


def prints(*lines: tuple[int, tuple[float, float, int, int]], worker: int = 0) -> Fault:
    """A script that logs no loss, and whose worker prints at these ticks: step, loss, bad losses and bad norms in succession."""

    def fault(draft: Draft) -> None:
        for step in draft.steps:
            step.values.pop("loss", None)
            step.values.pop("grad_norm", None)
        now = dict(lines).get(draft.tick)
        metrics = draft.metrics[Kind.WORKER]
        for place, name in enumerate(NUMBERS):
            values = metrics.setdefault(f"printed_{name}", np.full(len(draft.entities[Kind.WORKER]), NAN))
            if now is not None:
                values[worker] = now[place]

    return fault
