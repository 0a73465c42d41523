"""Workers whose timers cannot be right: the phases of a step add up to more than that step, as those of no other worker of the same role do."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from eagle_eye.frames import Frame
from eagle_eye.ranges import Count, Seconds, Share
from eagle_eye.types import Claim, Entity, Evidence, Floats, Kind, Layout, Step

from .features.active_claims import ActiveClaims
from .features.current_steps import CurrentSteps
from .features.own_compute import compute_of
from .features.peer_roles import PeerRoles, peer_roles
from .features.phase_sums import SUMMED, PhaseSums
from .features.step_time import phases

KIND = "timers.doubtful"
TOLD = 64
"""Workers of one job; further ones are not named."""
ROWS = 64
"""Steps kept for the window at most; of shorter steps some are left out."""


class _Row(NamedTuple):
    """One step."""

    end: float
    beyond: Floats
    """Of each worker: the share of its step that it says to have computed beyond it."""


@dataclass
class TimerSums:
    """Claims timers.doubtful of each worker that reports, step by step, more than there was time for; withdrawn when its phases add up again, and with the epoch.

    Informs, never accuses: `straggler` and `fail_slow` leave out what was told beyond the step (features/phase_sums.py, which also says whose phases overlap by design). Nothing is told of
    workers with too few peers to say so.
    """

    needs_job: ClassVar[bool] = True
    beyond: Share = 0.05
    """Of its step; less changes nothing that is told of a worker."""
    share: Share = 0.8
    """In at least this share of the steps of the window ..."""
    recovered: Share = 0.3
    """... until it is no more than this."""
    steps: Count = 10
    """The window: so many steps at least ..."""
    seconds: Seconds = 3.0
    """... and so long."""
    peers: Count = 3
    """Fewer workers of a role cannot be compared."""
    _steps: CurrentSteps = field(default_factory=CurrentSteps, init=False, repr=False)
    _workers: tuple[str, ...] = field(default=(), init=False, repr=False)
    _layout: Layout | None = field(default=None, init=False, repr=False)
    _roles: PeerRoles = field(default_factory=lambda: peer_roles((), None, 1), init=False, repr=False)
    _sums: PhaseSums = field(default_factory=PhaseSums, init=False, repr=False)
    _rows: deque[_Row] = field(default_factory=lambda: deque(maxlen=ROWS), init=False, repr=False)
    _newest: Step | None = field(default=None, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event, why in self._steps.ends(frame):
            self._rows.clear()
            yield from self._claims.withdraw_all(event.time, why)
        if not frame.tick:
            return
        steps = self._steps.of(frame)
        for step in steps:
            self._add(step, frame.layout)
        if steps and self._rows:
            yield from self._judge(frame.time)

    def _add(self, step: Step, layout: Layout | None) -> None:
        if step.workers != self._workers or (layout is not None and layout is not self._layout and layout != self._layout):
            self._workers, self._layout = step.workers, layout
            self._roles = peer_roles(step.workers, layout, self.peers)
            self._rows.clear()
        if self._rows and step.end - self._rows[-1].end < self.seconds / ROWS:
            return
        if (busy := compute_of(step)) is not None:
            beyond = self._sums.beyond(step, busy, self._roles) / np.maximum(step.values["step_s"], np.float32(1e-9))
            self._rows.append(_Row(step.end, np.where(self._roles.role > 0, beyond, np.float32(0.0))))
            self._newest = step

    def _judge(self, now: float) -> Iterator[Claim]:
        rows = [row for row in self._rows if self._rows[-1].end - row.end <= self.seconds]
        rows = rows if len(rows) >= self.steps else list(self._rows)[-self.steps :]
        often = (np.array([row.beyond for row in rows]) >= self.beyond).mean(axis=0)
        yield from self._recover(often, now)
        if len(rows) >= self.steps and rows[-1].end - rows[0].end >= 0.8 * self.seconds:
            for index in np.flatnonzero(often >= self.share).tolist()[:TOLD]:
                yield from self._claims.report(self._claim(index, rows), revise=False)

    def _claim(self, index: int, rows: list[_Row]) -> Claim:
        worker, step = self._workers[index], self._newest
        said, lasted = (float(phases(step, SUMMED)[:, index].sum()), float(step.values["step_s"][index])) if step is not None else (0.0, 0.0)
        text = (
            f"the timers of worker {worker} add up to {said:.3f} s in a step of {lasted:.3f} s, and those of its peers do not: "
            "they say too much, or its phases overlap as nobody else's do; what they say beyond the step is not held against it"
        )
        value = float(np.median([row.beyond[index] for row in rows]))
        proof = Evidence(text=text, metric="beyond_step_share", value=value, threshold=self.beyond)
        return Claim(entity=Entity(kind=Kind.WORKER, name=worker), kind=KIND, score=0.9, since=rows[0].end, evidence=(proof,))

    def _recover(self, often: Floats, now: float) -> Iterator[Claim]:
        index_of = {name: index for index, name in enumerate(self._workers)}
        for entity, kind in list(self._claims.open):
            index = index_of.get(entity.name)
            if index is None or often[index] <= self.recovered:
                yield from self._claims.withdraw(entity, kind, now, "its timers add up to its step again")
