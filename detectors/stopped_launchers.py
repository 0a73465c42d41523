"""Launchers that are stopped by a signal while their workers train on."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from eagle_eye.frames import Frame
from eagle_eye.ranges import Share
from eagle_eye.types import Claim

from .features.active_claims import ActiveClaims
from .features.launcher_states import LauncherStates

KIND = "launcher.stopped"


@dataclass
class StoppedLaunchers:
    """Claims launcher.stopped of each node whose agent sees the job's launcher in process state T; accuses nobody, for the job trains.

    Withdrawn when it runs or answers again, when another agent reports from there (which tells it anew if it is still so), and with the end of the job.
    """

    score: Share = 1.0
    """Score of the claim; the agent itself sees the process."""
    _states: LauncherStates = field(default_factory=LauncherStates, init=False, repr=False)
    _claims: ActiveClaims = field(default_factory=ActiveClaims, init=False, repr=False)

    def update(self, frame: Frame, /) -> Iterator[Claim]:
        for event in frame.events:
            if event.name in ("job.finished", "job.failed"):
                self._states = LauncherStates()
                yield from self._claims.withdraw_all(event.time, f"the job has {event.name.removeprefix('job.')}")
            elif why := self._states.take(event):
                yield from self._claims.withdraw(event.entity, KIND, event.time, why)
            elif event.name == KIND and event.entity.name in self._states.stopped:
                proof = self._states.evidence(event.entity.name)
                yield from self._claims.report(Claim(entity=event.entity, kind=KIND, score=self.score, since=event.time, evidence=proof), revise=False)
