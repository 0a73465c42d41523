"""The second witness that a launcher is gone: what the workers of this node do while its session is broken.

A session that broke proves nothing: Eagle Eye's own channel may be cut while the job trains. Training itself must demand that something is
done. A worker has died, or its connections broke: that is known without any look. Or no step is completed, and the other launcher's host says
that its process has ended. Or every worker here waits for its peers, and the kernel of the other node acknowledges nothing any more, or the
server knows nothing of it either. Without all these they must have waited for much longer: a peer may be in a long pause.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from enum import Enum
from typing import NamedTuple

from eagle_eye.activity.hang_verdict import ActivityKind
from eagle_eye.activity.inspector import ActivityInspector
from eagle_eye.clock import Clock
from eagle_eye.config import StallConfig
from remediation.launcher.worker.workers import Workers

from .retransmission import Refused, Unacknowledged, host_of, refused, unacknowledged

RETURN_S = 0.5
"""A session that broke is given so long to come back, whatever the workers do."""
ASK_S = 0.5
"""Between two questions to the server whether it knows anything of a node."""
WATCHED_S = 5.0
"""Processes are looked into for so long after somebody last wanted to know."""
WAITS = frozenset({ActivityKind.AWAITS_PEERS, ActivityKind.STANDING})

Present = Callable[[], Awaitable[bool | None]]
"""Whether the server knows the other node to be there; None if it cannot be asked."""


class Proof(Enum):
    """What shows that a launcher is gone."""

    NONE = "none"
    WAITS = "waits"
    """The workers here wait for their peers. Whether those of other nodes do is to be asked: they may be what is waited for."""
    ENDED = "ended"
    """Its host refuses connections to it: its process has ended, and the kernel ends its workers with it. No step is completed here either."""


class WorkerMarks(NamedTuple):
    """A living worker of this node."""

    name: str
    pid: int
    marks: int | None
    """Grows with everything that it completes; None if it does not tell."""
    step_s: float | None = None
    """Usual length of its steps."""


def marks_of(workers: Workers) -> list[WorkerMarks]:
    """Of the living workers of this node."""
    return [
        WorkerMarks(worker.name, worker.pid, now.marks if (now := workers.now(worker)) is not None else None, workers.step_s(worker))
        for worker in workers.all if worker.running
    ]  # fmt: skip


class LauncherLossWitness:
    """One per launcher. `look` is called all the time; processes are looked into only while somebody asks."""

    def __init__(
        self, clock: Clock, lease_s: float, stall: StallConfig, workers: Callable[[], Iterable[WorkerMarks]], inspector: ActivityInspector | None = None,
        unacknowledged: Unacknowledged = unacknowledged, refused: Refused = refused,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._lease_s = lease_s
        self._stall = stall
        self._workers = workers
        self._unacknowledged = unacknowledged
        self._refused = refused
        self._inspector = inspector or ActivityInspector(stall.patience_s, clock)
        self._wanted_at = -WATCHED_S
        self._asked_at = -ASK_S
        self._answer: tuple[bool | None, bool] = (True, False)
        self._seen: dict[tuple[str, int], int | None] = {}
        self._quiet_since = clock.monotonic()

    def close(self) -> None:
        self._inspector.close()

    def look(self) -> None:
        """Compare with what was seen before."""
        now, wanted = self._clock.monotonic(), list(self._workers())
        seen = {(worker.name, worker.pid): worker.marks for worker in wanted}
        if seen != self._seen:
            self._seen, self._quiet_since = seen, now
        watched = wanted if now - self._wanted_at < WATCHED_S else []
        self._inspector.watch((worker.name, worker.pid) for worker in watched)

    def waits(self) -> bool:
        """Whether every worker of this node waits for its peers, and has for a lease. A node without workers keeps nobody waiting."""
        self._wanted_at = self._clock.monotonic()
        return all(self._waits(worker) for worker in self._workers())

    async def proves(self, broke_s: float, present: Present, addresses: Collection[str] = ()) -> Proof:
        """Whether launchers whose sessions broke `broke_s` seconds ago are gone, as far as can be seen from here. `addresses`: theirs."""
        if broke_s < RETURN_S or self._quiet_s < self._lease_s:
            return Proof.NONE
        waits = self.waits()
        if waits and any(self._unacknowledged(host_of(address)) for address in addresses):
            return Proof.WAITS
        known, refused = await self._asked(present, addresses)
        if refused:
            return Proof.ENDED
        silent = not known if known is not None else min(broke_s, self._quiet_s) >= self._stall.standing_s
        return Proof.WAITS if waits and silent else Proof.NONE

    async def _asked(self, present: Present, addresses: Collection[str]) -> tuple[bool | None, bool]:
        """What the server knows, and whether a host says that nobody listens at an address any more; asked now and then."""
        now = self._clock.monotonic()
        if now - self._asked_at >= ASK_S:
            refused = [await self._refused(address) for address in addresses]
            self._asked_at, self._answer = now, (await present(), any(refused))
        return self._answer

    def _waits(self, worker: WorkerMarks) -> bool:
        activity = self._inspector.activity(worker.name)
        if activity is None:
            return False
        if activity.kind is ActivityKind.AWAITS_GPU:  # it computes, or waits for the peers within a collective
            return self._quiet_s >= max(self._lease_s, self._stall.suspect_iterations * worker.step_s if worker.step_s else self._stall.standing_s)
        return activity.kind in WAITS and self._quiet_s >= self._lease_s

    @property
    def _quiet_s(self) -> float:
        """Since any worker here has completed anything, or has been started."""
        return self._clock.monotonic() - self._quiet_since
