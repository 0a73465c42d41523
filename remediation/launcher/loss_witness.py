"""The second witness that a launcher is gone: what the workers of this node do while its session is broken.

A session that broke proves nothing: Eagle Eye's own channel may be cut while the job trains. Training itself must demand that something is
done. A worker has died, or its connections broke: that is known without any look. Or every worker here waits for its peers, and the kernel
of the other node acknowledges nothing any more, or the server knows nothing of it either. Without both they must have waited for much
longer: a peer may be in a long pause.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import NamedTuple

from eagle_eye.activity.activity import ActivityKind
from eagle_eye.activity.inspector import ActivityInspector
from eagle_eye.clock import Clock
from eagle_eye.config import StallConfig

from .retransmission import Unacknowledged, unacknowledged
from .workers import Workers

RETURN_S = 0.5
"""A session that broke is given so long to come back, whatever the workers do."""
ASK_S = 0.5
"""Between two questions to the server whether it knows anything of a node."""
WATCHED_S = 5.0
"""Processes are looked into for so long after somebody last wanted to know."""
WAITS = frozenset({ActivityKind.AWAITS_PEERS, ActivityKind.STANDING})

Present = Callable[[], Awaitable[bool | None]]
"""Whether the server knows the other node to be there; None if it cannot be asked."""


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


class LossWitness:
    """One per launcher. `look` is called all the time; processes are looked into only while somebody asks."""

    def __init__(
        self, clock: Clock, lease_s: float, stall: StallConfig, workers: Callable[[], Iterable[WorkerMarks]], inspector: ActivityInspector | None = None,
        unacknowledged: Unacknowledged = unacknowledged,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._lease_s = lease_s
        self._stall = stall
        self._workers = workers
        self._unacknowledged = unacknowledged
        self._inspector = inspector or ActivityInspector(stall.patience_s, clock)
        self._asked = -WATCHED_S
        self._asked_server = -ASK_S
        self._present: bool | None = True
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
        watched = wanted if now - self._asked < WATCHED_S else []
        self._inspector.watch((worker.name, worker.pid) for worker in watched)

    def waits(self) -> bool:
        """Whether every worker of this node waits for its peers, and has for a lease. A node without workers keeps nobody waiting."""
        self._asked = self._clock.monotonic()
        return all(self._waits(worker) for worker in self._workers())

    async def proves(self, broke_s: float, present: Present, hosts: Collection[str] = ()) -> bool:
        """Whether the node whose session broke `broke_s` seconds ago is gone, as far as can be seen from here. `hosts`: its addresses."""
        if broke_s < RETURN_S or not self.waits():
            return False
        if any(map(self._unacknowledged, hosts)):
            return True
        known = await self._asked_present(present)
        waited_s = min(broke_s, self._quiet_s)
        return not known if known is not None else waited_s >= max(self._lease_s, self._stall.standing_s)

    async def _asked_present(self, present: Present) -> bool | None:
        now = self._clock.monotonic()
        if now - self._asked_server >= ASK_S:
            self._asked_server, self._present = now, await present()
        return self._present

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
