"""What a worker's timers say beyond the length of its own step: seconds that were not there, and say nothing of its machine.

The phases of a step follow one another (docs/training_values.md), so that they add up to the step at most. A worker that is slower really makes its own step longer, or waits less for the others; one
that only says so adds up to more. Where phases overlap by design, as communication that is counted within backward, too, nothing follows from their sum: neither for a role whose median
worker adds up to more than its step, nor for a worker that did so in its first steps without computing longer than its peers.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from eagle_eye.types import Floats, Step

from .own_compute import COMPUTE, work_of
from .peer_roles import PeerRoles, median_of_role
from .step_time import phases, zero_if_unknown

SUMMED = ("data_s", *COMPUTE, "communication_s")
"""Without `other_s`, which holds what a script logs of its own timers, and without evaluations and checkpoints, which may be told beside."""
ROUNDING = 0.02
"""Share of a step that its phases may add up to beyond it."""
_FIRST = 8
"""Steps of a worker that show what its phases add up to by design."""
_OF_THE_SUM = np.float32(0.5)
"""It is by design where less of it than this share is compute beyond the peers'."""


@dataclass
class PhaseSums:
    """Of one job, step by step."""

    _workers: tuple[str, ...] = ()
    _seen: int = 0
    """Steps of these workers, up to the first ones."""
    _said: NDArray[np.float16] = field(default_factory=lambda: np.zeros(0, np.float16))
    """Of each worker: shares of its first steps that its phases added up to beyond these, summed up."""
    _longer: NDArray[np.float16] = field(default_factory=lambda: np.zeros(0, np.float16))
    """The same of what it computed longer than its peers."""

    def beyond(self, step: Step, busy: Floats, roles: PeerRoles) -> Floats:
        """Seconds of each worker's compute, `busy`, that cannot have been in this step: never so many that it were faster than its peers, by what it had to do."""
        if step.workers != self._workers:
            self._workers, self._seen = step.workers, 0
            self._said, self._longer = (np.zeros(len(step.workers), np.float16) for _ in range(2))
        step_s = np.maximum(step.values["step_s"], np.float32(1e-9))
        share = (phases(step, SUMMED).sum(axis=0) - step_s) / step_s
        if self._seen >= _FIRST and not (share > ROUNDING).any():
            return np.zeros(len(share), np.float32)
        typical = _typical(step, busy, roles)
        self._learn(share, ((busy - typical) / step_s).astype(np.float32))
        of_all = _median(share, roles)
        by_design = (of_all > ROUNDING) | ((self._said > ROUNDING * self._seen) & (self._longer < _OF_THE_SUM * self._said))
        more = share - np.maximum(of_all, np.float32(0.0))
        seconds = np.minimum(more * step_s, busy - np.minimum(typical, busy))
        return zero_if_unknown(np.where((more > ROUNDING) & ~by_design, seconds, np.float32(0.0)).astype(np.float32))

    def _learn(self, share: Floats, longer: Floats) -> None:
        if self._seen < _FIRST:
            self._seen += 1
            self._said += _halves(share)
            self._longer += _halves(longer)


def _halves(shares: Floats) -> NDArray[np.float16]:
    """What is summed up, in two bytes; more than ten times a step says no more than ten times."""
    return np.clip(zero_if_unknown(shares), -10.0, 10.0).astype(np.float16)


def _typical(step: Step, busy: Floats, roles: PeerRoles) -> Floats:
    """Seconds that the median of its peers computed for as much work as each worker had."""
    work = work_of(step)
    return _median(busy, roles) if work is None else _median(busy / work, roles) * work


def _median(values: Floats, roles: PeerRoles) -> Floats:
    median: Floats = median_of_role(values.astype(np.float64), roles.role).astype(np.float32)
    return median
