"""Whose gradient was no number first, before it was exchanged: behind the exchange it is none on any worker.

Workers tell it of each step (`bad_gradient`, eagle_eye/training/gradient_check.py), or log the norm of their own gradient. The one that had it alone is the origin of what all have from the
next step on. In a pipeline a backward pass carries it on to the stages before: of one replica's workers the last stage is the origin. Tensor, context and expert groups exchange it among themselves
before anybody tells: of several of those nobody is. Where it passed and others had it a little later, it is not known whether the first was spared: rows of a table that no batch reads carry NaN unseen.
Nor is anybody where the loss scale falls in that step or the next: the step was left out.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eagle_eye.frames import Frame
from eagle_eye.step_assembly import LOGGED_NAN
from eagle_eye.types import Layout, RankPlacement, Step

Truths = NDArray[np.bool_]
VALUE, EVENT = "bad_gradient", "gradient.not_finite"
NEAR = 50
"""Steps in which a bad gradient of other workers, which passed, leaves it open who was first."""


class GradientOrigin(NamedTuple):
    """Whose gradient was no number in a step in which those of the others were; (): not known."""

    step: int
    workers: tuple[str, ...]


@dataclass(slots=True)
class GradientOrigins:
    """Of one epoch of a job, step by step."""

    all_bad: int = 0
    """Steps in succession, since the origin, in which the gradients of most were no numbers."""
    newest: int = -1
    """The newest step that told of gradients."""
    _origin: GradientOrigin | None = None
    _scale: float = float("nan")
    """The loss scale of the step before."""
    _passed: deque[GradientOrigin] = field(default_factory=lambda: deque(maxlen=8))
    _tensors: dict[str, str] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """All were numbers in the newest step that told."""
        return self.newest >= 0 and self._origin is None

    def clear(self) -> None:
        """Another epoch begins."""
        self.all_bad, self._origin, self.newest, self._scale = 0, None, -1, float("nan")
        self._passed.clear()
        self._tensors.clear()

    def read(self, frame: Frame) -> None:
        """The events that name tensors."""
        for event in frame.events:
            if event.name == EVENT and len(self._tensors) < 1_000:
                self._tensors[event.entity.name] = event.attributes.get("tensor", "")

    def add(self, step: Step, layout: Layout | None) -> None:
        """After the steps before it."""
        bad, told = _gradients(step)
        if told.any():
            self.newest = step.number
            self._take(step.number, frozenset(_names(step, bad)), int(told.sum()), layout)
        if self._scale_fell(step) and self._origin is not None and self._origin.step >= step.number - 1:
            self._pass()

    def _take(self, number: int, names: frozenset[str], told: int, layout: Layout | None) -> None:
        if not names:
            self._pass()
        elif told == 1 or (len(names) > 1 and 2 * len(names) >= told):
            self.all_bad += 1
            self._origin = self._origin or GradientOrigin(number, ())
        elif self._origin is None:
            self._origin = GradientOrigin(number, _first_of(names, layout))
        elif not names.issuperset(self._origin.workers):
            self._passed.append(self._origin)
            self._origin = GradientOrigin(self._origin.step, ())

    def _scale_fell(self, step: Step) -> bool:
        scales = step.values.get("loss_scale")
        if scales is None or not np.isfinite(scales).any():
            return False
        before, self._scale = self._scale, float(np.nanmin(scales))
        return self._scale < before

    def origin(self, number: int) -> GradientOrigin | None:
        """Of what is bad in the step of that number; None: nobody is known to have been first."""
        origin = self._origin
        if origin is None or not origin.workers or not (self.all_bad or number - 1 <= self.newest <= number):
            return None
        return None if self.doubtful(origin.step, origin.workers) else origin

    def doubtful(self, number: int, workers: tuple[str, ...]) -> bool:
        """Others had a bad gradient a little before that step: what these workers have may come from there."""
        return any(set(each.workers) != set(workers) for each in self._passed if number - NEAR < each.step < number)

    def tensor(self, worker: str) -> str:
        """The one that is nearest to the loss, of those of that worker that were no numbers; "": not known."""
        return self._tensors.get(worker, "")

    def _pass(self) -> None:
        """All gradients are numbers."""
        if self._origin is not None and self._origin.workers:
            self._passed.append(self._origin)
        self.all_bad, self._origin = 0, None


def companions(worker: str, layout: Layout | None) -> bool:
    """Others compute the same batches with it, in other stages or parts of a layer: what is no number in one is soon in all of them."""
    places = layout.placements if layout is not None else ()
    mine = next((place for place in places if place.worker == worker), None)
    if mine is None or len({_coordinates(place) for place in places}) == 1:  # nothing is known of roles
        return False
    return any(place.dp == mine.dp and place.worker != worker for place in places)


def _coordinates(place: RankPlacement) -> tuple[int, ...]:
    return place.dp, place.pp, place.tp, place.cp, place.ep


def _first_of(names: frozenset[str], layout: Layout | None) -> tuple[str, ...]:
    """The last stage, where they are of different stages of one replica."""
    if len(names) == 1:
        return tuple(names)
    places = [place for place in (layout.placements if layout is not None else ()) if place.worker in names]
    replicas, stages = {(place.dp, place.tp, place.cp, place.ep) for place in places}, {place.pp for place in places}
    if len(places) == len(names) == len(stages) and len(replicas) == 1:
        return (max(places, key=lambda place: place.pp).worker,)
    return ()


def _names(step: Step, bad: Truths) -> list[str]:
    return [step.workers[index] for index in np.flatnonzero(bad).tolist()]


def _gradients(step: Step) -> tuple[Truths, Truths]:
    """Per worker: whether its own gradient was no number, and whether it tells."""
    value = step.values.get(VALUE)
    if value is not None and np.isfinite(value).any():
        told = np.isfinite(value)
        return told & (value > 0.0), told
    norms = step.values.get("grad_norm", np.full(len(step.workers), np.nan))
    bad = not_finite(step, "grad_norm")
    return bad, bad | np.isfinite(norms)


def not_finite(step: Step, name: str) -> Truths:
    """Per worker: whether it logged NaN or an infinite value under this name."""
    nobody = np.zeros(len(step.workers))
    bad: Truths = np.isinf(step.values.get(name, nobody)) | (step.values.get(f"{name}{LOGGED_NAN}", nobody) == 1.0)
    return bad
