"""What explains that some workers compute longer than their peers in a step: tokens and sequence lengths by a fit, else whether forward and backward are long together."""

from dataclasses import dataclass, field

import numpy as np

from eagle_eye.types import Doubles, Floats, Integers, Step

MEMORY = 32
"""Steps that the fit, and each worker's usual time, go back."""
LOGGED = ("tokens", "sequence_length")


@dataclass
class WorkCourse:
    """Of the workers of one epoch, step by step. A deviation is that of a worker from the mean of its peers, as a share of that mean."""

    _usual: Floats = field(default_factory=lambda: np.zeros((2, 0), np.float32))
    """Of each worker: its mean deviation forward, and backward."""
    _squares: Doubles = field(default_factory=lambda: np.zeros((3, 3)))
    _products: Doubles = field(default_factory=lambda: np.zeros(3))

    def forget(self) -> None:
        """Other workers."""
        self._usual = np.zeros((2, 0), np.float32)
        self._squares, self._products = np.zeros((3, 3)), np.zeros(3)

    def explained(self, step: Step, own: Floats, role: Integers) -> Floats | None:
        """Seconds of each worker beyond the mean of its peers, that its tokens and the length of its sequences explain by a fit over the newest steps; None: neither is logged, or all have the same."""
        logged = [step.values.get(name) for name in LOGGED]
        known = [values if values is not None and (values > 0.0).all() else None for values in logged]
        work = [deviations(values, role) if values is not None else np.zeros(len(own), np.float32) for values in known]
        if not any(each.any() for each in work):
            return None
        features = np.array([*work, (1.0 + work[1]) ** 2 - 1.0], np.float64)
        mean = means(own, role)
        longer = (own / np.maximum(mean, 1e-9) - 1.0).astype(np.float64)
        keep = 1.0 - 1.0 / MEMORY
        self._squares = keep * self._squares + features @ features.T
        self._products = keep * self._products + features @ longer
        slopes = np.linalg.lstsq(self._squares, self._products, rcond=1e-6)[0]
        explained: Floats = ((slopes @ features) * mean).astype(np.float32)
        return explained

    def together(self, forward: Floats, backward: Floats, role: Integers) -> float:
        """Correlation of how much longer than its peers, and than it usually does, each worker computes forward and backward: more work makes both longer, noise does not."""
        beyond = np.array([deviations(forward, role), deviations(backward, role)])
        if self._usual.shape != beyond.shape:
            self._usual = beyond
            return 0.0
        new = beyond - self._usual
        self._usual = self._usual + new / np.float32(MEMORY)
        spread = new.std(axis=1)
        return float((new[0] * new[1]).mean() / (spread[0] * spread[1])) if spread.min() > 1e-6 else 0.0


def means(values: Floats, role: Integers) -> Floats:
    """Of each worker the mean of its role. `role`: of each worker, from 0."""
    mean: Floats = (np.bincount(role, values) / np.maximum(np.bincount(role), 1))[role].astype(np.float32)
    return mean


def deviations(values: Floats, role: Integers) -> Floats:
    """Each as a share beyond the mean of its role."""
    mean = means(values, role)
    beyond: Floats = np.where(mean > 0.0, values / np.maximum(mean, np.float32(1e-9)) - np.float32(1.0), np.float32(0.0)).astype(np.float32)
    return beyond
